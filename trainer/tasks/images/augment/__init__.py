"""Augmentation: what is drawn for a sample, by which random numbers, and the pixel operations that do it."""
