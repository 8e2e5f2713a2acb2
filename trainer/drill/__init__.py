"""Training with kills compared with training without, and the hooks that only this and tests use."""
