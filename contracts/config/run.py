"""Sections `run`, `task`, `code`, `inspect` and `schedule`: a line, what it learns, and when it runs by itself."""

from __future__ import annotations

import difflib
import re
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field

from contracts.config.base import Section, Seed, refusal

# The tasks that come with the tool.
TASKS = (
    "image_classification",
    "image_multilabel",
    "text_classification",
)


class RunSection(Section):
    """Where a line lives and what its randomness starts from."""

    name: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9_-]{0,62}$")] = "line"
    """Name of the line: lower-case letters, digits, '-' and '_'."""
    root: str = "runs"
    """Folder or URI that holds lines; this line's files are below root/name."""
    seed: Seed = 0
    """Start of all randomness but that of the shards (`sharding.seed`): order of samples, initial weights,
    augmentation."""


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
    def is_own(self) -> bool:
        """Whether it is a class of the user's."""
        return ":" in self.name


class CodeSection(Section):
    """The user's own Python files: part of the result (docs/own-code.md)."""

    path: str = ""
    """Folder of the modules that the configuration names as `module:callable`; all files below it are copied into the
    line. Relative to the current folder, as all paths. Unset: those modules are installed."""
    requirements: str = ""
    """Requirements file of pip with what the code imports; `shardline images build` installs it."""


class InspectSection(Section):
    """What pages and artifacts show. Nothing here changes a result."""

    samples: Literal["show", "hide"] = "show"
    """Whether pictures, text and rows of samples are shown; `hide` keeps them off every page and artifact."""


class ScheduleSection(Section):
    """When the line runs by itself (`shardline schedule`)."""

    cron: str = ""
    """Minute, hour, day, month, weekday, e.g. `0 6 * * 1`; unset: it is not scheduled."""
    time_zone: str = "Etc/UTC"
    """Zone of `cron`, by its name in the IANA database, e.g. Europe/Berlin."""
