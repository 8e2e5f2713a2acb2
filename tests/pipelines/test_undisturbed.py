"""The undisturbed training of a rehearsal: it begins once the disturbed one has succeeded, for a line of its own."""

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from google.cloud.aiplatform_v1 import types

from contracts.config import RunConfig
from pipelines.rehearse.result import UNDISTURBED, Result
from pipelines.rehearse.undisturbed import begin_training, compare
from rehearsal.cloud import LocalCloud
from rehearsal.machines.machine import Scale
from tests.conftest import small_config

PARENT = "projects/123456789012/locations/us-central1/customJobs"
STATE: Any = types.JobState
MACHINE = {"type": "n1-standard-4"}
CONFIG = RunConfig.model_validate(
    small_config(
        run={"name": "small"},
        resources={"machine": MACHINE},
        cloud={"project": "acme", "region": "us-central1"},
    )
)
LINE = "gs://line-1/lines/small"
# What the job runs: it notes its arguments in a file.
PROGRAM = "import pathlib, sys; pathlib.Path(sys.argv[1]).write_text(' '.join(sys.argv[2:]))"


def executor_input(name: str, line: str, run: str) -> str:
    """What the task train is given for a run of a line."""
    config = json.dumps({"run": {"name": name, "root": "gs://line-1/lines"}, "train": {"epochs": 2}})
    folder = f"{line}/pipeline/123456789012/{run}/train_7"
    model = {"name": "m", "uri": f"{folder}/model", "metadata": {}}
    outputs = {"artifacts": {"model": {"artifacts": [model]}}, "outputFile": f"{folder}/executor_output.json"}
    shards = {"artifacts": [{"name": "s", "uri": f"{LINE}/shard/0123", "metadata": {"samples": 120.0}}]}
    return json.dumps(
        {"inputs": {"parameterValues": {"config": config}, "artifacts": {"shards": shards}}, "outputs": outputs}
    )


@pytest.fixture
def cloud(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LocalCloud]:
    """A local cloud in which the job "small-train" runs."""
    with LocalCloud(
        tmp_path / "cloud", projects={"acme": "123456789012"}, buckets=["line-1"], scale=Scale(time_scale=0.01)
    ) as found:
        container = {
            "image_uri": "us-docker.pkg.dev/p/r/i:1",
            "command": ["python", "-c", PROGRAM, str(tmp_path / "arguments")],
            "args": ["--executor-input", executor_input("small", LINE, "r")],
        }
        pool = {"machine_spec": {"machine_type": "n1-standard-4"}, "replica_count": 1, "container_spec": container}
        spec = {"worker_pool_specs": [pool], "scheduling": {"strategy": "SPOT"}}
        name = f"{PARENT}/1"
        job = types.CustomJob(name=name, display_name="small-train", job_spec=spec, state=STATE.JOB_STATE_RUNNING)
        found.store.add(name, job)
        for variable, value in found.environment.items():
            monkeypatch.setenv(variable, value)
        yield found


def jobs(cloud: LocalCloud) -> list[Any]:
    return list(cloud.store.list("projects/", types.CustomJob))


class EndsAtTheSecondLook(threading.Event):
    """Ends the disturbed training when it is looked at for the second time."""

    def __init__(self, cloud: LocalCloud) -> None:
        super().__init__()
        self.cloud, self.running = cloud, [0]

    def wait(self, timeout: float | None = None) -> bool:
        self.running.append(len(jobs(self.cloud)))
        if len(self.running) == 3:
            self.cloud.store.update(f"{PARENT}/1", lambda job: setattr(job, "state", STATE.JOB_STATE_SUCCEEDED))
        return False


def test_it_begins_when_the_disturbed_one_has_succeeded(cloud: LocalCloud, tmp_path: Path) -> None:
    over = EndsAtTheSecondLook(cloud)
    training = begin_training(cloud, CONFIG, LINE, over)
    assert training.result(120) == ""
    # Until then there was one job.
    assert over.running == [0, 1, 1]
    fresh, disturbed = jobs(cloud)
    assert (fresh.display_name, disturbed.display_name) == (UNDISTURBED, "small-train")
    assert fresh.job_spec.scheduling.strategy.name == "STANDARD"
    option, _, given = (tmp_path / "arguments").read_text().partition(" ")
    wanted = executor_input(f"small-{UNDISTURBED}", f"{LINE}-{UNDISTURBED}", UNDISTURBED)
    assert option == "--executor-input" and json.loads(given) == json.loads(wanted)


def test_a_region_that_failed_does_not_end_the_wait(cloud: LocalCloud) -> None:
    failed = types.CustomJob(name=f"{PARENT}/0", display_name="small-train", state=STATE.JOB_STATE_FAILED)
    cloud.store.add(failed.name, failed)
    over = threading.Event()
    threading.Timer(1.0, over.set).start()
    training = begin_training(cloud, CONFIG, LINE, over)
    with pytest.raises(TimeoutError):
        training.result(0.3)
    assert training.result(120) == "the disturbed training did not succeed"


def test_a_sharding_that_fails_again_is_no_difference(cloud: LocalCloud) -> None:
    """The source of this configuration is not there."""
    disturbed = Result("r", LINE, 0, CONFIG, [], {})
    comparison = compare(cloud, disturbed, None, has_rules=True)
    assert comparison.shards is None and comparison.reason.startswith("the second sharding failed: ")


def test_a_submission_that_ends_without_a_training_has_nothing_to_compare(cloud: LocalCloud) -> None:
    over = threading.Event()
    over.set()
    training = begin_training(cloud, CONFIG, LINE, over)
    assert training.result(120) == "the disturbed training did not succeed" and len(jobs(cloud)) == 1
