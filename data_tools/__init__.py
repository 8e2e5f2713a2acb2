"""Tools for shards: look at them, check them, take over foreign ones."""
