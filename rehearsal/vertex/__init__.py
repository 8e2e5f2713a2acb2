"""Vertex AI on this machine."""
