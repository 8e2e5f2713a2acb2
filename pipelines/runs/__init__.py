"""Runs on Vertex AI: their names, tasks, jobs, states, logs, and why one failed."""
