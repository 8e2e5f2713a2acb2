"""Told to stop while a checkpoint is being written: by a bucket that takes its time, and by one that never answers."""

import gc
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from rehearsal.gcs import BucketServer, Rule
from tests.conftest import small_config
from tests.support.pauses import PAUSE_AT, PAUSE_FILE
from tests.trainer.launch.machines import Machine, committed
from tests.trainer.supervise.test_signals import SLOW, Job, last_checkpoint, slow_config, wait_until

pytestmark = [
    pytest.mark.line,
    pytest.mark.timeout(900),
    pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning"),
]
OUTPUT = "gs://bucket-1/line/train/one"


@pytest.fixture
def machine(small_shards: str, bucket_server: BucketServer, tmp_path: Path) -> Iterator[Machine]:
    config = small_config(
        model=SLOW, train={"epochs": 400}, checkpoint={"keep_last": 10}, resources={"stop_budget_s": 120}
    )
    made = Machine(tmp_path, small_shards, config, output=OUTPUT)
    yield made
    made.end()
    gc.collect()


def steps() -> list[int]:
    return [manifest.step for manifest in committed(OUTPUT).values()]


def test_a_slow_write_is_let_finish_and_the_agreed_step_is_saved_behind_it(
    machine: Machine, bucket_server: BucketServer
) -> None:
    # The checkpoint at the end of the second epoch.
    bucket_server.faults.set(Rule(method="POST", object="*/step-00000010.*/model.safetensors", latency_s=5.0))
    machine.start()
    machine.wait_for(lambda: bucket_server.faults.hits()[0] > 0)
    machine.process.send_signal(signal.SIGTERM)
    assert steps() == [5], "told while the second one was written"
    assert machine.wait() == 75, machine.stderr()
    (stop,) = [event for event in machine.events() if event["event"] == "stop"]
    assert stop["preempted"]
    assert steps()[:2] == [5, 10]
    assert steps()[-1] == stop["step"] > 10
    machine.start()
    machine.wait_for(lambda: "continues from" in machine.logs())
    assert f"at step {stop['step']}" in machine.logs()


def test_a_write_that_never_ends_costs_the_budget_and_no_more(small_shards: str, tmp_path: Path) -> None:
    """The checkpoint before it stands."""
    config = slow_config(checkpoint={"every_steps": 7, "keep_last": 10}, resources={"stop_budget_s": 3})
    pauses = tmp_path / "pauses"
    # The first save is of step 5, the end of an epoch; the second one, of step 7, is held.
    job = Job(tmp_path, small_shards, config, **{PAUSE_AT: "writing:2:0", PAUSE_FILE: str(pauses)})
    try:
        wait_until(pauses.exists, 240)
        job.wait_for_step(5)
        job.process.send_signal(signal.SIGTERM)
        assert job.end() == 75
    finally:
        job.kill()
    assert "within 3 s (resources.stop_budget_s) the ranks did not save" in job.error.message
    assert job.told("stop") == []
    assert last_checkpoint(tmp_path).step == 5
