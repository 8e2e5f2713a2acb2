"""The profiling run: measures how to cut the global batch and how to load it."""
