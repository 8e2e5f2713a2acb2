"""kill -9 of a rank in every phase of one training, each shown to have landed there; the end is that without a kill."""

import json
import os
import random
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from contracts.config import STAGE_SECTIONS
from tests.conftest import small_config
from trainer.disturb import Training
from trainer.drill import compare

# PHASE:N:RANK, the N-th time that a process comes there. 5 steps an epoch, 2 slots a step and rank (at 2 ranks), a
# checkpoint every 3 steps: most processes do not outlive an epoch.
EVERY_PHASE = (
    "start-up:1:1",
    "restore:1:0",
    "data:9:1",
    "forward:8:0",
    "backward:7:1",
    "optimizer:4:0",
    "staging:1:0",
    "writing:2:0",
    "before-manifest:1:0",
    "after-manifest:1:0",
    "retention:2:0",
    "evaluation:1:1",
    "epoch-boundary:1:0",
)
PATIENCE_S = 240.0


def make(folder: Path, name: str, shards: str, config: dict[str, Any]) -> Training:
    sections = {key: config[key] for key in STAGE_SECTIONS["train"] if key in config}
    return Training(name, sections, {"shards": shards}, folder)


def kill_in(training: Training, pauses: tuple[str, ...]) -> list[str]:
    """Run to the end, killing whoever is held; return where that was."""
    process = training.start(pauses)
    killed: list[str] = []
    deadline = time.monotonic() + PATIENCE_S
    try:
        while process.poll() is None and time.monotonic() < deadline:
            lines = training.pauses_file.read_text().splitlines() if training.pauses_file.exists() else []
            for line in lines[len(killed) :]:
                record = json.loads(line)
                assert Path(f"/proc/{record['pid']}").exists()
                os.kill(record["pid"], signal.SIGKILL)
                killed.append(record["at"])
            time.sleep(0.02)
    finally:
        process.kill()
        code = process.wait()
    assert code == 0, f"killed in {killed}\n{training.log.read_text()[-3000:]}"
    return killed


def check(folder: Path, shards: str, pauses: tuple[str, ...], config: dict[str, Any]) -> None:
    undisturbed = make(folder, "undisturbed", shards, config)
    undisturbed.run([], random.Random(0))
    disturbed = make(folder, "disturbed", shards, config)
    assert sorted(kill_in(disturbed, pauses)) == sorted(pauses)
    assert compare(undisturbed, disturbed) == []


@pytest.mark.slow
def test_a_kill_while_a_checkpoint_is_written_and_one_in_a_step(small_shards: str, tmp_path: Path) -> None:
    config = small_config(train={"epochs": 6}, checkpoint={"every_steps": 3}, resources={"max_attempts": 100})
    check(tmp_path, small_shards, ("backward:7:1", "before-manifest:2:0"), config)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("ranks", "num_workers", "parallel"),
    [(2, 0, {}), (3, 3, {}), (2, 3, {"strategy": "fsdp"}), (3, 0, {"strategy": "fsdp"})],
)
def test_a_kill_in_every_phase(
    small_shards: str, tmp_path: Path, ranks: int, num_workers: int, parallel: dict[str, Any]
) -> None:
    config = small_config(
        train={"epochs": 20},
        data={"num_workers": num_workers},
        checkpoint={"every_steps": 3},
        parallel=parallel,
        resources={"ranks": ranks, "max_attempts": 100},
    )
    check(tmp_path, small_shards, EVERY_PHASE, config)
