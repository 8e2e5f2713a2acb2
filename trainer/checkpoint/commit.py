"""Writes what was staged and commits it: what the manager's thread does, on every rank that has something to write."""

from __future__ import annotations

import contextlib
import errno
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from contracts import storage
from contracts.artifacts import MANIFEST_NAME, CheckpointManifest, FileEntry
from contracts.config import CheckpointSection, RunConfig
from contracts.errors import ShardlineError, StorageError, TryAgain, UserError
from trainer.checkpoint.discovery import Listing, checkpoint_name, list_checkpoints, require_newest
from trainer.checkpoint.framing import FileStream
from trainer.checkpoint.retention import Best, retain
from trainer.checkpoint.staging import HostBuffer, StagedFile
from trainer.model.build import parameters_sha256
from trainer.parallel.process_group import Rank

# Checkpoints that fail one after another before training ends: one may be a storm in the bucket, three are no accident.
MAX_FAILURES = 3
WRITE_TIMEOUT_S = 1800.0
"""Seconds after which writing a checkpoint is given up."""
_NO_SPACE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


@dataclass(frozen=True)
class Peers:
    """The ranks that write together.

    Args:
        rank: This rank.
        ranks: Number of ranks.
        group: A gloo group of all ranks for nothing but this: a thread uses it beside training. None: no group has rows
            (trainer/checkpoint/staging.py), and rank 0 writes alone.
    """

    rank: int = 0
    ranks: int = 1
    group: dist.ProcessGroup | None = None

    @classmethod
    def of(cls, rank: Rank, config: RunConfig) -> Peers:
        """Return the ranks of a training; all of them make this together, since it may make a group."""
        sharded = config.parallel.strategy == "fsdp" and rank.ranks > 1
        # A rank may write for that long before it tells what it has written.
        timeout = timedelta(seconds=WRITE_TIMEOUT_S + config.resources.setup_timeout_s)
        return cls(rank.rank, rank.ranks, dist.new_group(backend="gloo", timeout=timeout) if sharded else None)


class Committer:
    """One rank's part in writing checkpoints into a folder.

    Args:
        folder_uri: The folder of checkpoints.
        rules: The configuration's section.
        peers: The ranks.
        log: Takes what a user should read.
        on_piece: Called with each piece that is written.
        on_wait: Called when the files of this rank are written: given until when waiting for other ranks, and what
            commits, takes its time and still gets on; 0 at the end.
    """

    def __init__(
        self,
        folder_uri: str,
        *,
        rules: CheckpointSection,
        peers: Peers,
        log: Callable[[str], None],
        on_piece: Callable[[], None],
        on_wait: Callable[[float], None],
    ) -> None:
        self.folder_uri = folder_uri
        self.number = 0
        """Of this attempt: what it writes carries it."""
        self.best = Best()
        """Of what was committed; for rank 0."""
        self.failures: list[Exception] = []
        """Of the newest checkpoints, since the last one that was committed."""
        self._rules, self._peers, self._log = rules, peers, log
        self._on_piece, self._on_wait = on_piece, on_wait
        self._records: dict[str, int] = {}

    def listing(self) -> Listing:
        """Return what is in the folder now."""
        return list_checkpoints(self.folder_uri, self._records)

    def write(
        self, manifest: CheckpointManifest, files: list[StagedFile], *, sharded: bool
    ) -> CheckpointManifest | None:
        """Write this rank's files and, on rank 0, commit them.

        Returns:
            The manifest that was committed; None on other ranks, and where something went wrong that may pass.

        Args:
            manifest: The manifest without files, attempt, parameters_sha256 and what it says of the best.
            files: What this rank has staged.
            sharded: Whether all ranks write.

        Raises:
            ShardlineError: Training cannot go on (OSError likewise).
        """
        uri = storage.join(self.folder_uri, checkpoint_name(manifest.step, self.number))
        try:
            entries = self._write_files(uri, files, sharded)
            committed = self._commit(uri, manifest, files, entries) if self._peers.rank == 0 else None
        except (OSError, ShardlineError, storage.AlreadyPublished) as error:
            self._give_up(uri, error)
            return None
        finally:
            self._on_wait(0.0)
        self.failures.clear()
        return committed

    def _write_files(self, uri: str, files: list[StagedFile], sharded: bool) -> list[FileEntry]:
        """Write this rank's files; return those of all ranks on rank 0."""
        deadline = time.monotonic() + WRITE_TIMEOUT_S
        entries, error = [], None
        try:
            for file in files:
                stream: Any = _BoundedStream(file, deadline, self._on_piece)
                crc32c = storage.publish_stream(storage.join(uri, file.name), stream, stream.num_bytes)
                entries.append(FileEntry(name=file.name, bytes=stream.num_bytes, crc32c=crc32c))
        except (OSError, ShardlineError, storage.AlreadyPublished) as failure:
            if not sharded or self._peers.group is None:
                raise
            error = failure
        self._on_wait(deadline)
        if not sharded or self._peers.group is None:
            return entries
        return self._gather(entries, error)

    def _gather(self, entries: list[FileEntry], error: Exception | None) -> list[FileEntry]:
        """Return the entries of all ranks on rank 0; raise there what went wrong on any."""
        mine = (
            [entry.model_dump() for entry in entries],
            None if error is None else f"{type(error).__name__}: {error}",
        )
        answers: list[tuple[list[dict[str, object]], str | None]] | None
        answers = [mine] * self._peers.ranks if self._peers.rank == 0 else None
        try:
            dist.gather_object(mine, answers, dst=0, group=self._peers.group)
        except RuntimeError as lost:
            raise PeersLost(f"ranks could not tell the first one what they have written: {lost}") from lost
        if error is not None:
            raise error
        for rank, (_, failure) in enumerate(answers or []):
            if failure is not None:
                raise TryAgain(f"rank {rank} could not write its part: {failure}")
        return [FileEntry.model_validate(entry) for part, _ in answers or [] for entry in part]

    def _commit(
        self, uri: str, manifest: CheckpointManifest, files: list[StagedFile], entries: list[FileEntry]
    ) -> CheckpointManifest:
        """Publish the manifest, which makes the checkpoint exist; return it."""
        whole = [file for file in files if file.group == "model" and file.is_whole]
        best = self.best.or_better(manifest, self._rules.best_metric)
        update = {
            "files": entries,
            "attempt": self.number,
            "parameters_sha256": parameters_sha256(whole[0].tensors) if whole else "",
            "best_step": best.step,
            "best_metrics": dict(best.metrics),
        }
        manifest = manifest.model_copy(update=update)
        require_newest(self.folder_uri, self.listing(), self.number)
        storage.publish(storage.join(uri, MANIFEST_NAME), manifest.to_json())
        self.best = best
        return manifest

    def retain(self, newest: CheckpointManifest) -> None:
        """Delete what need not stay beside the newest checkpoint; rank 0."""
        try:
            for gone in retain(self.listing(), newest, self._rules):
                self._log(f"deleted {storage.display(gone)}: an earlier attempt did not finish it")
        except (OSError, ShardlineError) as error:
            # The checkpoint stands; what is left over goes next time.
            self._log(f"warning: old checkpoints could not be deleted ({type(error).__name__}: {error})")

    def _give_up(self, uri: str, error: Exception) -> None:
        """Say what went wrong, make room, and decide whether training can go on."""
        if self._peers.rank == 0:
            self._log(f"warning: {storage.display(uri)} could not be written ({type(error).__name__}: {error})")
            with contextlib.suppress(OSError, ShardlineError):
                storage.delete_tree(uri, manifest_name=MANIFEST_NAME)
        hopeless = isinstance(error, UserError | PeersLost)
        if isinstance(error, OSError) and error.errno in _NO_SPACE:
            error = StorageError(
                f"{storage.display(uri)} cannot be written: {os.strerror(error.errno)}",
                allowed="room for checkpoint.keep_last + 2 checkpoints",
                todo="make room, or lower checkpoint.keep_last; the same command continues from the newest checkpoint",
            )
        self.failures.append(error)
        if hopeless or len(self.failures) >= MAX_FAILURES:
            raise error


def write_weights(folder_uri: str, state: dict[str, torch.Tensor]) -> FileEntry:
    """Write weights beside the document that will speak for them; whatever was there is no document's yet."""
    file = HostBuffer(0, 1, pinned=False).stage({"model": state})[0]
    uri = storage.join(folder_uri, file.name)
    storage.delete(uri)
    stream: Any = FileStream(file.header, file.data.numpy().data)
    crc32c = storage.publish_stream(uri, stream, stream.num_bytes)
    return FileEntry(name=file.name, bytes=stream.num_bytes, crc32c=crc32c)


class PeersLost(TryAgain):
    """A rank did not answer: the group's connections are closed for good, so no later checkpoint could be written."""


class _BoundedStream(FileStream):
    """A staged file that ends in an error when it takes too long."""

    def __init__(self, file: StagedFile, deadline: float, on_piece: Callable[[], None]) -> None:
        super().__init__(file.header, file.data.numpy().data)
        self._deadline, self._on_piece = deadline, on_piece

    def read(self, size: int | None = -1) -> bytes:
        """Return the next bytes.

        Raises:
            TryAgain: The time is over.
        """
        if time.monotonic() > self._deadline:
            raise TryAgain(f"it took longer than {WRITE_TIMEOUT_S:.0f} s")
        self._on_piece()
        return super().read(size)
