"""The pipeline of a line: how its stages are wired, their bodies on Vertex AI, and its compilation."""
