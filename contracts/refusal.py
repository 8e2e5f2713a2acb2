"""An error that crosses from a Beam worker to whoever waits for the work: a command, or a task of a pipeline."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict

from contracts import storage
from contracts.errors import (
    ConfigError,
    DataError,
    ModelError,
    ShardlineError,
    StorageError,
    TryAgain,
    UserError,
)

REFUSAL_NAME = "refusal.json"


# By name; an error of a more special type comes back as the one of these that it is a case of.
_USER_ERRORS = {kind.__name__: kind for kind in (ConfigError, DataError, ModelError, StorageError)}


class Refusal(BaseModel):
    """One of our errors, in the parts it is made of."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: str
    """Name of its type."""
    message: str
    allowed: str = ""
    todo: str = ""

    @classmethod
    def of(cls, error: UserError | TryAgain) -> Refusal:
        """Take an error apart."""
        if isinstance(error, UserError):
            kind = next(name for name, kind in _USER_ERRORS.items() if isinstance(error, kind))
            return cls(kind=kind, message=error.given, allowed=error.allowed, todo=error.todo)
        return cls(kind="TryAgain", message=str(error))

    def to_error(self) -> ShardlineError:
        """Put it together again."""
        if self.kind == "TryAgain":
            return TryAgain(self.message)
        return _USER_ERRORS[self.kind](self.message, allowed=self.allowed, todo=self.todo)


def leave_refusal(output_uri: str, error: UserError | TryAgain) -> None:
    """Leave an error in an output folder for whoever waits for the work."""
    storage.replace(storage.join(output_uri, REFUSAL_NAME), Refusal.of(error).model_dump_json().encode())


def find_refusal(output_uri: str) -> ShardlineError | None:
    """Return the error that a worker left, if one did."""
    try:
        content = storage.read_bytes(storage.join(output_uri, REFUSAL_NAME))
    except (FileNotFoundError, NotADirectoryError):
        return None
    return Refusal.model_validate_json(content).to_error()
