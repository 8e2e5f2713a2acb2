"""Findings of the checks before the first stage: one JSON document from `python -m trainer.check`.

`shardline run`, `plan` and `submit` ask for it (pipelines/checks.py).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from pydantic import BaseModel, ConfigDict

from contracts.errors import ConfigError, UserError


@dataclass(frozen=True)
class Problem:
    """A reason why a stage or a submission would fail, with the fields of a UserError."""

    given: str
    allowed: str
    todo: str

    @classmethod
    def of(cls, error: UserError, where: str = "") -> Problem:
        """Describe an error; `where` names the section that it is about."""
        given = f"{where}: {error.given}" if where else error.given
        return cls(given, error.allowed, error.todo)

    def error(self, further: Sequence[Problem] = ()) -> ConfigError:
        """Return it as an error with the same text; `further` problems are appended."""
        also = "".join(f"\n  also: {problem.given}" for problem in further)
        return ConfigError(self.given, allowed=self.allowed, todo=self.todo + also)


class Findings(BaseModel):
    """Results of checks, collected one after the other."""

    model_config = ConfigDict(extra="forbid", defer_build=True)

    problems: list[Problem] = []
    warnings: list[str] = []
    unchecked: list[str] = []
    """What could not be checked, with the reason."""

    @contextmanager
    def refusals(self) -> Iterator[None]:
        """Record a user error of the block as a problem."""
        try:
            yield
        except UserError as error:
            self.problems.append(Problem.of(error))

    def leave_unchecked(self, what: str, why: str) -> None:
        """Record what could not be checked, and why."""
        self.unchecked.append(f"unchecked, since {why}: {what}")
