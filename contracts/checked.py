"""Checks of a configuration before its first stage: what they are for, and what they answer.

`python -m trainer.check` prints one `CheckAnswer` as the last line of stdout; pipelines/rules/checks.py asks it for
`shardline run`, `plan` and `submit`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from pydantic import BaseModel, ConfigDict

from contracts.errors import UserError

THIS_MACHINE = "this-machine"
OFFLINE = "no bucket is asked offline"


class _Model(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)


class PlannedMachine(_Model):
    """A kind of machine that jobs are planned for."""

    label: str
    """E.g. `g2-standard-24 with 2 x NVIDIA_L4`."""
    gpus: int = 0
    gpu: str = ""
    """Name of its GPUs, e.g. L4; empty: it has none."""
    capability: str = ""
    """Compute capability of its GPUs, e.g. sm89."""


class PlannedPlace(_Model):
    """Where jobs are planned to run."""

    training: PlannedMachine
    export: PlannedMachine
    nodes: int = 1
    """Machines that train together."""


class Finding(_Model):
    """Why a stage would fail, in the terms of an error."""

    given: str
    allowed: str
    todo: str

    @classmethod
    def of(cls, error: UserError) -> Finding:
        """Describe an error."""
        return cls(given=error.given, allowed=error.allowed, todo=error.todo)


class Unchecked(_Model):
    """What could not be looked at."""

    what: str
    why: str

    def __str__(self) -> str:
        return f"unchecked, since {self.why}: {self.what}"


class CheckAnswer(_Model):
    """What a check has found."""

    problems: list[Finding] = []
    warnings: list[str] = []
    """What is no mistake by itself, but should be known."""
    unchecked: list[Unchecked] = []


@dataclass
class Findings:
    """Collects what checks find, one after the other."""

    problems: list[Finding] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    unchecked: list[Unchecked] = field(default_factory=list)

    @contextmanager
    def refusals(self) -> Iterator[None]:
        """Take a user error of the block as a problem."""
        try:
            yield
        except UserError as error:
            self.problems.append(Finding.of(error))

    def leave_unchecked(self, what: str, why: str) -> None:
        """Note what could not be looked at; `why` follows `since`."""
        self.unchecked.append(Unchecked(what=what, why=why))

    def answer(self) -> CheckAnswer:
        """Return all of it, no problem twice."""
        return CheckAnswer(
            problems=list(dict.fromkeys(self.problems)),
            warnings=list(dict.fromkeys(self.warnings)),
            unchecked=self.unchecked,
        )
