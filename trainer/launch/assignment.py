"""Files between launcher and ranks: the assignment, and why a rank ended.

A failed rank writes an ErrorDocument to `ends/rank-R.json` in the attempt's folder. A rank without this file finished
or was killed.
"""

from __future__ import annotations

import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from contracts import storage
from contracts.errors import EXIT_USER_ERROR, ErrorDocument, PeerPreempted, Preempted
from contracts.scalars import SCALARS_FOLDER

ASSIGNMENT_NAME = "assignment.json"
ENDS_FOLDER = "ends"
_STOPPING_NAME = "stopping"
TENSORBOARD_FOLDER = "tensorboard"


class Assignment(BaseModel):
    """Parameters of all ranks of a machine."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    config: dict[str, Any]
    shards: str
    profile: str | None
    folder: str
    """URI of the training folder."""
    fingerprint: str
    made_from: dict[str, str]
    attempt: str
    """Attempt id of the first machine."""
    attempt_folder: str
    """Folder of this machine's events and `ends`."""
    ranks: int
    """Ranks of this machine."""
    threads: int
    """Threads per rank."""
    nodes: int = 1
    node_rank: int = 0
    began_at: float = Field(default_factory=time.monotonic)
    """Start of this machine's launcher on the clock of time.monotonic."""

    @property
    def world_size(self) -> int:
        """Ranks of all machines."""
        return self.ranks * self.nodes

    @property
    def tensorboard_folder(self) -> Path:
        """TensorBoard folder of rank 0; the launcher copies it if the training folder is in a bucket."""
        return self._log_folder(TENSORBOARD_FOLDER)

    @property
    def scalars_folder(self) -> Path:
        """Folder of rank 0's scalars as JSON lines; copied like TensorBoard's files."""
        return self._log_folder(SCALARS_FOLDER)

    def _log_folder(self, name: str) -> Path:
        local = storage.is_local(self.folder)
        return (storage.local_path(self.folder) if local else Path(self.attempt_folder)) / name

    def write(self) -> Path:
        """Write the assignment for the ranks, and return its path."""
        path, content = Path(self.attempt_folder) / ASSIGNMENT_NAME, self.model_dump_json(indent=1).encode()
        # A later start reuses an equal file, even if the disk is full.
        if not path.exists() or path.read_bytes() != content:
            storage.replace(storage.normalise(path), content)
        return path

    def write_end(self, rank: int, document: ErrorDocument) -> None:
        """Record why a rank ends, atomically; only the first record is kept."""
        self._ends_folder.mkdir(parents=True, exist_ok=True)
        path = self._ends_folder / f"rank-{rank}.json"
        if not path.exists():
            storage.replace(storage.normalise(path), document.model_dump_json(indent=1).encode())

    def read_ends(self) -> dict[int, ErrorDocument]:
        """Return why ranks of this machine ended, by rank, in order of the record times."""
        ends: list[tuple[int, int, ErrorDocument]] = []
        for path in self._ends_folder.glob("rank-*.json"):
            try:
                document = ErrorDocument.model_validate_json(path.read_bytes())
            except ValidationError as error:
                document = ErrorDocument.of(error)
            ends.append((path.stat().st_mtime_ns, int(path.stem.removeprefix("rank-")), document))
        return {rank: document for _, rank, document in sorted(ends, key=lambda end: end[:2])}

    def mark_stopping(self) -> None:
        """Record that the ranks agreed to stop and are saving, which extends their time limit."""
        with suppress(OSError):
            self._ends_folder.mkdir(parents=True, exist_ok=True)
            (self._ends_folder / _STOPPING_NAME).touch()

    def is_stopping(self) -> bool:
        """Return whether the ranks have agreed to stop."""
        return (self._ends_folder / _STOPPING_NAME).exists()

    def clear_ends(self) -> None:
        """Delete the records of the last start."""
        for path in self._ends_folder.glob("*"):
            path.unlink()

    @property
    def _ends_folder(self) -> Path:
        return Path(self.attempt_folder) / ENDS_FOLDER


def is_preemption(document: ErrorDocument) -> bool:
    """Return whether the ranks stopped because of a stop request to this machine."""
    return document.kind == Preempted.__name__


def has_stopped(document: ErrorDocument) -> bool:
    """Return whether a rank stopped by agreement, whichever machine got the request."""
    return document.kind in (Preempted.__name__, PeerPreempted.__name__)


def weight_of(document: ErrorDocument) -> int:
    """Return the priority of an error: 2 for user errors, 1 for errors with a step, else 0."""
    return 2 if document.exit_code == EXIT_USER_ERROR else int(document.step is not None)


def decisive_end(ends: dict[int, ErrorDocument], ranks: int) -> ErrorDocument | None:
    """Return the error that caused the others; None if the cause is a rank that was killed.

    One preempted rank is enough, since its machine is taken away. The lowest of several is used: only rank 0 knows
    whether the last step was saved in time. `ends` are in order of the record times.
    """
    documents = list(ends.values())
    # Peers of a rank that ran out of memory may record the lost connection first.
    heaviest = max(documents, key=weight_of, default=None)
    if heaviest is not None and weight_of(heaviest):
        return heaviest
    preempted = [rank for rank, document in ends.items() if is_preemption(document)]
    if preempted:
        return ends[min(preempted)]
    failed = [document for document in documents if not has_stopped(document)]
    if failed:
        return failed[0]
    return ends[min(ends)] if len(documents) == ranks else None
