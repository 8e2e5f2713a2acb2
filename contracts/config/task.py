"""Section `task`: what a sample, a loss and a metric are."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from contracts.config.base import Section

# The tasks that come with the tool.
TASKS = (
    "image_classification",
    "image_multilabel",
    "text_classification",
    "tabular_classification",
    "tabular_regression",
)


class TaskSection(Section):
    """What is learnt from the samples (docs/tasks.md)."""

    name: Annotated[str, Field(pattern=rf"^({'|'.join(TASKS)}|[\w.]+:\w+)$")] = "image_classification"
    """A task of the tool, or `module:Class` of your own code."""
    arguments: dict[str, Any] = {}
    """Keyword arguments of the task's class."""

    @property
    def is_own(self) -> bool:
        """Whether it is a class of the user's."""
        return ":" in self.name
