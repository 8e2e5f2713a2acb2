"""Commands of `shardline` by topic; each module registers its own. They take arguments apart and print, no more."""
