"""Engines of TensorRT and TensorRT-RTX: built, run, judged and timed."""
