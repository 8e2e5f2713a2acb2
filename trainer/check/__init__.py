"""Checks of a configuration before the first stage: `python -m trainer.check`."""
