"""Checkpoints of a training folder as the loop uses them: resume, save in the background, wait; and when one is due."""

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

# Checkpoints that fail one after another before training ends: one may be a storm in the bucket, three are no accident.
MAX_FAILURES = 3
WRITE_TIMEOUT_S = 1800.0
"""Seconds after which writing a checkpoint is given up."""
# Longer than any difference between the times at which ranks begin to write.
_GATHER_SLACK_S = 600.0
# Seconds between two signs of life of a rank that waits for a write.
LOOK_EVERY_S = 1.0
_NO_SPACE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
# Errors of storage that another checkpoint may not meet.
_FAILURES = (OSError, ShardlineError, storage.AlreadyPublished)
_ONE_RANK = Rank(0, 0, 1, torch.device("cpu"))


class CheckpointManager:
    """The checkpoints of one training folder, for one rank; all ranks make it together.

    Args:
        sharded: Whether parameters are sharded: then ranks need a group of their own, used by a thread beside training.
        log: Takes messages for the user; called from a thread too.
        alive: Called while files are read, and while a write is waited for, until `WRITE_TIMEOUT_S`.
        committed: Told step and seconds since the copy of the state of each checkpoint that is committed, on rank 0;
            called from a thread.
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
        """Number of this attempt, once `resume` has opened it."""
        self.group: dist.ProcessGroup | None = None
        """Of the threads that write; `limit_collectives` must leave its timeout alone."""
        if sharded and rank.ranks > 1:
            timeout = timedelta(seconds=WRITE_TIMEOUT_S + _GATHER_SLACK_S)
            self.group = dist.new_group(backend="gloo", timeout=timeout)
        self._attempt, self._rules, self._rank = attempt, rules, rank
        self._log, self._alive, self._committed = log, alive, committed
        self._buffer = HostBuffer(rank, log)
        self._best = Best()
        self._records: dict[str, int] = {}
        self._thread: threading.Thread | None = None
        self._deadline = 0.0
        self._error: BaseException | None = None
        self._failures: list[Exception] = []
        """Of the newest checkpoints, since the last one that was committed."""

    # --- finding ------------------------------------------------------------------------------------------------------

    def resume(self) -> FoundCheckpoint:
        """Find the newest valid checkpoint and open this attempt; all ranks together, before the first save.

        Rank 0 searches, logs what it passed over, and leaves the record of what this attempt resumes from.
        """
        found, self.attempt_number = self._on_first_rank(self._open)
        if found.manifest is not None:
            self._best = Best.of(found.manifest)
        return found

    def _open(self, alive: Callable[[], None]) -> tuple[FoundCheckpoint, int]:
        found = find_newest(self.folder_uri, self._listing(), on_piece=alive)
        for skipped in found.skipped:
            self._log(f"skipped checkpoint {skipped}")
        return found, record_attempt(self.folder_uri, self._attempt, found)

    def require_newest(self) -> None:
        """Raise Superseded where a later attempt has begun; for rank 0."""
        require_newest(self.folder_uri, self._listing(), self.attempt_number)

    def find_best(self, *groups: str) -> FoundCheckpoint:
        """Return the best checkpoint that counts and is whole, or the next best, which is logged; all ranks together.

        `groups` of tensors will be read; of other files only the size is compared.
        """
        best, metric = self._best, self._rules.best_metric
        found = self._on_first_rank(
            lambda alive: find_best(self._listing(), best, metric, groups=groups, on_piece=alive)
        )
        if found.manifest is not None and found.manifest.step != best.step and self._rank.is_first:
            why = "".join(f"; passed over {skipped}" for skipped in found.skipped)
            instead = f"not {best.step}" if best.step else "none was evaluated"
            self._log(f"warning: the best checkpoint is that of step {found.manifest.step}, {instead}{why}")
        return found

    def _listing(self) -> Listing:
        return list_checkpoints(self.folder_uri, self._records)

    def _on_first_rank(self, work: Callable[[Callable[[], None]], Result]) -> Result:
        return on_first_rank(self._rank.rank, self._rank.ranks, work, self._alive)

    # --- saving -------------------------------------------------------------------------------------------------------

    def save(self, manifest: CheckpointManifest, groups: Mapping[str, Tensors], *, required: bool = False) -> bool:
        """Copy the state, and have it written and committed in the background; return whether that has begun.

        All ranks call it. Where no tensor is sharded, only rank 0 does anything.

        The manifest lacks files, attempt, parameters_sha256 and the best checkpoint. With `required` a running write is
        waited for instead of leaving this checkpoint out, on all ranks.

        Raises:
            ShardlineError: Writing an earlier one failed, in a way or so often that going on makes no sense.
        """
        if required:
            self._on_first_rank(self._wait_for_thread)
        sharded = any(map(is_sharded, groups.values()))
        if not sharded and not self._rank.is_first:
            return True
        self._raise_error()
        busy = self._is_writing()
        if sharded:
            # Rank 0 is the last to finish a checkpoint, since it commits.
            answer = [busy]
            dist.broadcast_object_list(answer, src=0)
            if not (busy := answer[0]):
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
        """Wait until everything that was begun is durable; `together` on all ranks, as long as rank 0 writes.

        Raises:
            ShardlineError: The last one could not be written (OSError likewise).
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
            self._thread.join(LOOK_EVERY_S)
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
        except BaseException as error:  # noqa: BLE001 - the entry of a thread; raised again in the main one
            self._error = error

    def _write(self, manifest: CheckpointManifest, files: list[StagedFile], sharded: bool, started: float) -> None:
        """Write the files of this rank; on rank 0 commit the checkpoint, and delete old ones."""
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
        """Write the files of this rank; return those of all ranks on rank 0, or raise there a failure of any."""
        entries, failure = [], None
        try:
            entries = [_publish(uri, file, self._deadline) for file in files]
        except _FAILURES as error:
            failure = error
        answers: list[Any] = [None] * self._rank.ranks
        if sharded:
            own = (entries, failure and f"{type(failure).__name__}: {failure}")
            try:
                dist.gather_object(own, answers if self._rank.is_first else None, dst=0, group=self.group)
            except RuntimeError as lost:
                raise TryAgain(f"ranks could not tell rank 0 what they have written: {lost}") from lost
        if failure is not None:
            raise failure
        if not sharded or not self._rank.is_first:
            return entries
        for rank, (_, problem) in enumerate(answers):
            if problem is not None:
                raise TryAgain(f"rank {rank} could not write its part: {problem}")
        return [entry for part, _ in answers for entry in part]

    def _commit(
        self, uri: str, manifest: CheckpointManifest, files: list[StagedFile], entries: list[FileEntry]
    ) -> CheckpointManifest:
        """Publish the manifest, which makes the checkpoint exist; return it."""
        # No rank has all of a network that is sharded.
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
        """Delete what need not stay beside the newest checkpoint."""
        try:
            for gone in retain(self._listing(), newest, self._rules):
                self._log(f"deleted {storage.display(gone)}: an earlier attempt did not finish it")
        except (OSError, ShardlineError) as error:
            # The checkpoint stands; what is left over goes next time.
            self._log(f"warning: old checkpoints could not be deleted ({type(error).__name__}: {error})")

    def _give_up(self, uri: str, error: Exception) -> None:
        """Log what went wrong, make room, and raise it where training cannot go on."""
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
    """Write weights into a folder whose manifest is still to come; a file of that name is no manifest's yet."""
    (file,) = HostBuffer(_ONE_RANK).stage({"model": state})
    storage.delete(storage.join(folder_uri, file.name))
    return _publish(folder_uri, file, time.monotonic() + WRITE_TIMEOUT_S)


def _publish(folder_uri: str, file: StagedFile, deadline: float) -> FileEntry:
    stream: Any = _BoundedStream(file.content.numpy().data, deadline)
    crc32c = storage.publish_stream(storage.join(folder_uri, file.name), stream, file.content.numel())
    return FileEntry(name=file.name, bytes=file.content.numel(), crc32c=crc32c)


class _BoundedStream:
    """Memory as a file to read, which raises TryAgain once its deadline on the clock of time.monotonic is over."""

    def __init__(self, content: memoryview, deadline: float) -> None:
        self._content, self._deadline, self._position = content, deadline, 0

    def read(self, size: int = -1) -> bytes:
        """Return `size` bytes, fewer at the end; all that are left where it is negative."""
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
    """When the loop saves: every so many steps, or by the clock of rank 0, on which ranks agree with their votes.

    The votes (trainer/supervise/vote.py) carry `propose()` of rank 0, so no device is waited for.
    """

    def __init__(self, rules: CheckpointSection, *, is_first: bool) -> None:
        self._rules, self._is_first = rules, is_first
        self._since: float | None = None
        self._agreed = False
        self.saves = 0
        """Checkpoints begun or skipped, on all ranks alike: a proposal from before the newest counts no more."""

    def propose(self) -> int:
        """Return 1 where a checkpoint is due by the clock; 0 on other ranks, and where steps decide."""
        if self._rules.every_steps is not None or not self._is_first:
            return 0
        now = time.monotonic()
        if self._since is None:
            self._since = now
        return int(now - self._since >= self._rules.interval_s)

    def agree(self, proposed: int, *, saves: int) -> None:
        """Take in what rank 0 proposed when it had counted `saves`; all ranks together."""
        self._agreed = bool(proposed) and saves == self.saves

    def is_due(self, step: int) -> bool:
        """Whether a checkpoint is due after optimizer step `step` of the training; the same on all ranks."""
        if self._rules.every_steps is not None:
            return step % self._rules.every_steps == 0
        return self._agreed

    def saved(self) -> None:
        """Start the interval anew: a checkpoint has begun, or was skipped."""
        self.saves += 1
        self._agreed = False
        self._since = time.monotonic()
