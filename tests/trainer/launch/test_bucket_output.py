"""Training whose output is in a bucket: its machine is lost twice, and it ends with the bits of one on a disk."""

import gc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from contracts import storage
from contracts.artifacts import MANIFEST_NAME, CheckpointManifest, find_damage
from rehearsal.gcs import BucketServer
from tests.conftest import small_config
from tests.support.pauses import PAUSE_AT, PAUSE_FILE
from tests.trainer.launch.machines import Machine, committed
from trainer.checkpoint import CHECKPOINTS_FOLDER

pytestmark = [
    pytest.mark.line,
    pytest.mark.timeout(900),
    pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning"),
]
PLACE = "gs://bucket-1/line/train"
OUTPUT = f"{PLACE}/one"
CONFIG: dict[str, Any] = small_config(
    train={"epochs": 30},
    checkpoint={"every_steps": 3},
    model={"architecture": "models_for_tests:without_batchnorm", "arguments": {}},
)


@pytest.fixture
def machine(small_shards: str, bucket_server: BucketServer, tmp_path: Path) -> Iterator[Machine]:
    made = Machine(tmp_path / "cut", small_shards, CONFIG, output=OUTPUT)
    yield made
    made.end()
    gc.collect()


def train_on_disk(folder: Path, shards: str) -> str:
    """Train undisturbed; return the URI of the training folder."""
    machine = Machine(folder, shards, CONFIG)
    try:
        machine.start()
        assert machine.wait() == 0, machine.stderr()
    finally:
        machine.end()
    return machine.printed.splitlines()[-1]


def test_a_lost_machine_changes_no_bit_of_a_training_in_a_bucket(
    machine: Machine, small_shards: str, tmp_path: Path
) -> None:
    # Lost with the data of its fourth checkpoint in the bucket and no manifest, then in some step.
    held, folder = tmp_path / "held", storage.join(OUTPUT, CHECKPOINTS_FOLDER)
    machine.start(environment={PAUSE_AT: "before-manifest:4:0", PAUSE_FILE: str(held)})
    machine.wait_for(held.exists)
    machine.kill()
    begun = [name for name in storage.list_names(folder) if name.startswith("step-")]
    (lost,) = set(begun) - committed(OUTPUT).keys()
    machine.start()
    machine.wait_for(lambda: max(one.step for one in committed(OUTPUT).values()) > 30)
    assert "continues from" in machine.logs()
    machine.kill()
    assert not storage.exists(storage.join(OUTPUT, MANIFEST_NAME))
    machine.start()
    assert machine.wait() == 0, machine.stderr()
    assert machine.printed.splitlines()[-1] == OUTPUT
    assert lost not in storage.list_names(folder)

    whole, cut = train_on_disk(tmp_path / "whole", small_shards), CheckpointManifest.load(OUTPUT)
    expected = CheckpointManifest.load(whole)
    assert cut.finished and (cut.parameters_sha256, cut.metrics) == (expected.parameters_sha256, expected.metrics)
    (name, last), ours = list(committed(OUTPUT).items())[-1], list(committed(whole).values())[-1]
    assert find_damage(storage.join(folder, name), last.files) is None
    assert last.step == ours.step == 150
    assert [(file.name, file.crc32c) for file in last.files] == [(file.name, file.crc32c) for file in ours.files]

    names = [entry.name for entry in storage.list_objects(PLACE)]
    attempt = f"attempts/{machine.attempts[-1]}"
    assert {f"{attempt}/events.jsonl", f"{attempt}/assignment.json"} <= set(names)
    said = storage.read_bytes(f"{PLACE}/{attempt}/events.jsonl").decode()
    assert "continues from gs://" in said and "not bit-identical" not in said
    assert any("/tensorboard/events.out" in name for name in names)
