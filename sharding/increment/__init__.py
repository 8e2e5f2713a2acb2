"""Increments: what is reused of the shards of an earlier state of the source, and what is written."""
