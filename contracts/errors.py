"""The errors that end a command, and the exit code each one means.

    ShardlineError                 70  a fault of ours
    ├── UserError                   2  what was given cannot work; never retried
    │   ├── ConfigError                the configuration or the command line
    │   ├── DataError                  the source, the shards or another input document
    │   ├── ModelError                 the model that the configuration names
    │   └── StorageError               a URI that cannot be used
    ├── TryAgain                   75  hung, or busy: another attempt may succeed
    │   └── Preempted                  this machine was told to stop, and training stopped in agreement
    │       └── PeerPreempted          another machine of the job was
    └── CheckFailed                 1  the "no" of a check

A stage that fails leaves its error as JSON (`ErrorDocument`), since orchestrators lose exit codes.
"""

from __future__ import annotations

import signal
from typing import ClassVar

from pydantic import BaseModel, ConfigDict

EXIT_OK = 0
EXIT_CHECK_FAILED = 1
EXIT_USER_ERROR = 2
EXIT_UNPROVEN = 3
"""Of `shardline verify` alone: nothing is wrong, and part of the export has not run on its GPU yet."""
EXIT_FAULT = 70
EXIT_TRY_AGAIN = 75
_SIGNAL_EXIT_BASE = 128
INTERRUPTED = "Interrupted"


class ShardlineError(Exception):
    """A fault of ours, or the base of the errors below."""

    exit_code: ClassVar[int] = EXIT_FAULT
    step: int | None = None
    """Of an error that is final when two attempts in a row end by it at the same step: that step."""


class UserError(ShardlineError):
    """What the user gave cannot work.

    Args:
        given: What was given, in the user's own terms.
        allowed: What is allowed instead.
        todo: What to do next.
    """

    exit_code: ClassVar[int] = EXIT_USER_ERROR

    def __init__(self, given: str, *, allowed: str, todo: str) -> None:
        super().__init__(f"{given}\n  allowed: {allowed}\n  to do: {todo}")
        self.given = given
        self.allowed = allowed
        self.todo = todo

    def __reduce__(self) -> tuple[object, ...]:
        # Pickling, e.g. by DataLoader workers and Beam, does not support keyword-only arguments.
        return (_rebuild, (type(self), self.given, self.allowed, self.todo))


def _rebuild(kind: type[UserError], given: str, allowed: str, todo: str) -> UserError:
    return kind(given, allowed=allowed, todo=todo)


class ConfigError(UserError):
    """The configuration or the command line."""


class DataError(UserError):
    """The source, the shards, or another input document."""


class ModelError(UserError):
    """The model that the configuration names."""


class StorageError(UserError):
    """A URI that cannot be used."""


class TryAgain(ShardlineError):
    """Preempted, hung, or busy: another attempt may succeed."""

    exit_code: ClassVar[int] = EXIT_TRY_AGAIN


class Preempted(TryAgain):
    """This machine received a stop signal or notice; the work is saved, and the next attempt starts elsewhere."""


class PeerPreempted(Preempted):
    """Another machine of the job was preempted, and all stopped in agreement; this one waits for its return."""


class CheckFailed(ShardlineError):
    """The "no" of a check."""

    exit_code: ClassVar[int] = EXIT_CHECK_FAILED


class ErrorDocument(BaseModel):
    """error.json of a failed stage, from which another process can raise the same error."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: str
    exit_code: int
    message: str
    traceback: str = ""
    step: int | None = None
    """Of an error that is final when two attempts in a row end by it at the same step: that step."""

    @classmethod
    def of(cls, error: BaseException, traceback: str = "") -> ErrorDocument:
        """Describe `error`; an exception of another type counts as a fault of ours."""
        if isinstance(error, KeyboardInterrupt):
            return cls.interrupted(signal.SIGINT)
        code = error.exit_code if isinstance(error, ShardlineError) else EXIT_FAULT
        message = str(error) if isinstance(error, ShardlineError) else f"{type(error).__name__}: {error}"
        # A forwarded error keeps its kind.
        document = getattr(error, "document", None)
        kind = document.kind if isinstance(document, cls) else type(error).__name__
        step = error.step if isinstance(error, ShardlineError) else None
        return cls(kind=kind, exit_code=code, message=message, traceback=traceback, step=step)

    @classmethod
    def interrupted(cls, number: signal.Signals) -> ErrorDocument:
        """Describe the end by a user's signal, with the exit code that shells give it."""
        message = f"interrupted by {number.name}; the same command again continues"
        return cls(kind=INTERRUPTED, exit_code=_SIGNAL_EXIT_BASE + number, message=message)

    def to_error(self) -> ShardlineError:
        """Return an error that ends this process the same way."""
        return TryAgain(self.message) if self.exit_code == TryAgain.exit_code else ForwardedError(self)


class ForwardedError(ShardlineError):
    """An error of a rank, of another machine or of an earlier attempt, forwarded with its exit code."""

    def __init__(self, document: ErrorDocument) -> None:
        super().__init__(document.message)
        self.document = document
        self.exit_code = document.exit_code  # type: ignore[misc]
