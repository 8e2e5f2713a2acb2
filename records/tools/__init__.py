"""Tools for finished shards: describe, verify, adopt those of other programs."""
