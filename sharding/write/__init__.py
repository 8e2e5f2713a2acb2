"""Writing shards: files are read, checked, framed and published, a shard at a time."""
