"""Section `task`: the problem that is trained on."""

from __future__ import annotations

from typing import Any

from contracts.config.base import Section


class TaskSection(Section):
    """The problem that is trained on."""

    name: str = "image_classification"
    """A task of this project, or `module:Class` for one of your own."""
    arguments: dict[str, Any] = {}
    """Arguments of the task, by name."""
