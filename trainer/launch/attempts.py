"""Job state between attempts: the number of attempts without a new checkpoint, and the error that ended the job.

Folder `jobs/JOB/` beside the stage's outputs has ended.json (create-only) and attempts.json, written by the first
machine's launcher only. A platform may restart any process with an exit code other than 0 (see docs/vertex.md): an
attempt that finds ended.json fails at once with the same error. Without a job id, attempts are counted in memory.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Protocol

from pydantic import BaseModel, ConfigDict, ValidationError

from contracts import storage
from contracts.artifacts import MANIFEST_NAME
from contracts.errors import EXIT_FAULT, EXIT_TRY_AGAIN, EXIT_USER_ERROR, ErrorDocument, ForwardedError

JOBS_FOLDER, ENDED_NAME, ATTEMPTS_NAME = "jobs", "ended.json", "attempts.json"
# Error kind of a job with too many attempts without a new checkpoint.
CRASH_LOOP = "CrashLoop"


class JobRecord:
    """Final error and attempt count of a job, in jobs/JOB below `place`."""

    def __init__(self, place: str, job_id: str) -> None:
        self.folder = storage.join(place, JOBS_FOLDER, job_id) if job_id else None
        self.job_id = job_id

    def require_open(self) -> None:
        """Raise the error that ended this job, if any (ForwardedError)."""
        if self.folder is None:
            return
        try:
            content = storage.read_bytes(storage.join(self.folder, ENDED_NAME))
        except FileNotFoundError:
            return
        document = ErrorDocument.model_validate_json(content)
        message = f"an earlier attempt of job {self.job_id} has ended it: {document.message}"
        raise ForwardedError(document.model_copy(update={"message": message}))

    def end(self, document: ErrorDocument) -> None:
        """Record an error that also ends later attempts of this job; only the first one is kept."""
        if self.folder is None:
            return
        with suppress(storage.AlreadyPublished):
            storage.publish(storage.join(self.folder, ENDED_NAME), document.model_dump_json(indent=1).encode())

    def read(self) -> Attempts:
        """Return the recorded attempts."""
        if self.folder is None:
            return Attempts()
        try:
            return Attempts.model_validate_json(storage.read_bytes(storage.join(self.folder, ATTEMPTS_NAME)))
        except (FileNotFoundError, ValidationError):
            # Only a count: detecting a crash loop late is harmless.
            return Attempts()

    def keep(self, attempts: Attempts) -> None:
        """Record the attempts."""
        if self.folder is not None:
            storage.replace(storage.join(self.folder, ATTEMPTS_NAME), attempts.model_dump_json(indent=1).encode())


class Attempts(BaseModel):
    """Count of starts of a job's ranks, by launcher or platform."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    fruitless: int = 0
    """Consecutive starts since the last new checkpoint, including the current one."""
    checkpoints: list[str] = []
    """Manifests in the training folder at the last start."""


class StartCounter(Protocol):
    """Counts starts of a job's ranks, and ends the job if there are too many."""

    def begin(self, end: ErrorDocument | None) -> ErrorDocument | None:
        """Count a new start; return an error if the job must end instead."""
        ...

    def uncount_start(self) -> None:
        """Uncount the last start."""
        ...


class AttemptCounter:
    """Counts a job's consecutive starts without a new checkpoint."""

    def __init__(self, record: JobRecord, folder: str, max_attempts: int) -> None:
        self._record, self._folder, self._max_attempts = record, folder, max_attempts
        self._attempts = record.read()
        self._previous: ErrorDocument | None = None

    def begin(self, end: ErrorDocument | None) -> ErrorDocument | None:
        """Count a new start; return an error if the job must end instead.

        `end` is why the last start ended, if known.
        """
        previous, self._previous = self._previous, end
        is_same = end is not None and previous is not None and (end.kind, end.step) == (previous.kind, previous.step)
        if end is not None and end.step is not None and is_same:
            # The same error at the same step is permanent.
            return end.model_copy(update={"exit_code": EXIT_USER_ERROR})
        committed = self._committed()
        has_new_checkpoint = not set(committed) <= set(self._attempts.checkpoints)
        fruitless = 1 if has_new_checkpoint else self._attempts.fruitless + 1
        if fruitless > self._max_attempts:
            return self._crash_loop(end)
        self._attempts = Attempts(fruitless=fruitless, checkpoints=committed)
        self._record.keep(self._attempts)
        return None

    def uncount_start(self) -> None:
        """Uncount the last start: a preemption is no sign of a crash loop."""
        self._attempts = self._attempts.model_copy(update={"fruitless": max(0, self._attempts.fruitless - 1)})
        self._record.keep(self._attempts)

    def _committed(self) -> list[str]:
        """Return the names of all manifests below the training folder."""
        objects = storage.list_objects(self._folder)
        return sorted(entry.name for entry in objects if entry.name.rpartition("/")[2] == MANIFEST_NAME)

    def _crash_loop(self, end: ErrorDocument | None) -> ErrorDocument:
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
