import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from contracts.config import RunConfig
from contracts.errors import ConfigError
from contracts.machines import read_price_file
from contracts.resolve import apply_override, parse_config
from pipelines.plan.inputs import PlanInputs
from pipelines.plan.plan import outline
from pipelines.rules.preflight import RULES, find_problems, find_rungs
from tests.pipelines.compiled import require_plan

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
    (("resources.ladder=[{strategy: SPOT, region: Iowa}]",), "resources.ladder.0.region = Iowa"),
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
        "NVIDIA_L4 comes with g2-standard-*",
    ),
    (("resources.serving_machine.type=g2-standard-5",), "resources.serving_machine: g2-standard-5"),
    (("resources.machine.type=ct5lp-hightpu-4t",), "a TPU"),
    (("resources.machine.type=a3-ultragpu-8g",), "boot_disk_type = pd-ssd of a3-ultragpu-8g"),
    (("resources.machine.boot_disk_type=hyperdisk-balanced",), "boot_disk_type=pd-ssd"),
    (("resources.machine.type=a3-highgpu-1g", "resources.strategy=STANDARD"), "a3-highgpu-1g with 1 x"),
    (
        (
            "resources.machine={type: n1-standard-8, accelerator_type: NVIDIA_TESLA_T4}",
            "resources.strategy=FLEX_START",
        ),
        "by FLEX_START",
    ),
    (
        ("resources.machine={type: a4x-highgpu-4g, boot_disk_type: hyperdisk-balanced}",),
        "a shared reservation",
    ),
    (("resources.ranks=2",), "resources.ranks = 2 on g2-standard-12"),
    (("train.global_batch_size=1",), "at least 2: one sample a rank"),
    (("resources.ladder=[{strategy: SPOT}, {strategy: SPOT, region: us-central1}]",), "is there twice"),
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
            "resources.ladder=[{strategy: SPOT}, {strategy: SPOT, region: us-east1}]",
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
    (("vertex.registry=us-docker.pkg.dev/p/r",), "kfp.pkg.dev"),
    (("vertex.model.aliases=[best, best]",), "each alias once"),
    (("vertex.model.aliases=[default]",), "moves the alias default"),
    (("cloud.images.trainer=us-docker.pkg.dev/p/r/trainer:latest",), "is not pinned by its digest"),
    (
        ("resources.machine={type: n1-standard-8, accelerator_type: NVIDIA_TESLA_V100}",),
        "compute capability sm70, and resources.serving_machine is not set",
    ),
    (
        ("resources.serving_machine={type: n1-standard-8, accelerator_type: NVIDIA_TESLA_P4}",),
        "no code for earlier GPUs",
    ),
    (
        (
            "resources.machine={type: n1-standard-8, accelerator_type: NVIDIA_TESLA_P100}",
            "resources.serving_machine.type=g2-standard-12",
            "train.compile='on'",
        ),
        "compute capability sm60, and train.compile is on",
    ),
    (("resources.machine.boot_disk_type=pd-standard",), "pd-standard of g2-standard-12"),
    (("resources.machine={type: a3-highgpu-8g, boot_disk_type: pd-standard}",), "pd-standard of a3-highgpu-8g"),
    (("code.path=/nonexistent", "model.architecture='net:build'"), "code.path"),
    (("cloud.images.export=''",), "cloud.images.export is not set"),
    (("cloud.images.serving=''",), "vertex.model.upload without cloud.images.serving"),
    (("cloud.images.serving=nvcr.io/nvidia/tritonserver:26.08-py3",), "*.pkg.dev"),
    (("cloud.images.serving=docker.io/gcr.io/x",), "shardline serve RUN --dry-run"),
    (("schedule.cron=0 6 * *",), "schedule.cron"),
    (("schedule.cron=0 6 L * *",), "L is not of unix-cron"),
    (("schedule.cron=0 6 * * 5#2",), "# is not of unix-cron"),
    (("schedule.cron=0 6 * * 1", "schedule.time_zone=Mars/Olympus"), "schedule.time_zone"),
    (("schedule.cron=0 6 * * 1", "schedule.start='2026-12-01'"), "with an offset"),
    (
        (
            "schedule.cron=0 6 * * 1",
            "schedule.start='2026-12-02T00:00:00Z'",
            "schedule.end='2026-12-01T00:00:00Z'",
        ),
        "is not before",
    ),
]


def config(*overrides: str) -> RunConfig:
    values = json.loads(json.dumps(VALID))
    for override in overrides:
        apply_override(values, override)
    return parse_config(values, where="test", overrides=overrides)


@pytest.fixture(autouse=True)
def no_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


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
        "version of the model",
    ]
    unprofiled = require_plan(config("profile=off")).created
    assert [entry for entry in plan.created if entry not in unprofiled] == [plan.created[2]]
    assert plan.timeout_s == 168 * 3600
    assert plan.price_usd_per_h == pytest.approx(2 * 1.15 * (0.44038 + 0.56004), abs=1e-3)


@pytest.mark.parametrize(("overrides", "said"), BREAKS)
def test_a_rule_is_broken(overrides: tuple[str, ...], said: str) -> None:
    problems = find_problems(config(*overrides))
    texts = [f"{problem.given} | {problem.allowed} | {problem.todo}" for problem in problems]
    assert any(said in text for text in texts), texts
    assert len(problems) <= 2, texts
    with pytest.raises(ConfigError) as caught:
        require_plan(config(*overrides))
    assert caught.value.exit_code == 2


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_every_rule_has_a_configuration_that_breaks_it(rule: Callable[[RunConfig], Any]) -> None:
    assert not list(rule(config()))
    assert any(list(rule(config(*overrides))) for overrides, _ in BREAKS)


def test_an_error_says_how_many_more_there_are() -> None:
    with pytest.raises(ConfigError, match=r"also: .*nobody\n  also: .*Runs"):
        require_plan(config("cloud.project=''", "vertex.experiment=My Runs", "vertex.mail=[nobody]"))


def test_a_ladder_is_planned_rung_by_rung() -> None:
    ladder = "[{strategy: SPOT}, {strategy: SPOT, region: us-east1}, {strategy: FLEX_START}, {strategy: STANDARD}]"
    resolved = config(f"resources.ladder={ladder}", "resources.max_wait_s=7200", "schedule.cron=0 6 * * 1")
    assert [(rung.strategy, rung.region) for rung in find_rungs(resolved)] == [
        ("SPOT", "us-central1"),
        ("SPOT", "us-east1"),
        ("FLEX_START", "us-central1"),
        ("STANDARD", "us-central1"),
    ]
    plan = require_plan(resolved)
    assert [rung.suffix for rung in plan.rungs] == ["", "-r2", "-r3", "-r4"]
    assert [rung.max_wait for rung in plan.rungs] == ["", "", "7200s", ""]
    assert plan.rungs[2].quotas[0].metric.endswith("preemptible_nvidia_l4_gpus")
    assert plan.rungs[3].quotas[0].metric.endswith("training_nvidia_l4_gpus")
    said = "\n".join(plan.warnings)
    assert "only `submit --wait` climbs" in said
    assert "scheduled runs take the first rung only: SPOT in us-central1" in said
    assert "across regions" in said


def test_quotas_are_those_of_the_largest_job() -> None:
    plan = require_plan(config("resources.serving_machine={type: n1-standard-8, accelerator_type: NVIDIA_TESLA_T4}"))
    needs = {need.metric.rpartition("preemptible_")[2]: need.amount for need in plan.rungs[0].quotas}
    assert needs == {"nvidia_l4_gpus": 2, "g2_cpus": 24, "nvidia_t4_gpus": 1, "cpus": 8}
    larger = require_plan(config("resources.serving_machine.type=g2-standard-96"))
    needs = {need.metric.rpartition("preemptible_")[2]: need.amount for need in larger.rungs[0].quotas}
    assert needs == {"nvidia_l4_gpus": 8, "g2_cpus": 96}


def test_without_a_ladder_there_is_one_rung() -> None:
    (rung,) = find_rungs(config("resources.strategy=STANDARD"))
    assert (rung.strategy, rung.region) == ("STANDARD", "us-central1")


def test_a_cap_sets_the_time_out() -> None:
    plan = require_plan(config("resources.max_cost_usd=10"))
    assert plan.price_usd_per_h is not None
    assert plan.timeout_s == int(10 / plan.price_usd_per_h * 3600)
    assert any(f"time-out is {plan.timeout_s} s" in text for text in plan.warnings)


def test_a_cap_counts_the_dearest_rung() -> None:
    plan = require_plan(config("resources.max_cost_usd=10", "resources.ladder=[{strategy: SPOT, region: us-east4}]"))
    both = require_plan(
        config(
            "resources.max_cost_usd=10",
            "resources.ladder=[{strategy: SPOT, region: us-east4}, {strategy: SPOT, region: asia-northeast1}]",
        )
    )
    assert both.timeout_s < plan.timeout_s


def test_the_configured_price_wins() -> None:
    plan = require_plan(config("resources.max_cost_usd=20", "resources.price_usd_per_h=100"))
    assert plan.timeout_s == 720
    assert plan.price_source == "resources.price_usd_per_h"


def test_a_cap_below_the_start_of_training_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"max_cost_usd = 0\.1"):
        require_plan(config("resources.max_cost_usd=0.1"))


def test_a_cap_needs_a_price() -> None:
    disk = "boot_disk_type: hyperdisk-balanced"
    unknown = config(f"resources.machine={{type: a4-highgpu-8g, {disk}}}", "resources.max_cost_usd=100")
    with pytest.raises(ConfigError, match="price of the machines is unknown"):
        require_plan(unknown)
    plan = outline(config(f"resources.machine={{type: a4-highgpu-8g, {disk}}}"))
    assert plan.ok
    assert plan.price_usd_per_h is None
    assert "unknown" in plan.price_source


def test_own_prices(tmp_path: Path) -> None:
    path = tmp_path / "prices.yaml"
    path.write_text(
        "source: our contract\ndate: 2026-11-01\nprices: [{machine: g2-standard-12, on_demand: 2, spot: 1}]\n"
    )
    plan = require_plan(config(), PlanInputs(book=read_price_file(path)))
    assert plan.price_usd_per_h == 4
    assert plan.price_source == "our contract (2026-11-01)"


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
    assert "failure_policy=fast" in said("vertex.failure_policy=fast") and "failure_policy" not in said()
