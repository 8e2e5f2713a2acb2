"""From shards to model input, in the order that trainer/cursor.py gives.

reader.py      a sample's bytes, checked, and its image
bucket.py      the same from gs://: prefetch.py fetches ahead, fetch.py fetches, cache.py keeps; plan.py says what is
               needed and whether it fits, cache_folder.py where it lies
transforms.py  from an image to what the model sees
loader.py      whole slots, by loader processes

A sample's pixels depend on (seed, epoch, sample) only: not on rank, loader process, attempt or its neighbours.
"""
