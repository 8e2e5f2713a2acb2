"""The marker that ends a job: an error that every later attempt of it would meet again.

A platform may start again whatever ends with an exit code other than 0 (Vertex AI by one reading of its pages:
docs/vertex.md), and so a mistake in a configuration would be paid for several times. Whoever finds that no later
attempt can succeed leaves `jobs/JOB/ended.json` beside the stage's outputs, create-only; an attempt of that job that
finds it ends at once, with the same error. Another job's id is another folder. Without an id nothing is kept.
"""

from __future__ import annotations

from contextlib import suppress

from contracts import storage
from contracts.errors import ErrorDocument, ShardlineError

JOBS_FOLDER = "jobs"
ENDED_NAME = "ended.json"


class ToldError(ShardlineError):
    """An error of a rank, of another machine or of an earlier attempt, told again with its exit code."""

    def __init__(self, document: ErrorDocument) -> None:
        super().__init__(document.message)
        self.document = document
        self.exit_code = document.exit_code  # type: ignore[misc]


class JobMarker:
    """Whether a job has ended for good.

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
