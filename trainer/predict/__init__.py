"""Answers by a finished export: the programs that it ships, and `shardline predict`."""
