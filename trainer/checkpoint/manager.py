"""Checkpoint manager of the training loop: resume, background saves, and the schedule."""

from __future__ import annotations

import contextlib
import errno
import os
import threading
import time
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from contracts import storage
from contracts.artifacts import MANIFEST_NAME, CheckpointManifest, FileEntry, tensor_file
from contracts.config import CheckpointSection
from contracts.errors import ShardlineError, StorageError, TryAgain, UserError
from trainer.checkpoint import CHECKPOINTS_FOLDER
from trainer.checkpoint.discovery import (
    Best,
    FoundCheckpoint,
    Listing,
    checkpoint_name,
    find_best,
    find_newest,
    list_checkpoints,
    record_attempt,
    require_newest,
    retain,
)
from trainer.checkpoint.staging import HostBuffer, StagedFile, Tensors, is_sharded
from trainer.model.build import parameters_sha256
from trainer.parallel.process_group import Rank, Result, on_first_rank

# Consecutive failed checkpoints after which training fails.
MAX_FAILURES = 3
WRITE_TIMEOUT_S = 1800.0
"""Time limit for writing a checkpoint."""
# Ranks may start to write at different times.
_GATHER_SLACK_S = 600.0
# Seconds between progress reports while waiting for a write.
JOIN_INTERVAL_S = 1.0
_NO_SPACE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
# Storage errors that may be transient.
_FAILURES = (OSError, ShardlineError, storage.AlreadyPublished)
_ONE_RANK = Rank(0, 0, 1, torch.device("cpu"))


class CheckpointManager:
    """Checkpoints of one training folder, on one rank; creating it is collective.

    Args:
        sharded: Whether parameters are sharded: the writer threads then need a separate process group.
        log: Called with messages, also from a thread.
        alive: Called while files are read, and while waiting for a write, up to `WRITE_TIMEOUT_S`.
        committed: Called on rank 0, in a thread, with the step of a committed checkpoint and its duration in seconds.
    """

    def __init__(
        self,
        folder_uri: str,
        *,
        attempt: str,
        rules: CheckpointSection,
        rank: Rank = _ONE_RANK,
        sharded: bool = False,
        log: Callable[[str], None] = lambda message: None,
        alive: Callable[[], None] = lambda: None,
        committed: Callable[[int, float], None] = lambda step, seconds: None,
    ) -> None:
        self.folder_uri = storage.join(folder_uri, CHECKPOINTS_FOLDER)
        self.attempt_number = 0
        """Number of this attempt, set by `resume`."""
        # Of the writer threads.
        self._group: dist.ProcessGroup | None = None
        if sharded and rank.ranks > 1:
            timeout = timedelta(seconds=WRITE_TIMEOUT_S + _GATHER_SLACK_S)
            self._group = dist.new_group(backend="gloo", timeout=timeout)
        self._attempt, self._rules, self._rank = attempt, rules, rank
        self._log, self._alive, self._committed = log, alive, committed
        self._buffer = HostBuffer(rank, log)
        self._best = Best()
        self._records: dict[str, int] = {}
        self._thread: threading.Thread | None = None
        self._deadline = 0.0
        self._error: BaseException | None = None
        self._failures: list[Exception] = []
        """Consecutive failures since the last committed checkpoint."""

    # --- finding ------------------------------------------------------------------------------------------------------

    def resume(self) -> FoundCheckpoint:
        """Find the newest valid checkpoint and record this attempt; collective, before the first save.

        Rank 0 searches, logs skipped checkpoints, and records the step this attempt resumes from.
        """
        checkpoint, self.attempt_number = self._on_first_rank(self._open)
        if checkpoint.manifest is not None:
            self._best = Best.of(checkpoint.manifest)
        return checkpoint

    def _open(self, alive: Callable[[], None]) -> tuple[FoundCheckpoint, int]:
        checkpoint = find_newest(self.folder_uri, self._listing(), on_piece=alive)
        for skipped in checkpoint.skipped:
            self._log(f"skipped checkpoint {skipped}")
        return checkpoint, record_attempt(self.folder_uri, self._attempt, checkpoint)

    def require_newest(self) -> None:
        """Raise Superseded if a later attempt has started; rank 0 only."""
        require_newest(self.folder_uri, self._listing(), self.attempt_number)

    def find_best(self, *groups: str) -> FoundCheckpoint:
        """Return the best valid checkpoint; log a warning if it is not the recorded best one. Collective.

        Files of `groups` are verified; of other files only the size is.
        """
        best, metric = self._best, self._rules.best_metric
        checkpoint = self._on_first_rank(
            lambda alive: find_best(self._listing(), best, metric, groups=groups, on_piece=alive)
        )
        if checkpoint.manifest is not None and checkpoint.manifest.step != best.step and self._rank.is_first:
            reasons = "".join(f"; passed over {skipped}" for skipped in checkpoint.skipped)
            instead = f"not {best.step}" if best.step else "none was evaluated"
            self._log(f"warning: the best checkpoint is that of step {checkpoint.manifest.step}, {instead}{reasons}")
        return checkpoint

    def _listing(self) -> Listing:
        return list_checkpoints(self.folder_uri, self._records)

    def _on_first_rank(self, work: Callable[[Callable[[], None]], Result]) -> Result:
        return on_first_rank(self._rank.rank, self._rank.ranks, work, self._alive)

    # --- saving -------------------------------------------------------------------------------------------------------

    def save(self, manifest: CheckpointManifest, groups: Mapping[str, Tensors], *, required: bool = False) -> bool:
        """Copy the state, and write and commit it in the background; return False if the checkpoint was skipped.

        All ranks call it; without sharded tensors only rank 0 writes. The manifest still lacks files, attempt,
        parameters_sha256 and the best checkpoint. With `required`, wait for a running write instead of skipping.

        Raises:
            ShardlineError: Earlier checkpoints failed permanently or too often.
        """
        if required:
            self._on_first_rank(self._wait_for_thread)
        sharded = any(map(is_sharded, groups.values()))
        if not sharded and not self._rank.is_first:
            return True
        self._raise_error()
        busy = self._is_writing()
        if sharded:
            # Rank 0 finishes last, since it commits.
            decision = [busy]
            dist.broadcast_object_list(decision, src=0)
            if not (busy := decision[0]):
                self._wait_for_thread(self._alive)
        if busy:
            if self._rank.is_first:
                self._log(f"skipped checkpoint at step {manifest.step}: the previous one is still being written")
            return False
        started = time.monotonic()
        files = self._buffer.stage(groups)
        self._deadline = started + WRITE_TIMEOUT_S
        arguments = (manifest, files, sharded, started)
        self._thread = threading.Thread(target=self._run, args=arguments, name="checkpoint writer", daemon=True)
        self._thread.start()
        return True

    def wait(self, *, together: bool = False) -> None:
        """Wait until started checkpoints are durable; with `together`, all ranks wait for rank 0.

        Raises:
            ShardlineError, OSError: The last checkpoint could not be written.
        """
        if together:
            self._on_first_rank(self._wait_for_thread)
        self._wait_for_thread(self._alive)
        self._raise_error()
        if self._failures:
            raise self._failures[-1]

    def _is_writing(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    def _wait_for_thread(self, alive: Callable[[], None]) -> None:
        while self._thread is not None and self._is_writing():
            self._thread.join(JOIN_INTERVAL_S)
            if time.monotonic() < self._deadline:
                alive()

    def _raise_error(self) -> None:
        """Raise an error of the thread, once."""
        error, self._error = self._error, None
        if error is not None:
            raise error

    # --- in the thread ------------------------------------------------------------------------------------------------

    def _run(self, *arguments: Any) -> None:
        try:
            self._write(*arguments)
        except BaseException as error:  # noqa: BLE001 - entry point of a thread; raised in the main thread
            self._error = error

    def _write(self, manifest: CheckpointManifest, files: list[StagedFile], sharded: bool, started: float) -> None:
        """Write the files of this rank; on rank 0 also commit the checkpoint and delete old ones."""
        uri = storage.join(self.folder_uri, checkpoint_name(manifest.step, self.attempt_number))
        try:
            entries = self._write_files(uri, files, sharded)
            committed = self._commit(uri, manifest, files, entries) if self._rank.is_first else None
        except _FAILURES as error:
            self._give_up(uri, error)
            return
        self._failures.clear()
        if committed is not None:
            self._committed(committed.step, time.monotonic() - started)
            self._retain(committed)

    def _write_files(self, uri: str, files: list[StagedFile], sharded: bool) -> list[FileEntry]:
        """Write the files of this rank; rank 0 returns those of all ranks, or raises if one failed."""
        entries, failure = [], None
        try:
            entries = [_publish(uri, file, self._deadline) for file in files]
        except _FAILURES as error:
            failure = error
        results: list[Any] = [None] * self._rank.ranks
        if sharded:
            result = (entries, failure and f"{type(failure).__name__}: {failure}")
            try:
                dist.gather_object(result, results if self._rank.is_first else None, dst=0, group=self._group)
            except RuntimeError as error:
                raise TryAgain(f"ranks could not report their files to rank 0: {error}") from error
        if failure is not None:
            raise failure
        if not sharded or not self._rank.is_first:
            return entries
        for rank, (_, problem) in enumerate(results):
            if problem is not None:
                raise TryAgain(f"rank {rank} could not write its part: {problem}")
        return [entry for part, _ in results for entry in part]

    def _commit(
        self, uri: str, manifest: CheckpointManifest, files: list[StagedFile], entries: list[FileEntry]
    ) -> CheckpointManifest:
        """Commit the checkpoint by publishing its manifest; return the manifest."""
        # None if sharded: no rank has all tensors.
        model = next((file.tensors for file in files if file.name == tensor_file("model")), None)
        best = self._best.or_better(manifest, self._rules.best_metric)
        update = {
            "files": entries,
            "attempt": self.attempt_number,
            "parameters_sha256": parameters_sha256(model) if model else "",
            "best_step": best.step,
            "best_metrics": dict(best.metrics),
        }
        manifest = manifest.model_copy(update=update)
        self.require_newest()
        storage.publish(storage.join(uri, MANIFEST_NAME), manifest.to_json())
        self._best = best
        return manifest

    def _retain(self, newest: CheckpointManifest) -> None:
        try:
            for uri in retain(self._listing(), newest, self._rules):
                self._log(f"deleted {storage.display(uri)}: an earlier attempt did not finish it")
        except (OSError, ShardlineError) as error:
            # The checkpoint is committed; the next one deletes the rest.
            self._log(f"warning: old checkpoints could not be deleted ({type(error).__name__}: {error})")

    def _give_up(self, uri: str, error: Exception) -> None:
        """Log a failure and delete its files; raise if it is permanent or repeated."""
        if self._rank.is_first:
            self._log(f"warning: {storage.display(uri)} could not be written ({type(error).__name__}: {error})")
            with contextlib.suppress(OSError, ShardlineError):
                storage.delete_tree(uri, manifest_name=MANIFEST_NAME)
        hopeless = isinstance(error, UserError)
        if isinstance(error, OSError) and error.errno in _NO_SPACE:
            error = StorageError(
                f"{storage.display(uri)} cannot be written: {os.strerror(error.errno)}",
                allowed="room for checkpoint.keep_last + 2 checkpoints",
                todo="make room, or lower checkpoint.keep_last; the same command continues from the newest checkpoint",
            )
        self._failures.append(error)
        if hopeless or len(self._failures) >= MAX_FAILURES:
            raise error


def write_weights(folder_uri: str, state: dict[str, torch.Tensor]) -> FileEntry:
    """Write or replace weights in a folder without a manifest."""
    (file,) = HostBuffer(_ONE_RANK).stage({"model": state})
    storage.delete(storage.join(folder_uri, file.name))
    return _publish(folder_uri, file, time.monotonic() + WRITE_TIMEOUT_S)


def _publish(folder_uri: str, file: StagedFile, deadline: float) -> FileEntry:
    stream: Any = _BoundedStream(file.content.numpy().data, deadline)
    crc32c = storage.publish_stream(storage.join(folder_uri, file.name), stream, file.content.numel())
    return FileEntry(name=file.name, bytes=file.content.numel(), crc32c=crc32c)


class _BoundedStream:
    """Read-only file over memory; raises TryAgain after a deadline on the clock of time.monotonic."""

    def __init__(self, content: memoryview, deadline: float) -> None:
        self._content, self._deadline, self._position = content, deadline, 0

    def read(self, size: int = -1) -> bytes:
        """Return up to `size` bytes; all remaining ones if negative."""
        if time.monotonic() > self._deadline:
            raise TryAgain(f"it took longer than {WRITE_TIMEOUT_S:.0f} s")
        start = self._position
        self._position = len(self._content) if size < 0 else min(start + size, len(self._content))
        return bytes(self._content[start : self._position])

    def tell(self) -> int:
        """Return the position."""
        return self._position

    def seek(self, position: int) -> None:
        """Move to a position from the start."""
        self._position = position


class Schedule:
    """Checkpoint schedule: every N steps, or by rank 0's clock.

    Ranks agree by vote (trainer/supervise/vote.py) on `propose()` of rank 0, without a device sync.
    """

    def __init__(self, rules: CheckpointSection, *, is_first: bool) -> None:
        self._rules, self._is_first = rules, is_first
        self._since: float | None = None
        self._agreed = False
        self.saves = 0
        """Checkpoints started or skipped, equal on all ranks; it invalidates older proposals."""

    def propose(self) -> int:
        """Return 1 on rank 0 if a checkpoint is due by the clock; else 0."""
        if self._rules.every_steps is not None or not self._is_first:
            return 0
        time_s = time.monotonic()
        if self._since is None:
            self._since = time_s
        return int(time_s - self._since >= self._rules.interval_s)

    def agree(self, proposed: int, *, saves: int) -> None:
        """Accept rank 0's proposal, made at `saves` checkpoints; collective."""
        self._agreed = bool(proposed) and saves == self.saves

    def is_due(self, step: int) -> bool:
        """Whether a checkpoint is due after optimizer step `step`; equal on all ranks."""
        if self._rules.every_steps is not None:
            return step % self._rules.every_steps == 0
        return self._agreed

    def saved(self) -> None:
        """Restart the interval after a checkpoint was started or skipped."""
        self.saves += 1
        self._agreed = False
        self._since = time.monotonic()
