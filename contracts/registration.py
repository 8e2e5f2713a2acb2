"""What became of a run's export in the model registry: LINE/runs/RUN/results/register.json."""

from __future__ import annotations

from typing import Literal

from pydantic import ValidationError

from contracts import storage
from contracts.artifacts import Document
from contracts.errors import DataError
from contracts.result import RESULTS_FOLDER, run_uri


class Registration(Document):
    """The gate's decision, and the upload."""

    verdict: Literal["upload", "refuse"]
    unproven: list[str]
    """Why it is not proven; empty: it is."""
    upload: str = ""
    """The operation that has made the model, as Google's message GcpResources; empty: none has."""


def leave_registration(line: str, run_id: str, registration: Registration) -> None:
    """Write it down; a task that is tried again writes the same again."""
    storage.replace(_uri(line, run_id), (registration.model_dump_json(indent=1) + "\n").encode())


def find_registration(line: str, run_id: str) -> Registration | None:
    """Return what became of it; None: the gate has not decided.

    Raises:
        DataError: It is damaged.
    """
    try:
        return Registration.model_validate_json(storage.read_bytes(_uri(line, run_id)))
    except FileNotFoundError:
        return None
    except ValidationError as error:
        raise DataError(
            f"{_uri(line, run_id)} cannot be read: {str(error).splitlines()[0]}",
            allowed="what the gate has left",
            todo="run again",
        ) from None


def _uri(line: str, run_id: str) -> str:
    return storage.join(run_uri(line, run_id), RESULTS_FOLDER, "register.json")
