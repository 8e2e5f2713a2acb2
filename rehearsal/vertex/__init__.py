"""Vertex AI on this machine, for rehearsals."""
