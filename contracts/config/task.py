"""Section `task`: what a sample, a loss and a metric are."""

from __future__ import annotations

import difflib
import re
from typing import Annotated, Any

from pydantic import AfterValidator

from contracts.config.base import Section, refusal

# The tasks that come with the tool.
TASKS = (
    "image_classification",
    "image_multilabel",
    "text_classification",
)


def _check_name(name: str) -> str:
    if name not in TASKS and not re.fullmatch(r"[\w.]+:\w+", name):
        close = difflib.get_close_matches(name, TASKS, n=1)
        raise refusal(
            f"task.name = {name!r}",
            allowed=f"{', '.join(TASKS)}, or module:Class of your own code",
            todo=f"did you mean {close[0]}?" if close else "choose one of them (docs/tasks.md)",
        )
    return name


class TaskSection(Section):
    """What is learnt from the samples (docs/tasks.md)."""

    name: Annotated[str, AfterValidator(_check_name)] = "image_classification"
    """A task of the tool, or `module:Class` of your own code."""
    arguments: dict[str, Any] = {}
    """Keyword arguments of the task's class."""

    @property
    def may_read_images(self) -> bool:
        """Whether samples may have images: of the tool's tasks those that are named so, and each of the user's."""
        return self.is_own or self.name.startswith("image_")

    @property
    def is_own(self) -> bool:
        """Whether it is a class of the user's."""
        return ":" in self.name
