"""The memory of a job between its attempts: how many brought no new checkpoint, and the error that ended the job.

It lies in `jobs/JOB/` beside the stage's outputs: ended.json, create-only, and attempts.json, written by the first
machine's launcher alone. A platform may start again whatever ends with an exit code other than 0 (Vertex AI by one
reading of its pages: docs/vertex.md): an attempt that finds ended.json ends at once, with the same error. A job without
an id is this one command: nothing is written, attempts are counted in memory.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Protocol

from pydantic import BaseModel, ConfigDict, ValidationError

from contracts import storage
from contracts.artifacts import MANIFEST_NAME
from contracts.errors import EXIT_FAULT, EXIT_TRY_AGAIN, EXIT_USER_ERROR, ErrorDocument, ToldError

JOBS_FOLDER, ENDED_NAME, ATTEMPTS_NAME = "jobs", "ended.json", "attempts.json"
# Kind of the error that says that a job's attempts lead nowhere.
CRASH_LOOP = "CrashLoop"


class JobRecord:
    """The error that has ended a job for good, and the count of its attempts, in jobs/JOB below `place`."""

    def __init__(self, place: str, job_id: str) -> None:
        self.folder = storage.join(place, JOBS_FOLDER, job_id) if job_id else None
        self.job_id = job_id

    def require_open(self) -> None:
        """Raise the error that has ended this job, if one has (ToldError)."""
        if self.folder is None:
            return
        try:
            content = storage.read_bytes(storage.join(self.folder, ENDED_NAME))
        except FileNotFoundError:
            return
        document = ErrorDocument.model_validate_json(content)
        message = f"an earlier attempt of job {self.job_id} has ended it: {document.message}"
        raise ToldError(document.model_copy(update={"message": message}))

    def end(self, document: ErrorDocument) -> None:
        """Commit an error that ends later attempts of this job; the first one stays."""
        if self.folder is None:
            return
        with suppress(storage.AlreadyPublished):
            storage.publish(storage.join(self.folder, ENDED_NAME), document.model_dump_json(indent=1).encode())

    def read(self) -> Attempts:
        """Return what was kept of the attempts so far."""
        if self.folder is None:
            return Attempts()
        try:
            return Attempts.model_validate_json(storage.read_bytes(storage.join(self.folder, ATTEMPTS_NAME)))
        except (FileNotFoundError, ValidationError):
            # It only counts: a job that is told apart from a crash loop too late does no harm.
            return Attempts()

    def keep(self, attempts: Attempts) -> None:
        """Write what the next attempt has to know."""
        if self.folder is not None:
            storage.replace(storage.join(self.folder, ATTEMPTS_NAME), attempts.model_dump_json(indent=1).encode())


class Attempts(BaseModel):
    """Starts of a job's ranks, by the launcher or by the platform."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    fruitless: int = 0
    """Consecutive ones since the last new checkpoint, the one that runs included."""
    checkpoints: list[str] = []
    """Manifests in the training folder when the last one began."""


class StartCounter(Protocol):
    """Counts the starts of a job's ranks, and decides when they are too many."""

    def begin(self, end: ErrorDocument | None) -> ErrorDocument | None:
        """Count a start that is about to be made; return the error that ends the job where it must not be."""
        ...

    def told_to_stop(self) -> None:
        """Take the last start out of the count."""
        ...


class AttemptCounter:
    """Counts a job's consecutive starts without a new checkpoint."""

    def __init__(self, record: JobRecord, folder: str, max_attempts: int) -> None:
        self._record, self._folder, self._max_attempts = record, folder, max_attempts
        self._attempts = record.read()
        self._previous: ErrorDocument | None = None

    def begin(self, end: ErrorDocument | None) -> ErrorDocument | None:
        """Count a start that is about to be made; return the error that ends the job where it must not be.

        `end` is why the last one ended, where this launcher knows it.
        """
        previous, self._previous = self._previous, end
        is_same = end is not None and previous is not None and (end.kind, end.step) == (previous.kind, previous.step)
        if end is not None and end.step is not None and is_same:
            # An error that came back at the same step comes back again.
            return end.model_copy(update={"exit_code": EXIT_USER_ERROR})
        committed = self._committed()
        is_new = not set(committed) <= set(self._attempts.checkpoints)
        fruitless = 1 if is_new else self._attempts.fruitless + 1
        if fruitless > self._max_attempts:
            return self._given_up(end)
        self._attempts = Attempts(fruitless=fruitless, checkpoints=committed)
        self._record.keep(self._attempts)
        return None

    def told_to_stop(self) -> None:
        """Take the last start out of the count: a machine was taken away, and the training may be none the worse."""
        self._attempts = self._attempts.model_copy(update={"fruitless": max(0, self._attempts.fruitless - 1)})
        self._record.keep(self._attempts)

    def _committed(self) -> list[str]:
        """Return the names of all manifests below the training folder."""
        found = storage.list_objects(self._folder)
        return sorted(entry.name for entry in found if entry.name.rpartition("/")[2] == MANIFEST_NAME)

    def _given_up(self, end: ErrorDocument | None) -> ErrorDocument:
        reason = "without an error" if end is None else f"with: {end.message}"
        return ErrorDocument(
            kind=CRASH_LOOP,
            exit_code=EXIT_FAULT if end is None or end.exit_code == EXIT_TRY_AGAIN else end.exit_code,
            message=(
                f"{self._attempts.fruitless} attempts in a row have left no new checkpoint (resources.max_attempts = "
                f"{self._max_attempts}); the last one ended {reason}\n  to do: find out why training ends; let it "
                "save more often (checkpoint.every_steps), or raise resources.max_attempts"
            ),
            traceback="" if end is None else end.traceback,
        )
