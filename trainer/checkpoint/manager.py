"""Writes and finds the checkpoints of a training folder: what the loop talks to."""

from __future__ import annotations

import queue
import time
from collections.abc import Callable

import torch.distributed as dist

from contracts import storage
from contracts.artifacts import CheckpointManifest
from contracts.config import CheckpointSection
from trainer.checkpoint import CHECKPOINTS_FOLDER
from trainer.checkpoint.commit import Committer, Peers
from trainer.checkpoint.discovery import FoundCheckpoint, find_newest, record_attempt, require_newest
from trainer.checkpoint.interval import Costs, interval_s, steps_until_due
from trainer.checkpoint.retention import Best, find_best
from trainer.checkpoint.staging import HostBuffer, StagedFile
from trainer.checkpoint.tensors import Groups, is_sharded
from trainer.checkpoint.writer import Writer
from trainer.parallel.process_group import on_first_rank


class CheckpointManager:
    """The checkpoints of one training folder, seen from one rank.

    Args:
        folder_uri: The training folder.
        attempt: Id of the attempt.
        rules: The configuration's section.
        peers: The ranks.
        pinned: Whether the state is on a GPU.
        log: Takes what a user should read; called from a thread too.
        alive: Called while files are read, and while the writing that is waited for gets on: a large checkpoint takes
            longer than any limit.
        committed: Told the step of each checkpoint that is committed, and the seconds from the copy of the state on, on
            rank 0; called from a thread.
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
        alive: Callable[[], None] = lambda: None,
        committed: Callable[[int, float], None] = lambda step, seconds: None,
    ) -> None:
        self._costs = Costs()
        self._attempt, self._rules, self._log, self._committed = attempt, rules, log, committed
        self._alive = alive
        self._peers = peers or Peers()
        self.folder_uri = storage.join(folder_uri, CHECKPOINTS_FOLDER)
        self._writer = Writer()
        self._committer = Committer(
            self.folder_uri,
            rules=rules,
            peers=self._peers,
            log=log,
            on_piece=self._writer.get_on,
            on_wait=self._writer.get_on_until,
        )
        self._buffer = HostBuffer(self._peers.rank, self._peers.ranks, pinned=pinned, log=log)
        self._durable_s: queue.SimpleQueue[float] = queue.SimpleQueue()
        self._last_save = time.monotonic()

    @property
    def attempt_number(self) -> int:
        """Number of this attempt at the training, once `resume` has opened it."""
        return self._committer.number

    # --- finding ------------------------------------------------------------------------------------------------------

    def resume(self) -> FoundCheckpoint:
        """Find the newest valid checkpoint and open this attempt; all ranks together, before the first save.

        Rank 0 looks, says what it passed over, and leaves the record of what this attempt resumes from.
        """
        found, self._committer.number = on_first_rank(self._peers.rank, self._peers.ranks, self._open, self._alive)
        if found.manifest is not None:
            self._committer.best = Best.of(found.manifest)
        self._last_save = time.monotonic()
        return found

    def _open(self, alive: Callable[[], None]) -> tuple[FoundCheckpoint, int]:
        found = find_newest(self.folder_uri, self._committer.listing(), on_piece=alive)
        for skipped in found.skipped:
            self._log(f"skipped checkpoint {skipped}")
        return found, record_attempt(self.folder_uri, self._attempt, found)

    def require_newest(self) -> None:
        """Raise Superseded where a later attempt has begun; for rank 0."""
        require_newest(self.folder_uri, self._committer.listing(), self.attempt_number)

    def newest_valid(self) -> FoundCheckpoint:
        """Return the newest checkpoint that counts and is whole."""
        return find_newest(self.folder_uri, self._committer.listing())

    def find_best(self, *groups: str) -> FoundCheckpoint:
        """Return the best checkpoint that counts and is whole, or the next best, which is said; all ranks together.

        Args:
            groups: Groups of tensors that will be read; of other files only the size is compared.
        """
        best, metric = self._committer.best, self._rules.best_metric

        def look(alive: Callable[[], None]) -> FoundCheckpoint:
            return find_best(self._committer.listing(), best, metric, groups=groups, on_piece=alive)

        found = on_first_rank(self._peers.rank, self._peers.ranks, look, self._alive)
        if found.manifest is not None and found.manifest.step != best.step and self._peers.rank == 0:
            why = "".join(f"; passed over {skipped}" for skipped in found.skipped)
            instead = f"not {best.step}" if best.step else "none was evaluated"
            self._log(f"warning: the best checkpoint is that of step {found.manifest.step}, {instead}{why}")
        return found

    # --- saving -------------------------------------------------------------------------------------------------------

    def save(self, manifest: CheckpointManifest, groups: Groups, *, required: bool = False) -> bool:
        """Copy the state, and have it written and committed in the background; return whether that has begun.

        All ranks call it. Without rows in a group only rank 0 does anything.

        Args:
            manifest: The manifest without files, attempt, parameters_sha256 and what it says of the best.
            groups: Tensors by name, in groups by name.
            required: Wait for a running write instead of leaving this checkpoint out, on all ranks, for as long as the
                first one's gets on.

        Raises:
            ShardlineError: Writing an earlier one failed, in a way or so often that going on makes no sense.
        """
        if required:
            on_first_rank(self._peers.rank, self._peers.ranks, self._writer.wait_for_buffer, self._alive)
        sharded = any(is_sharded(group) for group in groups.values())
        if not sharded and self._peers.rank != 0:
            return True
        buffer = self._take_buffer(sharded, required)
        if buffer is None:
            if self._peers.rank == 0:
                self._log(f"no checkpoint at step {manifest.step}: the one before is still being written")
            return False
        # Without a wait for the buffer: a checkpoint of an interval never waits.
        self._last_save = started = time.monotonic()
        files = self._buffer.stage(groups)
        self._costs.stalled(time.monotonic() - started)
        self._writer.submit(buffer, lambda: self._write(manifest, files, sharded, started))
        return True

    def wait(self, *, together: bool = False) -> None:
        """Wait until everything that was begun is durable.

        Args:
            together: All ranks call it, and wait for the first one for as long as its writing gets on.

        Raises:
            ShardlineError: The last one could not be written (OSError likewise).
        """
        if together:
            on_first_rank(self._peers.rank, self._peers.ranks, self._writer.wait, self._alive)
        self._writer.wait(self._alive)
        self._writer.raise_error()
        if self._committer.failures:
            raise self._committer.failures[-1]

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

    def _take_buffer(self, sharded: bool, required: bool) -> int | None:
        """Return a free buffer, if there is one, and raise what went wrong until then."""
        if not sharded or self._peers.ranks == 1:
            return self._writer.take_buffer(self._alive if required else None)
        # Rank 0 decides: it is the last to be done with a checkpoint, since it waits for the others and commits.
        buffer = self._writer.take_buffer(self._alive if required else None) if self._peers.rank == 0 else None
        answer = [buffer is not None]
        dist.broadcast_object_list(answer, src=0)
        if self._peers.rank == 0 or not answer[0]:
            return buffer
        return self._writer.take_buffer(self._alive)

    # --- in the thread ------------------------------------------------------------------------------------------------

    def _write(self, manifest: CheckpointManifest, files: list[StagedFile], sharded: bool, started: float) -> None:
        committed = self._committer.write(manifest, files, sharded=sharded)
        if committed is not None:
            durable_s = time.monotonic() - started
            self._durable_s.put(durable_s)
            self._committed(committed.step, durable_s)
            self._committer.retain(committed)
