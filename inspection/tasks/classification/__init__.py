"""Pages of image classification: confusion, curves, outcomes by class, and the samples that were classified worst."""
