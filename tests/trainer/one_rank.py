"""Training in this process, as one rank over gloo: the real one, without torchrun's seconds."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from contracts import storage
from contracts.artifacts import CheckpointManifest
from contracts.config import CheckpointSection
from contracts.events import EVENTS_NAME, EventLog, EventReader
from tests.trainer.checkpoint.attempts import newest_valid
from trainer.checkpoint.manager import CheckpointManager
from trainer.finish import finish
from trainer.launch import Assignment
from trainer.parallel.process_group import Rank, process_group
from trainer.step import Stepper, Update
from trainer.supervise.account import Account
from trainer.supervise.stop import StopRequest
from trainer.train import Training
from trainer.weights.source import find_source


class Crash(Exception):
    """What a killed process would not even notice."""


@contextmanager
def one_rank(*, gpu: bool = False) -> Iterator[Rank]:
    """Be the only rank of a group, on the CPU unless `gpu` is set; torch's settings are as before afterwards."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    ours = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    before = {name: os.environ.get(name) for name in ours}
    threads, deterministic = torch.get_num_threads(), torch.are_deterministic_algorithms_enabled()
    os.environ |= ours
    patch = pytest.MonkeyPatch()
    try:
        if not gpu:
            patch.setattr(torch.cuda, "is_available", lambda: False)
        with process_group(setup_timeout_s=50, timeout_s=60) as rank:
            yield rank
    finally:
        patch.undo()
        torch.set_num_threads(threads)
        torch.use_deterministic_algorithms(deterministic)
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def make_training(
    rank: Rank,
    folder: Path,
    shards: str,
    config: dict[str, Any],
    attempt: str = "a",
    *,
    profile: str | None = None,
    output: str | None = None,
    weights_at: str = "",
) -> Training:
    """Return a training that begins, or goes on, in a folder of attempts and output (unless `output` is another URI).

    `profile` is the folder of a report; `weights_at` has the weights, if not where the configuration says.
    """
    events = folder / "attempts" / attempt
    weights = weights_at or config.get("model", {}).get("weights")
    assignment = Assignment(
        config=config,
        shards=shards,
        profile=profile,
        folder=output or storage.normalise(folder / "out"),
        fingerprint="f",
        made_from={"weights": find_source(weights).sha256()} if weights else {},
        attempt=attempt,
        attempt_folder=str(events),
        ranks=1,
        threads=1,
    )
    # What another training has left in the process must not matter.
    torch.manual_seed(hash(attempt) % 1000)
    log = EventLog(events, stage="train", attempt=attempt)
    return Training(assignment, rank, log, Account(log, is_first=True), StopRequest())


def train(
    rank: Rank,
    folder: Path,
    shards: str,
    config: dict[str, Any],
    attempt: str = "a",
    *,
    crash_at: int | None = None,
    profile: str | None = None,
) -> CheckpointManifest:
    """Train to the end and return the document at the top; or crash after `crash_at` steps of this attempt."""
    training = make_training(rank, folder, shards, config, attempt, profile=profile)
    update, taken = Stepper.update, 0

    def counted(stepper: Stepper, step: int, rate: float) -> Update:
        nonlocal taken
        if taken == crash_at:
            raise Crash
        taken += 1
        return update(stepper, step, rate)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Stepper, "update", counted)
        try:
            training.run()
        except Crash:
            # The thread that writes would go on in this process, beside the next attempt; a kill ends it.
            training.checkpoints.wait()
            raise
    finish(training)
    return CheckpointManifest.load(storage.normalise(folder / "out"))


def newest(folder: Path) -> CheckpointManifest:
    """Return the newest valid checkpoint."""
    manager = CheckpointManager(storage.normalise(folder / "out"), attempt="-", rules=CheckpointSection())
    manifest = newest_valid(manager).manifest
    assert manifest is not None
    return manifest


def logs(folder: Path, attempt: str = "a") -> str:
    """Return what an attempt logged."""
    events = EventReader(folder / "attempts" / attempt / EVENTS_NAME).poll()
    return "\n".join(event["message"] for event in events if event["event"] == "log")
