"""What `plan` says is what `compile` and `submit --dry-run` do: verdict, message and cost."""

import hashlib
import itertools
import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

import pipelines.graph.compile
from contracts import storage
from contracts.artifacts import TrainingEstimate
from contracts.checked import CheckAnswer, Finding
from contracts.config import RunConfig
from pipelines.cli import app
from pipelines.graph.compile import CompiledLine, compile_line
from pipelines.plan.plan import Plan
from pipelines.rules import checks
from tests.pipelines.test_compare import report
from tests.pipelines.test_plan import VALID

CONFIGURATIONS, COMPILED = 200, 20
PRICES = """
source: our contract
date: 2026-11-01
prices:
  - {machine: g2-standard-12, on_demand: 2, spot: 1, flex_start: 1.5}
  - {machine: a3-megagpu-8g, region: us-central1, spot: 40}
"""
# Values of which some are wrong, alone or together; the first of each is what most configurations have.
CHOICES: dict[str, Sequence[str]] = {
    "resources.machine.type": ("g2-standard-12", "a3-megagpu-8g", "n1-standard-8", "a2-highgpu-1g", "g2-standard-5"),
    "resources.machine.accelerator_type": ("''", "''", "''", "NVIDIA_TESLA_T4", "NVIDIA_TESLA_V100"),
    "resources.machine.boot_disk_type": ("pd-ssd", "pd-ssd", "pd-ssd", "pd-standard"),
    "resources.nodes": ("1", "2", "8"),
    "resources.strategy": ("SPOT", "SPOT", "STANDARD", "FLEX_START"),
    "resources.ladder": ("[]", "[]", "[{strategy: SPOT}, {strategy: STANDARD, region: us-east4}]"),
    "resources.max_cost_usd": ("null", "null", "5", "20", "0.1"),
    "resources.price_usd_per_h": ("null", "null", "null", "7"),
    "resources.timeout_hours": ("168", "168", "200"),
    "train.epochs": ("1", "10", "100"),
    "cloud.labels": ("{}", "{team: vision}", "{Team: vision}"),
    "vertex.model.upload": ("true", "false"),
    "cloud.images.serving": (VALID["cloud"]["images"]["serving"], "''"),
    "vertex.failure_policy": ("slow", "fast"),
    "code.path": ("''", "''", "''", "/nonexistent"),
}
RUN_IDS = ("run-1", "run-1", "run-1", "Run 1")


@pytest.fixture
def files(tmp_path: Path) -> dict[str, str]:
    config, prices, profile = tmp_path / "flowers.yaml", tmp_path / "prices.yaml", tmp_path / "elsewhere"
    config.write_text(yaml.safe_dump(VALID))
    prices.write_text(PRICES)
    known = TrainingEstimate(samples=7, hours=1.0, epoch_samples=3_600_000)
    storage.publish(storage.join(storage.normalise(profile), "manifest.json"), report(estimate=known).to_json())
    return {"config": str(config), "prices": str(prices), "profile": str(profile)}


@pytest.fixture(autouse=True)
def _no_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """The stages' own checks are processes of seconds, tested elsewhere: here some of them refuse, by the question."""

    def ask(check: tuple[str, ...], arguments: Sequence[str], keeps: bool = True, folder: str = "") -> CheckAnswer:
        digest = hashlib.sha256(repr(arguments).encode()).digest()[0]
        is_refused = check == checks._PLACE and digest < 40
        refused = [Finding(given=f"place {digest}", allowed="another", todo="change it")] if is_refused else []
        return CheckAnswer(problems=refused)

    monkeypatch.setattr(checks, "_ask", ask)


def draw(chance: random.Random, files: dict[str, str]) -> tuple[list[str], list[str]]:
    """Return the arguments of all commands, and the options of plan and submit alone."""
    changed = chance.sample(list(CHOICES), chance.randrange(7))
    arguments = [files["config"], *(f"{key}={chance.choice(CHOICES[key])}" for key in changed)]
    for option in ("prices", "profile"):
        if chance.random() < 0.4:
            arguments += [f"--{option}", files[option]]
    return arguments, ["--run-id", chance.choice(RUN_IDS)]


def shardline(*arguments: str) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, list(arguments))
    return result.exit_code, result.stdout, result.stderr


@pytest.mark.line
def test_plan_and_submit_agree(files: dict[str, str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    chance = random.Random(26)
    left = itertools.count()
    verdicts: dict[bool, int] = {True: 0, False: 0}
    with_cost = real = 0

    def compile_few(config: RunConfig, plan: Plan) -> CompiledLine:
        plan.require()
        if next(left) < COMPILED:
            return compile_line(config, plan)
        return CompiledLine({"pipelineInfo": {"name": "x"}, "root": {}}, {}, {}, config.run.name, "gs://b/p", {})

    monkeypatch.setattr(pipelines.graph.compile, "compile_line", compile_few)
    for _ in range(CONFIGURATIONS):
        arguments, options = draw(chance, files)
        code, printed, told = shardline("plan", *arguments, *options, "-o", "json")
        submitted, request, said = shardline("submit", *arguments, *options, "--dry-run")
        if not printed:
            # No configuration at all.
            assert (code, submitted, said) == (2, 2, told), arguments
            verdicts[False] += 1
            continue
        plan: dict[str, Any] = json.loads(printed)
        assert submitted == code, (arguments, said)
        assert plan["ok"] is (code == 0)
        verdicts[plan["ok"]] += 1
        if plan["ok"]:
            assert json.loads(request)["estimate"] == plan["estimate"], arguments
            with_cost += plan["estimate"]["rungs"][0]["usd"] is not None
            if real < 3:
                real += 1
                output = str(tmp_path / "line.json")
                assert shardline("compile", *arguments, "--output", output)[0] == 0
                if not plan["estimate"]["price_source"].startswith("unknown"):
                    assert f"price: {plan['estimate']['price_source']}" in said
        else:
            first = plan["problems"][0]
            message = f"error: {first['given']}\n  allowed: {first['allowed']}\n  to do: {first['todo']}"
            assert said.startswith(message), (arguments, said)
            if "--run-id" not in first["given"]:
                compiled, _, told = shardline("compile", *arguments)
                assert (compiled, told.startswith(message)) == (2, True), (arguments, told)
    # A check that cannot fail is none: both verdicts, with and without costs, came about often.
    assert min(verdicts.values()) > CONFIGURATIONS // 5 and with_cost > CONFIGURATIONS // 20


def test_a_cap_holds_at_submit(files: dict[str, str]) -> None:
    arguments = [files["config"], "resources.max_cost_usd=20", "train.epochs=100", "--prices", files["prices"]]
    assert shardline("submit", *arguments, "--dry-run")[0] == 0
    for command in (["submit", "--dry-run"], ["schedule", "create", "--dry-run"], ["compile"], ["plan"]):
        code, printed, said = shardline(*command, *arguments, "schedule.cron=0 6 * * 1", "--profile", files["profile"])
        assert code == 2 and "resources.max_cost_usd = 20" in printed + said, command
