"""From shards to trained weights: profiling, distributed training, checkpoints, and export to an engine."""
