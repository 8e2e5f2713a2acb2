"""What the launcher tells a rank (the assignment), and what a rank tells the launcher (its end).

Why a rank ended is in a file, `ends/rank-R.json` in the attempt's folder, an ErrorDocument: exit codes say too little.
A rank without one has finished, or was killed.
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
    """What a rank is told: everything but its rank."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    config: dict[str, Any]
    shards: str
    profile: str | None
    folder: str
    """URI of the training folder."""
    fingerprint: str
    made_from: dict[str, str]
    attempt: str
    """Of the first machine, on all machines."""
    attempt_folder: str
    """Path of this machine's events and ends."""
    ranks: int
    """Of this machine."""
    threads: int
    """Of each rank."""
    nodes: int = 1
    node_rank: int = 0
    began_at: float = Field(default_factory=time.monotonic)
    """When this machine's launcher began, on the clock of time.monotonic."""

    @property
    def world_size(self) -> int:
        """Ranks of all machines."""
        return self.ranks * self.nodes

    @property
    def tensorboard_folder(self) -> Path:
        """Where the first rank writes for TensorBoard; the launcher copies it to a training folder in a bucket."""
        return self._log_folder(TENSORBOARD_FOLDER)

    @property
    def scalars_folder(self) -> Path:
        """Where the first rank writes scalars as lines of JSON; copied as TensorBoard's files are."""
        return self._log_folder(SCALARS_FOLDER)

    def _log_folder(self, name: str) -> Path:
        local = storage.is_local(self.folder)
        return (storage.local_path(self.folder) if local else Path(self.attempt_folder)) / name

    def write(self) -> Path:
        """Write it for the ranks of this machine, and return the path."""
        path, content = Path(self.attempt_folder) / ASSIGNMENT_NAME, self.model_dump_json(indent=1).encode()
        # Of a later start it is the same, and a disk that is full meanwhile ends no training.
        if not path.exists() or path.read_bytes() != content:
            storage.replace(storage.normalise(path), content)
        return path

    def write_end(self, rank: int, document: ErrorDocument) -> None:
        """Record why a rank ends; the first record is kept, and the process may be killed at any point of this."""
        self._ends_folder.mkdir(parents=True, exist_ok=True)
        path = self._ends_folder / f"rank-{rank}.json"
        if not path.exists():
            storage.replace(storage.normalise(path), document.model_dump_json(indent=1).encode())

    def read_ends(self) -> dict[int, ErrorDocument]:
        """Return why ranks of this machine ended, by rank, in the order of the records."""
        ends: list[tuple[int, int, ErrorDocument]] = []
        for path in self._ends_folder.glob("rank-*.json"):
            try:
                document = ErrorDocument.model_validate_json(path.read_bytes())
            except ValidationError as error:
                document = ErrorDocument.of(error)
            ends.append((path.stat().st_mtime_ns, int(path.stem.removeprefix("rank-")), document))
        return {rank: document for _, rank, document in sorted(ends, key=lambda end: end[:2])}

    def mark_stopping(self) -> None:
        """Record that the ranks have agreed to stop, and save now; where the disk is full, they have less time."""
        with suppress(OSError):
            self._ends_folder.mkdir(parents=True, exist_ok=True)
            (self._ends_folder / _STOPPING_NAME).touch()

    def is_stopping(self) -> bool:
        """Return whether the ranks have agreed to stop."""
        return (self._ends_folder / _STOPPING_NAME).exists()

    def clear_ends(self) -> None:
        """Forget how the last start ended."""
        for path in self._ends_folder.glob("*"):
            path.unlink()

    @property
    def _ends_folder(self) -> Path:
        return Path(self.attempt_folder) / ENDS_FOLDER


def is_preemption(document: ErrorDocument) -> bool:
    """Return whether the ranks stopped because this machine was told to."""
    return document.kind == Preempted.__name__


def has_stopped(document: ErrorDocument) -> bool:
    """Return whether a rank stopped in agreement, whichever machine was told to."""
    return document.kind in (Preempted.__name__, PeerPreempted.__name__)


def weight_of(document: ErrorDocument) -> int:
    """Return how much an end explains: a user error most, then one that is final when it comes back at its step."""
    return 2 if document.exit_code == EXIT_USER_ERROR else int(document.step is not None)


def decisive_end(ends: dict[int, ErrorDocument], ranks: int) -> ErrorDocument | None:
    """Return the end that explains the others; None where a rank without one does: it was killed.

    One rank that was told to stop is enough: its machine goes away. Of several the lowest counts, since rank 0 alone
    knows whether the last step was saved in time. `ends` are in the order of the records.
    """
    documents = list(ends.values())
    # The peers of a rank that ran out of memory lose it at once, and may record that first.
    heaviest = max(documents, key=weight_of, default=None)
    if heaviest is not None and weight_of(heaviest):
        return heaviest
    told = [rank for rank, document in ends.items() if is_preemption(document)]
    if told:
        return ends[min(told)]
    failed = [document for document in documents if not has_stopped(document)]
    if failed:
        return failed[0]
    return ends[min(ends)] if len(documents) == ranks else None
