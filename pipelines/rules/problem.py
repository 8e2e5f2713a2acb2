"""A finding of `shardline plan`: why a submission would fail."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from contracts.errors import ConfigError, UserError


@dataclass(frozen=True)
class Problem:
    """Why a submission would fail, in the terms of an error."""

    given: str
    allowed: str
    todo: str

    @classmethod
    def of(cls, error: UserError, where: str = "") -> Problem:
        """Describe an error; `where` names the section that it is about."""
        given = f"{where}: {error.given}" if where else error.given
        return cls(given, error.allowed, error.todo)

    def error(self, others: Sequence[Problem] = ()) -> ConfigError:
        """Return it as an error, word for word; `others` are named behind it."""
        also = "".join(f"\n  also: {problem.given}" for problem in others)
        return ConfigError(self.given, allowed=self.allowed, todo=self.todo + also)
