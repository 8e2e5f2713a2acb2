import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from contracts.artifacts import RunRecord, StageRecord
from contracts.config import RunConfig
from contracts.config.load import apply_override, parse_config
from contracts.errors import ConfigError
from pipelines.plan import describe_cost, outline
from pipelines.rules.preflight import find_problems, find_regions
from tests.inspection.planted import make_goodput
from tests.pipelines.compiled import compile_config, require_plan

DIGEST = "@sha256:" + "0123456789abcdef" * 4
VALID: dict[str, Any] = {
    "run": {"name": "flowers", "root": "gs://my-bucket/runs"},
    "sharding": {"source": "gs://my-bucket/raw"},
    "resources": {"machine": {"type": "g2-standard-12"}, "nodes": 2},
    "cloud": {
        "project": "my-project",
        "region": "us-central1",
        "images": {
            role: f"us-docker.pkg.dev/p/r/{role}{DIGEST}" for role in ("pipeline", "trainer", "export", "serving")
        },
    },
    "vertex": {"model": {"upload": True}},
}

# What breaks each rule -> what the problem says.
BREAKS: list[tuple[tuple[str, ...], str]] = [
    (("cloud.project=''",), "cloud.project is not set"),
    (("cloud.project=My Project",), "cloud.project = My Project"),
    (("cloud.region=''",), "cloud.region is not set"),
    (("cloud.region=us-central1-a",), "not a zone"),
    (("resources.regions=[Iowa]",), "resources.regions.0 = Iowa"),
    (("run.root=/tmp/runs",), "run.root = /tmp/runs"),
    (("run.root=gs://My_Bucket!/x",), "run.root: bucket"),
    (("sharding.source=raw",), "sharding.source = raw"),
    (("sharding.source=''",), "sharding.source is not set"),
    (("model.weights=/data/w.pt",), "model.weights = /data/w.pt"),
    (
        ("train.early_stopping={}", "sharding.splits={train: 0.8, validation: 0, test: 0.2}"),
        "train.early_stopping with sharding.splits.validation = 0",
    ),
    (("run.name=9_flowers",), "run.name = 9_flowers"),
    (("run.name=" + "a" * 41,), "up to 39 letters"),
    (("resources.machine.type=''",), "resources.machine: type is not set"),
    (
        ("resources.machine.type=n1-standard-8", "resources.machine.accelerator_type=NVIDIA_L4"),
        "NVIDIA_L4 comes with g2-standard-4",
    ),
    (("resources.serving_machine.type=g2-standard-5",), "resources.serving_machine: g2-standard-5"),
    (("resources.machine.type=ct5lp-hightpu-4t",), "a TPU"),
    (("resources.machine.type=a3-highgpu-1g", "resources.strategy=STANDARD"), "a3-highgpu-1g with 1 x"),
    (
        (
            "resources.machine={type: n1-standard-8, accelerator_type: NVIDIA_TESLA_T4}",
            "resources.strategy=FLEX_START",
        ),
        "by FLEX_START",
    ),
    (("resources.ranks=2",), "resources.ranks = 2 on g2-standard-12"),
    (("train.global_batch_size=1",), "at least 2: one sample a rank"),
    (("resources.regions=[us-east4, us-east4]",), "is there twice"),
    (("resources.regions=[us-central1]",), "or is cloud.region"),
    (("resources.strategy=FLEX_START", "resources.timeout_hours=200"), "with FLEX_START"),
    (
        (
            "vertex.peered_network=projects/12/global/networks/vpc",
            "vertex.psc_attachment=projects/my-project/regions/us-central1/networkAttachments/a",
        ),
        "are both set",
    ),
    (("vertex.peered_network=projects/my-project/global/networks/vpc",), "projects/NUMBER/global/networks"),
    (
        ("vertex.psc_attachment=projects/my-project/regions/us-east1/networkAttachments/a",),
        "vertex.psc_attachment is in us-east1",
    ),
    (("vertex.tensorboard=projects/12/locations/us-central1/tensorboards/34",), "cloud.service_account"),
    (
        (
            "vertex.tensorboard=projects/12/locations/us-east1/tensorboards/34",
            "cloud.service_account=a@my-project.iam.gserviceaccount.com",
        ),
        "vertex.tensorboard is in us-east1, jobs run in us-central1",
    ),
    (("vertex.tensorboard=my-board", "cloud.service_account=a@b.com"), "tensorboards/NUMBER"),
    (
        ("cloud.kms_key=projects/my-project/locations/europe-west4/keyRings/r/cryptoKeys/k",),
        "cloud.kms_key is in europe-west4",
    ),
    (
        (
            "cloud.kms_key=projects/my-project/locations/us-central1/keyRings/r/cryptoKeys/k",
            "resources.regions=[us-east1]",
        ),
        "jobs run in us-east1",
    ),
    (("cloud.kms_key=k",), "cryptoKeys/KEY"),
    (("cloud.labels={Team: vision}",), "cloud.labels.Team"),
    (("cloud.labels={team: Vision}",), "cloud.labels.team = Vision"),
    (("cloud.labels={goog-team: vision}",), "not with goog"),
    (("resources.env={RANK: '0'}",), "resources.env.RANK"),
    (("resources.env={CLUSTER_SPEC: '{}'}",), "resources.env.CLUSTER_SPEC"),
    (("resources.env={PET_NNODES: '2'}",), "resources.env.PET_NNODES"),
    (("resources.env={a-b: '2'}",), "no variable's name"),
    (("cloud.service_account=me",), "cloud.service_account = me"),
    (("vertex.mail=[a@b.com, nobody]",), "vertex.mail.1 = nobody"),
    (("vertex.experiment=My Runs",), "vertex.experiment"),
    ((f"vertex.experiment={81 * 'e'}",), "up to 80"),
    (("cloud.images.trainer=us-docker.pkg.dev/p/r/trainer:latest",), "is not pinned by its digest"),
    (
        ("resources.machine={type: n1-standard-8, accelerator_type: NVIDIA_TESLA_V100}",),
        "compute capability sm70, and resources.serving_machine is not set",
    ),
    (
        ("resources.serving_machine={type: n1-standard-8, accelerator_type: NVIDIA_TESLA_V100}",),
        "no code for earlier GPUs",
    ),
    (("code.path=/nonexistent", "model.architecture='net:build'"), "code.path"),
    (("cloud.images.export=''",), "cloud.images.export is not set"),
    (("cloud.images.serving=''",), "vertex.model.upload without cloud.images.serving"),
    (("cloud.images.serving=nvcr.io/nvidia/tritonserver:26.08-py3",), "*.pkg.dev"),
    (("cloud.images.serving=docker.io/gcr.io/x",), "triton/README.md of an export"),
    (("schedule.cron=0 6 * *",), "schedule.cron = 0 6 * *: it has 4 fields"),
    (("schedule.cron=0 6 L * *",), "'L' is not of unix-cron"),
    (("schedule.cron=0 6 * * 5#2",), "'5#2' is not of unix-cron"),
    (("schedule.cron=60 6 * * *",), "schedule.cron = 60 6 * * *: Bad minute"),
    (("schedule.cron=0 24 * * *",), "Bad hour"),
    (("schedule.cron=0 6 * * 8",), "Bad day-of-week"),
    (("schedule.cron=0 6 31 2 *",), "Bad day-of-month"),
    (("schedule.cron=0 6 31 4,6 *",), "Bad day-of-month"),
    (("schedule.cron='*/0 6 * * *'",), "Bad minute"),
    (("schedule.cron=0 6 * 13 *",), "Bad month"),
    (("schedule.cron=0 6 * * 1", "schedule.time_zone=Mars/Olympus"), "schedule.time_zone"),
]


def config(*overrides: str) -> RunConfig:
    values = json.loads(json.dumps(VALID))
    for override in overrides:
        apply_override(values, override)
    return parse_config(values, where="test", overrides=overrides)


@pytest.fixture(autouse=True)
def no_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("cron", ["*/15 0-23/2 1,15 JAN-mar mon-FRI", "0 6 * * 7", " 0  6 29 2 * "])
def test_a_line_of_unix_cron_is_no_problem(cron: str) -> None:
    assert find_problems(config(f"schedule.cron='{cron}'", "schedule.time_zone=Europe/Berlin")) == ()


def test_time_zones_are_known_without_those_of_the_system() -> None:
    # What a slim image is: the zones are those of the package tzdata.
    tried = "import zoneinfo; zoneinfo.reset_tzpath([]); zoneinfo.ZoneInfo('Europe/Berlin')"
    subprocess.run([sys.executable, "-c", tried], check=True)


def test_a_valid_configuration_has_no_problem() -> None:
    plan = require_plan(config())
    assert plan.ok
    assert plan.machine is not None
    assert plan.machine.label == "g2-standard-12 with 1 x NVIDIA_L4"
    assert [entry.what.split(",")[0] for entry in plan.created] == [
        "PipelineJob",
        "Dataflow job of stage shard",
        "CustomJob of stage profile",
        "CustomJob of stage train",
        "CustomJob of stage export",
        "CustomJob of stage register",
        "version of the model",
    ]
    unprofiled = require_plan(config("profile=off")).created
    assert [entry for entry in plan.created if entry not in unprofiled] == [plan.created[2]]
    assert plan.timeout_s == 168 * 3600
    assert plan.price_usd_per_h == pytest.approx(2 * (0.17621 + 0.2231), abs=1e-3)


@pytest.mark.parametrize(("overrides", "said"), BREAKS)
def test_a_rule_is_broken(overrides: tuple[str, ...], said: str) -> None:
    problems = find_problems(config(*overrides))
    texts = [f"{problem.given} | {problem.allowed} | {problem.todo}" for problem in problems]
    assert any(said in text for text in texts), texts
    assert len(problems) <= 2, texts
    with pytest.raises(ConfigError) as caught:
        require_plan(config(*overrides))
    assert caught.value.exit_code == 2


def test_an_error_says_how_many_more_there_are() -> None:
    with pytest.raises(ConfigError, match=r"also: .*nobody\n  also: .*Runs"):
        require_plan(config("cloud.project=''", "vertex.experiment=My Runs", "vertex.mail=[nobody]"))


def test_further_regions_are_for_submit_with_wait() -> None:
    resolved = config("resources.regions=[us-east1, us-west1]")
    assert find_regions(resolved) == ["us-central1", "us-east1", "us-west1"]
    plan = require_plan(resolved)
    assert plan.created[0].region == "us-central1 or us-east1 or us-west1"
    assert "only `submit --wait` tries us-east1, us-west1" in "\n".join(plan.warnings)


def test_a_cap_sets_the_time_out_of_the_training_by_the_spot_price() -> None:
    capped = config("resources.max_cost_usd=10")
    plan = require_plan(capped)
    assert plan.price_usd_per_h == pytest.approx(2 * (0.17621 + 0.2231), abs=1e-3)
    assert plan.timeout_s == int(10 / plan.price_usd_per_h * 3600)
    assert any(f"time-out is {plan.timeout_s} s" in text for text in plan.warnings)
    # Profile and export have that of the configuration.
    parameters = compile_config(capped).parameters
    assert (parameters["train_timeout"], parameters["timeout"]) == (f"{plan.timeout_s}s", f"{168 * 3600}s")


def test_the_configured_price_wins() -> None:
    plan = require_plan(config("resources.max_cost_usd=20", "resources.price_usd_per_h=100"))
    assert plan.timeout_s == 720
    assert plan.price_source == "resources.price_usd_per_h"


def test_a_cap_below_the_start_of_training_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"max_cost_usd = 0\.1"):
        require_plan(config("resources.max_cost_usd=0.1"))


@pytest.mark.parametrize(
    ("overrides", "name"),
    [
        (
            ("resources.machine={type: a4-highgpu-8g}",),
            "a4-highgpu-8g with 8 x NVIDIA_B200 by SPOT in us-central1",
        ),
        (("cloud.region=europe-west4",), "g2-standard-12 with 1 x NVIDIA_L4 by SPOT in europe-west4"),
        (("resources.strategy=FLEX_START",), "g2-standard-12 with 1 x NVIDIA_L4 by FLEX_START in us-central1"),
    ],
)
def test_a_cap_without_a_price_is_refused_by_name(overrides: tuple[str, ...], name: str) -> None:
    with pytest.raises(ConfigError, match=f"the price of {name} is unknown"):
        require_plan(config(*overrides, "resources.max_cost_usd=100"))
    plan = outline(config(*overrides))
    assert plan.ok and plan.price_usd_per_h is None and name in plan.price_source


def test_cost_is_a_range_where_hours_are_given() -> None:
    assert require_plan(config()).usd is None
    plan = require_plan(config("resources.max_hours=10"))
    spot, on_demand = 2 * (0.17621 + 0.2231), 2 * (0.44038 + 0.56004)
    assert plan.usd == (pytest.approx(10 * spot, abs=1e-2), pytest.approx(10 * on_demand, abs=1e-2))
    assert "time: 10.00 h, resources.max_hours" in describe_cost(plan)


@pytest.mark.parametrize(
    ("machine", "hours"),
    [("g2-standard-12", 3.0), ("g2-standard-16", None), ("n1-standard-8", None)],
)
def test_a_former_training_counts_on_the_very_same_machines_alone(
    tmp_path: Path, machine: str, hours: float | None
) -> None:
    """A GPU is the one of its exact name: T4 and L4 are no parts of others."""
    root = f"run.root={tmp_path}"
    accelerator = ", accelerator_type: NVIDIA_TESLA_T4" if machine.startswith("n1") else ""
    ran = config(root, f"resources.machine={{type: {machine}{accelerator}}}")
    record = RunRecord(
        fingerprint="0",
        id="run-1",
        state="succeeded",
        started_at="2026-11-22T06:00:00Z",
        config=ran.model_dump(mode="json"),
        stages=[StageRecord(name="train", state="done")],
        wall_s=1.0,
        process_start_s=0.0,
        results={},
        goodput=make_goodput(node_hours=6.0),
    )
    folder = tmp_path / "flowers" / "runs" / "run-1"
    folder.mkdir(parents=True)
    (folder / "run.json").write_bytes(record.to_json())
    plan = outline(config(root))
    assert plan.hours == hours
    assert outline(config(root, "train.epochs=99")).hours is None


def test_no_serving_image_is_needed_where_nothing_is_uploaded() -> None:
    assert require_plan(config("cloud.images.serving=''", "vertex.model.upload=false")).ok
    for image in ("us-central1-docker.pkg.dev/p/r/triton:26.08", "gcr.io/p/triton", "eu.gcr.io/p/triton:1"):
        assert require_plan(config(f"cloud.images.serving={image}")).ok


def test_what_does_nothing_or_leaves_no_record_is_warned_of() -> None:
    def said(*overrides: str) -> str:
        return "\n".join(outline(config(*overrides)).warnings)

    a3 = "resources.machine={type: a3-megagpu-8g}"
    assert "nccl-env-profile.sh" in said(a3) and "over plain TCP" not in said(a3, "resources.nodes=1")
    assert "over plain TCP" not in said()
