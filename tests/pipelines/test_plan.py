"""`shardline plan`: what would be created, what it costs at most, and what a cap does."""

import json
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner, Result

from contracts.checked import Findings
from contracts.errors import ConfigError
from pipelines.cli import app
from pipelines.monthly import Workstation, monthly_costs
from pipelines.plan import describe_cost, find_cost
from tests.pipelines.compiled import compile_config, require_plan
from tests.pipelines.test_rules import VALID, config

# Two g2-standard-12 with an L4 each, an hour: vCPUs and GPU.
SPOT, ON_DEMAND = 2 * (0.17621 + 0.2231), 2 * (0.44038 + 0.56004)


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_what_a_run_creates() -> None:
    created = require_plan(config("resources.regions=[us-east1]", "schedule.cron=0 6 * * 1")).created
    assert [entry.what.split(",")[0] for entry in created] == [
        "PipelineJob",
        "Dataflow job of stage shard",
        "CustomJob of stage profile",
        "CustomJob of stage train",
        "CustomJob of stage export",
        "CustomJob of stage register",
        "version of the model",
        "schedule",
    ]
    assert created[3].where == "us-central1 or us-east1"
    assert created[3].on == "2 x g2-standard-12 with 1 x NVIDIA_L4, SPOT"
    assert created[3].usd_per_h == pytest.approx(SPOT, abs=1e-3) == 2 * (created[4].usd_per_h or 0)
    fewer = require_plan(config("profile=off", "register.upload=false")).created
    assert [entry.what.split()[-1] for entry in fewer if "CustomJob" in entry.what] == ["train", "export"]


def test_the_cost_is_a_range_from_spot_to_on_demand_for_the_longest_time() -> None:
    cost = find_cost(config())
    assert (cost.timeout_s, cost.hours) == (168 * 3600, 168)
    assert cost.usd == pytest.approx((168 * SPOT, 168 * ON_DEMAND), abs=0.2)
    cost = find_cost(config("resources.max_hours=10"))
    assert cost.usd == pytest.approx((10 * SPOT, 10 * ON_DEMAND), abs=1e-2)
    assert cost.price_source.startswith("spot, Compute Engine's prices") and cost.hours == 10
    fixed = find_cost(config("resources.max_hours=10", "resources.strategy=STANDARD"))
    assert fixed.usd == pytest.approx((10 * ON_DEMAND, 10 * ON_DEMAND), abs=1e-2)
    own = find_cost(config("resources.max_hours=10", "resources.price_usd_per_h=3"))
    assert own.usd == (30, 30) and own.price_source == "resources.price_usd_per_h"


def test_a_cap_on_spot_machines_is_counted_by_the_spot_price() -> None:
    """By the price on demand it would end the training at a third of the money."""
    capped = config("resources.max_cost_usd=10")
    plan = require_plan(capped)
    assert plan.cost.timeout_s == int(10 / (plan.cost.price_usd_per_h or 0) * 3600)
    assert plan.cost.price_usd_per_h == pytest.approx(SPOT, abs=1e-3)
    assert plan.cost.usd is not None and plan.cost.usd == pytest.approx((10, 10), abs=1e-2)
    assert any(f"time-out is {plan.cost.timeout_s} s" in text for text in plan.warnings)
    # Profile and export have that of the configuration.
    parameters = compile_config(capped).parameters
    assert (parameters["train_timeout"], parameters["timeout"]) == (f"{plan.cost.timeout_s}s", f"{168 * 3600}s")


@pytest.mark.parametrize(
    ("overrides", "name"),
    [
        (["resources.machine={type: a4-highgpu-8g}"], "a4-highgpu-8g with 8 x NVIDIA_B200 by SPOT in us-central1"),
        (["resources.strategy=FLEX_START"], "g2-standard-12 with 1 x NVIDIA_L4 by FLEX_START in us-central1"),
    ],
)
def test_a_price_that_no_table_has_is_unknown_and_refuses_a_cap(overrides: list[str], name: str) -> None:
    cost = require_plan(config(*overrides)).cost
    assert cost.usd is None and cost.price_usd_per_h is None
    assert "cost of training, at most (estimate): unknown" in describe_cost(cost)
    with pytest.raises(ConfigError, match=f"the price of {name} is unknown"):
        require_plan(config(*overrides, "resources.max_cost_usd=100"))


def test_a_cap_below_the_start_of_training_is_refused_and_other_problems_are_named_behind() -> None:
    with pytest.raises(ConfigError, match=r"nobody(.|\n)*also: resources.max_cost_usd = 0\.1 at") as caught:
        require_plan(config("resources.max_cost_usd=0.1", "vertex.mail=[nobody]"))
    assert caught.value.exit_code == 2


def test_a_plan_is_printed_and_problems_end_with_2(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pipelines.plan.check_planned", lambda *_, **__: Findings(warnings=["unchecked, since"]))
    (tmp_path / "flowers.yaml").write_text(yaml.safe_dump(VALID))

    def plan(*words: str, code: int = 0) -> Result:
        answer = CliRunner().invoke(app, ["plan", "flowers.yaml", *words])
        assert answer.exit_code == code, answer.output
        return answer

    output = plan("resources.max_hours=10").stdout
    assert "CustomJob of stage train" in output and "2 x g2-standard-12 with 1 x NVIDIA_L4, SPOT" in output
    for line in (
        "7.99 to 20.01 USD",
        "0.80 USD/h for all training machines, spot, Compute Engine's",
        "time-out of its job: 604800 s",
    ):
        assert line in output
    assert "\nwarning: unchecked, since\n" in output and "problem" not in output
    assert "H100" not in output and output.endswith("\ncan work\n")
    document = json.loads(plan("-o", "json").stdout)
    assert document["ok"] is True and document["cost"]["timeout_s"] == 604800
    changes = ["resources.machine={type: n1-standard-8, accelerator_type: NVIDIA_L4}", "vertex.mail=[nobody]"]
    refused = plan(*changes, code=2).stdout
    for kind in ("resources.machine: n1-standard-8 with NVIDIA_L4", "vertex.mail.0 = nobody"):
        assert f"problem: {kind}" in refused
    assert refused.endswith("\ncannot work: 2 problems\n")
    refused_document = json.loads(plan(*changes, "-o", "json", code=2).stdout)
    assert len(refused_document["problems"]) == 2 and refused_document["ok"] is False


A100 = "resources.machine={type: a2-highgpu-1g}"
L4 = "resources.machine={type: g2-standard-8}"


@pytest.mark.parametrize(
    ("machine", "hours", "usd", "break_even"),
    [
        (A100, 400, [721.5, 1469.4, 1689.2, 938.8, 109.4], [None, None, 460, 256, 19]),
        (L4, 400, [136.2, 341.4, None, None, 109.4], [None, None, None, None, 92]),
    ],
)
def test_a_month_by_each_way_to_pay(
    machine: str, hours: float, usd: list[float | None], break_even: list[float | None]
) -> None:
    costs = monthly_costs(config(machine, "resources.nodes=1"), hours, Workstation(2500, 500, 3, 0.2))
    assert [cost.usd for cost in costs] == [pytest.approx(each, abs=0.1) if each else None for each in usd]
    assert [cost.break_even_hours and round(cost.break_even_hours) for cost in costs] == break_even


def test_a_month_has_730_hours() -> None:
    with pytest.raises(ConfigError, match="up to 730"):
        monthly_costs(config(L4), 731)
