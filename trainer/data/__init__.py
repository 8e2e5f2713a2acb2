"""From shards to model input, in the order that trainer/data/order/cursor.py gives.

reader.py      a sample's bytes, checked
bucket.py      the same from gs://: prefetch.py fetches ahead, fetch.py fetches, cache.py keeps; plan.py says what is
               needed and whether it fits, cache_folder.py where it lies
transforms.py  from an image file to cropped pixels; normalisation
augment.py     what is drawn for augmentation, and pixel_ops.py, what it does to pixels
randomness.py  generators keyed by sample
loader.py      whole slots, by loader processes; what steps in for a bad sample
device.py      from a slot to model input, on the model's device
clock.py       how long training waits for all this, and report.py, what the logs say of it

A sample's pixels depend on (seed, draw, sample) only, the draw being how often it came before (the epoch, where each
comes once an epoch): not on rank, loader process, attempt or its neighbours.
"""
