"""An error that crosses from a Beam worker to whoever waits for the work: a command, or a task of a pipeline."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict

from contracts import storage
from contracts.errors import DataError, ShardlineError, TryAgain, UserError

REFUSAL_NAME = "refusal.json"


class Refusal(BaseModel):
    """One of our errors, in the parts it is made of."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    again: bool
    """Whether another attempt may succeed."""
    message: str
    allowed: str = ""
    todo: str = ""

    @classmethod
    def of(cls, error: UserError | TryAgain) -> Refusal:
        """Take an error apart."""
        if isinstance(error, UserError):
            return cls(again=False, message=error.given, allowed=error.allowed, todo=error.todo)
        return cls(again=True, message=str(error))

    def to_error(self) -> ShardlineError:
        """Put it together again."""
        return TryAgain(self.message) if self.again else DataError(self.message, allowed=self.allowed, todo=self.todo)


def leave_refusal(output_uri: str, error: UserError | TryAgain) -> None:
    """Leave an error in an output folder for whoever waits for the work."""
    storage.replace(storage.join(output_uri, REFUSAL_NAME), Refusal.of(error).model_dump_json().encode())


def find_refusal(output_uri: str) -> ShardlineError | None:
    """Return the error that a worker left, if one did."""
    uri = storage.join(output_uri, REFUSAL_NAME)
    return Refusal.model_validate_json(storage.read_bytes(uri)).to_error() if storage.exists(uri) else None
