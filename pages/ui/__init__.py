"""Pages of `shardline ui` around the sections of a run: list, comparison, log, and what stands around all of them."""
