"""kill -9 of a rank in every phase of one training, each shown to have landed there; the end is that without a kill."""

import json
import os
import signal
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from contracts.artifacts import CheckpointManifest
from contracts.config import STAGE_KEYS
from contracts.events import ATTEMPTS_FOLDER, EVENTS_NAME, EventReader
from tests.conftest import small_config
from tests.support.traced import TracedTraining, compare

# PHASE:N:RANK, the N-th time that a process comes there. 12 steps an epoch and a checkpoint every 2: the first epochs
# see all kills but the last two, so that one of them has several resumes. Each kill has a start of its own: where one
# process is held, no other can come to the next of these places meanwhile.
EVERY_PHASE = (
    "staging:1:0",
    "writing:1:0",
    "before-manifest:1:0",
    "after-manifest:1:0",
    "restore:1:0",
    "data:2:1",
    "forward:5:0",
    "backward:2:1",
    "optimizer:3:0",
    "retention:2:0",
    "start-up:1:1",
    "epoch-boundary:1:0",
    "evaluation:1:1",
)
BATCH: dict[str, Any] = {"global_batch_size": 6, "epochs": 6}
STEPS_PER_EPOCH = 12
# Everything that a step may leave behind: an average of the parameters, and the loss scale.
ALL_STATE: dict[str, Any] = {
    "ema_decay": 0.9,
    "precision": "fp16",
}
PATIENCE_S = 600.0


def make(folder: Path, name: str, shards: str, config: dict[str, Any]) -> TracedTraining:
    sections = {key: config[key] for key in STAGE_KEYS["train"] if key in config}
    return TracedTraining(name, sections, {"shards": shards}, folder)


def kill_in(training: TracedTraining, pauses: tuple[str, ...]) -> list[tuple[str, int]]:
    """Run to the end, killing whoever is held; return where that was, and the pid."""
    process = training.start(pauses)
    killed: list[tuple[str, int]] = []
    deadline = time.monotonic() + PATIENCE_S
    try:
        while process.poll() is None and time.monotonic() < deadline:
            lines = training.pauses_file.read_text().splitlines() if training.pauses_file.exists() else []
            for line in lines[len(killed) :]:
                record = json.loads(line)
                assert Path(f"/proc/{record['pid']}").exists()
                os.kill(record["pid"], signal.SIGKILL)
                killed.append((record["at"], record["pid"]))
            time.sleep(0.02)
    finally:
        process.kill()
        code = process.wait()
    assert code == 0, f"killed in {killed}\n{training.log.read_text()[-3000:]}"
    return killed


def resumes(training: TracedTraining) -> list[int]:
    """Return the steps at which processes of a training have begun."""
    paths = training.log.parent.glob(f"{ATTEMPTS_FOLDER}/*/{EVENTS_NAME}")
    events = [event for path in paths for event in EventReader(path).poll()]
    return [event["step"] for event in events if event["event"] == "resume"]


def check(folder: Path, shards: str, pauses: tuple[str, ...], config: dict[str, Any]) -> list[int]:
    """Show that kills change no bit; return the steps at which training went on."""
    undisturbed = make(folder, "undisturbed", shards, config)
    undisturbed.run()
    disturbed = make(folder, "disturbed", shards, config)
    killed = kill_in(disturbed, pauses)
    assert [at for at, _ in killed] == list(pauses)
    assert len({pid for _, pid in killed}) == len(pauses), "a kill each"
    assert compare(undisturbed, disturbed) == []
    whole, cut = (CheckpointManifest.load(one.output) for one in (undisturbed, disturbed))
    assert (cut.parameters_sha256, cut.metrics) == (whole.parameters_sha256, whole.metrics)
    return resumes(disturbed)


@pytest.mark.line
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("ranks", "num_workers", "parallel", "train"),
    [
        (2, 0, {}, ALL_STATE),
        pytest.param(3, 3, {}, {}, marks=pytest.mark.slow),
        pytest.param(2, 3, {"strategy": "fsdp"}, {}, marks=pytest.mark.slow),
        pytest.param(3, 0, {"strategy": "fsdp"}, ALL_STATE, marks=pytest.mark.slow),
    ],
)
def test_a_kill_in_every_phase(
    small_shards: str, tmp_path: Path, ranks: int, num_workers: int, parallel: dict[str, Any], train: dict[str, Any]
) -> None:
    config = small_config(
        train={**BATCH, **train},
        data={"num_workers": num_workers},
        # The other network with BatchNorm: ranks start sooner than with one of transformers.
        model={} if parallel or train else {"architecture": "models_for_tests:with_buffers", "arguments": {}},
        checkpoint={"every_steps": 2},
        parallel={"slot_size": 2, **parallel},
        resources={"ranks": ranks, "max_attempts": 100},
    )
    went_on = check(tmp_path, small_shards, EVERY_PHASE, config)
    within_an_epoch = Counter(step // STEPS_PER_EPOCH for step in went_on if step % STEPS_PER_EPOCH)
    assert max(within_an_epoch.values()) >= 3, went_on


@pytest.mark.line
@pytest.mark.timeout(600)
@pytest.mark.parametrize("ranks", [2, 3])
def test_early_stopping_under_kills_ends_at_the_same_epoch(small_shards: str, tmp_path: Path, ranks: int) -> None:
    config = small_config(
        # Until it overfits, which no one knows beforehand.
        train={**BATCH, "epochs": 40, "learning_rate": 0.05, "early_stopping": {"patience": 2}},
        checkpoint={"every_steps": 5},
        parallel={"slot_size": 2},
        resources={"ranks": ranks, "max_attempts": 100},
    )
    # In an evaluation, and behind one whose checkpoint is not there yet: each process writes at steps 5, 10 and 12.
    pauses = ("evaluation:1:1", "before-manifest:3:0")
    check(tmp_path, small_shards, pauses, config)
    ends = [CheckpointManifest.load(f"file://{tmp_path}/{name}/training") for name in ("undisturbed", "disturbed")]
    assert {end.ended_by for end in ends} == {"early_stopping"}
    last = [find_newest_step(tmp_path / name / "training") for name in ("undisturbed", "disturbed")]
    assert last[0] == last[1] < 40 * STEPS_PER_EPOCH


def find_newest_step(folder: Path) -> int:
    return max(int(path.parent.name.split("-")[1].split(".")[0]) for path in folder.glob("checkpoints/*/manifest.json"))
