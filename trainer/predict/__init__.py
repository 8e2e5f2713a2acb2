"""Inference with a finished export: the programs that it ships, and `shardline predict`."""
