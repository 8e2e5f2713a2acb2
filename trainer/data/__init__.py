"""From shards to model input: order/ says which sample comes next, reader.py reads it, loader.py makes slots of it.

A sample's pixels depend on (seed, epoch, sample) only: not on rank, loader process, attempt or its neighbours.
"""
