"""What is kept of a job between its attempts: how many brought no new checkpoint, and an error that ends the job.

It lies in `jobs/JOB/` beside the stage's outputs: ended.json, create-only, and attempts.json, written by the first
machine's launcher alone. A platform may start again whatever ends with an exit code other than 0 (Vertex AI by one
reading of its pages: docs/vertex.md): an attempt that finds ended.json ends at once, with the same error. A job without
an id is this one command: nothing is written, attempts are counted in memory.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TypeGuard

from pydantic import BaseModel, ConfigDict, ValidationError

from contracts import storage
from contracts.artifacts import MANIFEST_NAME
from contracts.errors import EXIT_FAULT, EXIT_TRY_AGAIN, EXIT_USER_ERROR, ErrorDocument, ToldError
from trainer.launch.assignment import has_stopped

JOBS_FOLDER, ENDED_NAME, ATTEMPTS_NAME = "jobs", "ended.json", "attempts.json"
# Kind of the error that says that a job's attempts lead nowhere.
CRASH_LOOP = "CrashLoop"


class JobRecord:
    """The memory of one job: the error that has ended it for good, and how many attempts it took.

    Args:
        place: URI of the folder that holds the stage's outputs.
        job_id: Empty: nothing is kept.
    """

    def __init__(self, place: str, job_id: str) -> None:
        self.folder = storage.join(place, JOBS_FOLDER, job_id) if job_id else None
        self.job_id = job_id

    def require_open(self) -> None:
        """Raise the error that has ended this job, if one has.

        Raises:
            ToldError: With the exit code of that error.
        """
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
        except FileNotFoundError:
            return Attempts()
        except ValidationError:
            # It only counts: a job that is told apart from a crash loop too late does no harm.
            return Attempts()

    def keep(self, attempts: Attempts) -> None:
        """Write what the next attempt has to know."""
        if self.folder is not None:
            storage.replace(storage.join(self.folder, ATTEMPTS_NAME), attempts.model_dump_json(indent=1).encode())


class Attempts(BaseModel):
    """Attempts of a job: starts of its ranks, by the launcher or by the platform."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    fruitless: int = 0
    """Consecutive ones since the last new checkpoint, the one that is about to begin included."""
    generation: int = -1
    """The newest one that was started."""
    checkpoints: list[str] = []
    """Committed ones when the last attempt began."""


class AttemptCounter:
    """Counts a job's consecutive attempts without a new committed checkpoint.

    Args:
        record: The job's memory.
        folder: URI of the training folder.
        max_attempts: How many there may be.
    """

    def __init__(self, record: JobRecord, folder: str, max_attempts: int) -> None:
        self._record = record
        self._folder = folder
        self._max_attempts = max_attempts
        self._attempts = record.read()
        self._counted = False
        self._last: ErrorDocument | None = None

    @property
    def generation(self) -> int:
        """The job's newest generation that was begun; -1: none."""
        return self._attempts.generation

    def begin(self, last: ErrorDocument | None, *, after: int = -1) -> int | ErrorDocument:
        """Count an attempt that is about to begin; one that was told to stop has not counted.

        Args:
            last: Why the last one ended, if it is known.
            after: The newest generation that anybody remembers.

        Returns:
            Its generation; or, where it must not begin, the error that ends the job.
        """
        if self._is_final(last):
            return last.model_copy(update={"exit_code": EXIT_USER_ERROR})
        self._last = last
        if last is not None and has_stopped(last):
            self.told_to_stop()
        committed = self._committed()
        is_new = not set(committed) <= set(self._attempts.checkpoints)
        fruitless = 1 if is_new else self._attempts.fruitless + 1
        if fruitless > self._max_attempts:
            return self._given_up(last)
        generation = max(self._attempts.generation, after) + 1
        self._attempts = Attempts(fruitless=fruitless, generation=generation, checkpoints=committed)
        self._record.keep(self._attempts)
        self._counted = True
        return generation

    def told_to_stop(self) -> None:
        """Take the attempt that has ended out of the count: its machine was taken away, and it may be none the worse.

        Nobody may call this while `begin` runs.
        """
        if self._counted:
            self._counted = False
            self._attempts = self._attempts.model_copy(update={"fruitless": max(0, self._attempts.fruitless - 1)})
            self._record.keep(self._attempts)

    def _is_final(self, last: ErrorDocument | None) -> TypeGuard[ErrorDocument]:
        """Whether attempts ended twice in a row by an error that is final when it comes back at the same step."""
        before = self._last
        if last is None or before is None or last.step is None:
            return False
        return (last.kind, last.step) == (before.kind, before.step)

    def _committed(self) -> list[str]:
        """Return the names of all manifests below the training folder, whatever wrote them."""
        found = storage.list_objects(self._folder)
        return sorted(entry.name for entry in found if entry.name.rpartition("/")[2] == MANIFEST_NAME)

    def _given_up(self, last: ErrorDocument | None) -> ErrorDocument:
        reason = "without a word" if last is None else f"with: {last.message}"
        code = EXIT_FAULT if last is None or last.exit_code == EXIT_TRY_AGAIN else last.exit_code
        return ErrorDocument(
            kind=CRASH_LOOP,
            exit_code=code,
            message=(
                f"{self._attempts.fruitless} attempts in a row have left no new checkpoint (resources.max_attempts = "
                f"{self._max_attempts}); the last one ended {reason}\n  to do: find out why training ends; let it "
                "save more often (checkpoint.every_steps), or raise resources.max_attempts"
            ),
            traceback="" if last is None else last.traceback,
        )
