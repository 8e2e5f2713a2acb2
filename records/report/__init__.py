"""The data report: how new shards differ from those of an earlier run, and what the configuration says to that."""
