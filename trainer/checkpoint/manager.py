"""Writes and finds the checkpoints of a training folder: what the loop talks to."""

from __future__ import annotations

import contextlib
import errno
import os
import queue
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from contracts import storage
from contracts.artifacts import MANIFEST_NAME, CheckpointManifest, FileEntry
from contracts.config import CheckpointSection
from contracts.errors import ShardlineError, StorageError, TryAgain, UserError
from trainer.checkpoint import CHECKPOINTS_FOLDER
from trainer.checkpoint.discovery import (
    Found,
    checkpoint_name,
    find_newest,
    list_checkpoints,
    record_attempt,
)
from trainer.checkpoint.framing import FileStream
from trainer.checkpoint.interval import Costs, interval_s, steps_until_due
from trainer.checkpoint.retention import retain
from trainer.checkpoint.staging import HostBuffer, StagedFile
from trainer.checkpoint.tensors import Groups, is_spread
from trainer.checkpoint.writer import Writer
from trainer.model import parameters_sha256
from trainer.phases import reached

# Checkpoints that fail one after another before training ends: one may be a storm in the bucket, three are no accident.
MAX_FAILURES = 3
_NO_SPACE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


@dataclass(frozen=True)
class Peers:
    """The ranks that write together.

    Args:
        rank: This rank.
        ranks: Number of ranks.
        group: A gloo group of all ranks for nothing but this: a thread uses it beside training. None: no group has rows
            (trainer/checkpoint/tensors.py), and rank 0 writes alone.
    """

    rank: int = 0
    ranks: int = 1
    group: dist.ProcessGroup | None = None


class CheckpointManager:
    """The checkpoints of one training folder, seen from one rank.

    Args:
        folder_uri: The training folder.
        attempt: Id of the attempt.
        rules: The configuration's section.
        peers: The ranks.
        pinned: Whether the state is on a GPU.
        log: Takes what a user should read; called from a thread too.
    """

    def __init__(
        self,
        folder_uri: str,
        *,
        attempt: str,
        rules: CheckpointSection,
        peers: Peers | None = None,
        pinned: bool = False,
        log: Callable[[str], None] = lambda message: None,
    ) -> None:
        self.folder_uri = storage.join(folder_uri, CHECKPOINTS_FOLDER)
        self._costs = Costs()
        self._attempt, self._rules, self._log = attempt, rules, log
        self._peers = peers or Peers()
        self._number = 0
        self._records: dict[str, int] = {}
        self._buffers = [
            HostBuffer(self._peers.rank, self._peers.ranks, pinned=pinned) for _ in range(rules.num_buffers)
        ]
        self._writer = Writer(rules.num_buffers)
        self._failures: list[Exception] = []
        self._durable_s: queue.SimpleQueue[float] = queue.SimpleQueue()
        self._last_save = time.monotonic()

    # --- finding ------------------------------------------------------------------------------------------------------

    def resume(self) -> Found:
        """Find the newest valid checkpoint and open this attempt; all ranks together, before the first save.

        Rank 0 looks, says what it passed over, and leaves the record of what this attempt resumes from.
        """
        answer: list[tuple[str, int]] = [("", 0)]
        found = Found("", None, [])
        if self._peers.rank == 0:
            found = self.newest_valid()
            for skipped in found.skipped:
                self._log(f"skipped checkpoint {skipped}")
            answer[0] = (found.uri, record_attempt(self.folder_uri, self._attempt, found))
        if self._peers.ranks > 1:
            dist.broadcast_object_list(answer, src=0)
        uri, self._number = answer[0]
        self._last_save = time.monotonic()
        if self._peers.rank == 0 or not uri:
            return found
        return Found(uri, CheckpointManifest.load(uri), [])

    def newest_valid(self) -> Found:
        """Return the newest checkpoint that counts and is whole."""
        return find_newest(self.folder_uri, list_checkpoints(self.folder_uri, self._records))

    def find(self, step: int) -> Found:
        """Return the valid checkpoint of a step."""
        return find_newest(self.folder_uri, list_checkpoints(self.folder_uri, self._records), at_step=step)

    # --- saving -------------------------------------------------------------------------------------------------------

    def save(self, manifest: CheckpointManifest, groups: Groups, *, required: bool = False) -> bool:
        """Copy the state, and have it written and committed in the background; return whether that has begun.

        All ranks call it. Without rows in a group only rank 0 does anything.

        Args:
            manifest: The manifest without files, attempt and parameters_sha256.
            groups: Tensors by name, in groups by name.
            required: Wait for a running write instead of leaving this checkpoint out.

        Raises:
            ShardlineError: Writing an earlier one failed, in a way or so often that going on makes no sense.
        """
        spread = any(is_spread(group) for group in groups.values())
        if not spread and self._peers.rank != 0:
            return True
        buffer = self._take_buffer(spread, required)
        if buffer is None:
            if self._peers.rank == 0:
                self._log(
                    f"no checkpoint at step {manifest.step}: the one before is still being written "
                    f"(checkpoint.num_buffers = {self._rules.num_buffers})"
                )
            return False
        reached("staging")
        # Without a wait for the buffer: a checkpoint of an interval never waits.
        self._last_save = started = time.monotonic()
        files = self._buffers[buffer].stage(groups)
        self._costs.stalled(time.monotonic() - started)
        self._writer.submit(buffer, lambda: self._write(manifest, files, spread, started))
        return True

    def wait(self) -> None:
        """Wait until everything that was begun is durable.

        Raises:
            ShardlineError: The last one could not be written (OSError likewise).
        """
        self._writer.wait()
        if self._failures:
            raise self._failures[-1]

    def step_took(self, seconds: float) -> None:
        """Take in the time of an optimizer step, without what a save kept it waiting: slower ones are a save's cost."""
        done = not self._durable_s.empty()
        self._costs.step_took(seconds, beside_writing=done or self._writer.is_busy)
        while not self._durable_s.empty():
            self._costs.became_durable(self._durable_s.get())

    def steps_until_due(self) -> int:
        """Return after how many steps a checkpoint is due, where every_steps does not say; asked of rank 0."""
        seconds = interval_s(self._rules, self._costs)
        return steps_until_due(seconds, time.monotonic() - self._last_save, self._costs.step_s or 1.0)

    def _take_buffer(self, spread: bool, required: bool) -> int | None:
        """Return a free buffer, if there is one, and raise what went wrong until then."""
        if not spread or self._peers.ranks == 1:
            return self._writer.take_buffer(wait=required)
        # Rank 0 decides: it is the last to be done with a checkpoint, since it waits for the others and commits.
        buffer = self._writer.take_buffer(wait=required) if self._peers.rank == 0 else None
        answer = [buffer is not None]
        dist.broadcast_object_list(answer, src=0)
        if self._peers.rank == 0 or not answer[0]:
            return buffer
        return self._writer.take_buffer(wait=True)

    # --- in the thread ------------------------------------------------------------------------------------------------

    def _write(self, manifest: CheckpointManifest, files: list[StagedFile], spread: bool, started: float) -> None:
        uri = storage.join(self.folder_uri, checkpoint_name(manifest.step, self._number))
        try:
            entries = self._write_files(uri, files, spread)
            if self._peers.rank == 0:
                manifest = self._commit(uri, manifest, files, entries)
        except (OSError, ShardlineError, storage.AlreadyPublished) as error:
            self._give_up(uri, error)
            return
        self._failures.clear()
        if self._peers.rank == 0:
            self._durable_s.put(time.monotonic() - started)
            self._retain(manifest)

    def _write_files(self, uri: str, files: list[StagedFile], spread: bool) -> list[FileEntry]:
        """Write this rank's files; return those of all ranks on rank 0."""
        reached("writing")
        deadline = time.monotonic() + self._rules.write_timeout_s
        entries, error = [], None
        try:
            for file in files:
                stream: Any = _BoundedStream(file, deadline)
                crc32c = storage.publish_stream(storage.join(uri, file.name), stream, stream.num_bytes)
                entries.append(FileEntry(name=file.name, bytes=stream.num_bytes, crc32c=crc32c))
        except (OSError, ShardlineError, storage.AlreadyPublished) as failure:
            if not spread or self._peers.group is None:
                raise
            error = failure
        if not spread or self._peers.group is None:
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
        dist.gather_object(mine, answers, dst=0, group=self._peers.group)
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
        update = {
            "files": entries,
            "attempt": self._number,
            "parameters_sha256": parameters_sha256(whole[0].tensors) if whole else "",
        }
        manifest = manifest.model_copy(update=update)
        reached("before-manifest")
        listing = list_checkpoints(self.folder_uri, self._records)
        if listing.newest_attempt > self._number:
            raise Superseded(
                f"attempt {listing.newest_attempt} has begun since, at step "
                f"{listing.resumed_at[listing.newest_attempt]}: what this process writes counts no more"
            )
        storage.publish(storage.join(uri, MANIFEST_NAME), manifest.to_json())
        reached("after-manifest")
        return manifest

    def _retain(self, manifest: CheckpointManifest) -> None:
        reached("retention")
        try:
            for gone in retain(list_checkpoints(self.folder_uri, self._records), manifest, self._rules):
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
        hopeless = isinstance(error, UserError | Superseded)
        if isinstance(error, OSError) and error.errno in _NO_SPACE:
            error = StorageError(
                f"{storage.display(uri)} cannot be written: {os.strerror(error.errno)}",
                allowed="room for checkpoint.keep_last + checkpoint.keep_best + 1 checkpoints",
                todo="make room, or lower checkpoint.keep_last; the same command continues from the newest checkpoint",
            )
        self._failures.append(error)
        if hopeless or len(self._failures) >= MAX_FAILURES:
            raise error


def write_weights(folder_uri: str, state: dict[str, torch.Tensor]) -> FileEntry:
    """Write weights beside the document that will speak for them; whatever was there is no document's yet."""
    file = HostBuffer(0, 1, pinned=False).stage({"model": state})[0]
    uri = storage.join(folder_uri, file.name)
    storage.delete(uri)
    stream: Any = FileStream(file.header, file.data.numpy().data)
    crc32c = storage.publish_stream(uri, stream, stream.num_bytes)
    return FileEntry(name=file.name, bytes=stream.num_bytes, crc32c=crc32c)


class Superseded(TryAgain):
    """A later attempt works on the same folder."""


class _BoundedStream(FileStream):
    """A staged file that ends in an error when it takes too long."""

    def __init__(self, file: StagedFile, deadline: float) -> None:
        super().__init__(file.header, file.data.numpy().data)
        self._deadline = deadline

    def read(self, size: int | None = -1) -> bytes:
        """Return the next bytes.

        Raises:
            TryAgain: The time is over.
        """
        if time.monotonic() > self._deadline:
            raise TryAgain("it took longer than checkpoint.write_timeout_s")
        return super().read(size)
