"""Section `task`: what a sample, a loss and a metric are."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from contracts.config.base import Section


class TaskSection(Section):
    """What is learnt from the samples (docs/tasks.md)."""

    name: Annotated[str, Field(pattern=r"^(image_classification|[\w.]+:\w+)$")] = "image_classification"
    """`image_classification`, or `module:Class` of your own code."""
    arguments: dict[str, Any] = {}
    """Keyword arguments of the task's class."""

    @property
    def is_own(self) -> bool:
        """Whether it is a class of the user's."""
        return ":" in self.name
