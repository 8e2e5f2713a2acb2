"""What a drill can do to a training: said by `shardline drill`, done by the trainer."""

from __future__ import annotations

DRILL_MODES = ("sigkill", "sigterm", "stop", "mid-checkpoint")
"""Signals to a rank (stop: SIGSTOP), and SIGKILL between a checkpoint's data and its manifest."""
