"""From shards to slots and evaluation batches on the device."""
