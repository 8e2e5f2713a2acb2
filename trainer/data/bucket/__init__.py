"""Samples from shards in a bucket: ranges fetched ahead into a cache that the processes of a machine share."""
