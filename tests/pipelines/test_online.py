"""`plan --online`, and `submit`, with Google's own clients, against the local quotas and the local bucket."""

import functools
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from rehearsal.clock import Clock
from rehearsal.doors.errors import ServiceError
from rehearsal.doors.server import VertexServer
from rehearsal.gcs import BucketServer
from rehearsal.resources.quotas import Quotas
from rehearsal.resources.store import Store
from tests.pipelines.test_plan import VALID

PROJECT, BUCKET = "my-project", "my-bucket"
GPUS, VCPUS = "custom_model_training_preemptible_nvidia_l4_gpus", "custom_model_training_preemptible_g2_cpus"
LIMITS = {GPUS: {"us-central1": 1, "us-east1": 8}, VCPUS: {"us-central1": 1000, "us-east1": 1000}}


class GuardedQuotas(Quotas):
    """Quotas that an account without roles/cloudquotas.viewer may not see."""

    hidden = False

    @property  # type: ignore[override]
    def limits(self) -> dict[str, dict[str, int]]:
        if self.hidden:
            raise ServiceError("PERMISSION_DENIED", "Permission 'cloudquotas.quotas.get' denied on resource")
        return self._limits

    @limits.setter
    def limits(self, given: dict[str, dict[str, int]]) -> None:
        self._limits = given


class NoRuns:
    """Nothing is run here."""

    def start(self, name: str) -> None: ...

    def cancel(self, name: str) -> None: ...


@pytest.fixture(scope="module")
def quotas() -> GuardedQuotas:
    return GuardedQuotas(LIMITS)


@pytest.fixture(scope="module")
def cloud(tmp_path_factory: pytest.TempPathFactory, quotas: GuardedQuotas) -> Iterator[dict[str, str]]:
    """Variables that lead clients to a local cloud."""
    folder = tmp_path_factory.mktemp("cloud")
    runs: Any = NoRuns()
    with BucketServer(folder / "buckets", buckets=[BUCKET], is_open=True) as bucket:
        bucket.objects.create_bucket("here", {"location": "us-central1"})
        bucket.objects.create_bucket("there", {"location": "europe-west4"})
        with VertexServer(
            Store(),
            pipelines=runs,
            custom_jobs=runs,
            clock=Clock(),
            projects={PROJECT: "123456789012"},
            folder=folder,
            quotas=quotas,
            buckets=bucket,
        ) as vertex:
            yield vertex.environment


Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def shardline(cloud: dict[str, str], tmp_path: Path) -> Run:
    """Runs a command of ours on a configuration."""
    path = tmp_path / "flowers.yaml"
    path.write_text(yaml.safe_dump(VALID))

    def run(command: str, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "pipelines.cli", command, str(path), *arguments],
            env={**os.environ, **cloud, "OMP_NUM_THREADS": "1", **variables},
            capture_output=True,
            text=True,
            timeout=240,
            check=False,
        )

    return run


@pytest.fixture
def plan(shardline: Run) -> Run:
    """Runs `shardline plan --online`."""
    return functools.partial(shardline, "plan", "--online")


def test_the_project_s_quotas_decide(plan: Run) -> None:
    answer = plan("run.root=gs://here/runs")
    assert answer.returncode == 2, answer.stderr
    assert f"quota aiplatform.googleapis.com/{GPUS} in us-central1: 2 of 1" in answer.stdout
    assert f"problem: quota aiplatform.googleapis.com/{GPUS} in us-central1 is 1, and a job needs 2" in answer.stdout
    assert "unknown offline" not in answer.stdout


def test_a_submission_is_refused_by_the_same_quota(shardline: Run, quotas: GuardedQuotas) -> None:
    answer = shardline("submit", "run.root=gs://here/runs")
    assert answer.returncode == 2
    assert f"error: quota aiplatform.googleapis.com/{GPUS} in us-central1 is 1, and a job needs 2" in answer.stderr


def test_a_submission_goes_on_where_its_account_may_not_see_quotas(
    shardline: Run, quotas: GuardedQuotas, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(quotas, "hidden", True)
    answer = shardline("submit", "run.root=gs://here/runs")
    assert "warning: not known before the submission: Cloud Quotas: " in answer.stderr
    assert "cloudquotas.quotas.get" in answer.stderr
    assert answer.returncode == 0, answer.stderr
    # Whoever asks for the answer is told that there is none.
    asked = shardline("plan", "run.root=gs://here/runs", "--online")
    assert (asked.returncode, asked.stdout) == (2, "")


def test_a_rung_that_has_its_quota_is_enough(shardline: Run) -> None:
    ladder = "resources.ladder=[{strategy: SPOT}, {strategy: SPOT, region: us-east1}]"
    answer = shardline("submit", "run.root=gs://here/runs", "run.name=ladder", ladder)
    assert f"warning: quota aiplatform.googleapis.com/{GPUS} in us-central1 is 1, a rung needs 2" in answer.stderr
    assert answer.returncode == 0, answer.stderr


def test_enough_of_everything(plan: Run) -> None:
    ladder = "resources.ladder=[{strategy: SPOT, region: us-east1}, {strategy: SPOT}, {strategy: STANDARD}]"
    answer = plan("run.root=gs://here/runs", ladder, "-o", "json")
    assert answer.returncode == 0, answer.stdout + answer.stderr
    made = json.loads(answer.stdout)
    assert made["online"]["bucket_location"] == "us-central1"
    limits = {
        (entry["region"], entry["need"]["metric"].rpartition("/")[2]): entry["limit"]
        for entry in made["online"]["quotas"]
    }
    assert limits["us-east1", GPUS] == 8
    assert limits["us-central1", GPUS] == 1
    # Nobody has said anything of the on-demand ones.
    assert limits["us-central1", "custom_model_training_nvidia_l4_gpus"] is None
    said = "\n".join(made["warnings"])
    assert f"{GPUS} in us-central1 is 1, a rung needs 2" in said
    assert "the project has no quota aiplatform.googleapis.com/custom_model_training_nvidia_l4_gpus" in said


def test_a_bucket_elsewhere(plan: Run) -> None:
    answer = plan("run.root=gs://there/runs", "resources.nodes=1")
    assert answer.returncode == 2
    assert "problem: gs://there is in europe-west4, and cloud.region = us-central1" in answer.stdout


def test_a_bucket_of_many_regions_is_a_warning(plan: Run) -> None:
    answer = plan("resources.nodes=1")
    assert answer.returncode == 0, answer.stdout + answer.stderr
    assert f"warning: gs://{BUCKET} is a multi-region bucket (us)" in answer.stdout


@pytest.mark.parametrize(
    ("arguments", "variables", "said"),
    [
        (("run.root=gs://nowhere/runs",), {}, "nowhere"),
        (("run.root=gs://here/runs", "cloud.project=other-project"), {}, "other-project"),
        (("run.root=gs://here/runs",), {"GOOGLE_APPLICATION_CREDENTIALS": "/nowhere.json"}, "credentials"),
    ],
)
def test_what_cannot_be_asked(plan: Run, arguments: tuple[str, ...], variables: dict[str, str], said: str) -> None:
    answer = plan(*arguments, **variables)
    assert answer.returncode == 2, answer.stdout
    assert said in answer.stderr
    assert "to do:" in answer.stderr
    assert "Traceback" not in answer.stderr


def test_a_plan_without_a_place_asks_nobody(plan: Run) -> None:
    answer = plan("cloud.project=''", "run.root=gs://here/runs", https_proxy="http://127.0.0.1:9")
    assert answer.returncode == 2
    assert "problem: cloud.project is not set" in answer.stdout
