"""Mistakes that the stages' own checks find before one starts: exit code 2, nothing written."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from PIL import Image
from typer.testing import CliRunner

from contracts.checked import Findings, Problem
from contracts.config import RunConfig
from contracts.config.load import parse_config
from pipelines import checks
from pipelines.cli import app
from tests.conftest import OWN_CODE
from tests.pipelines.test_rules import VALID

OWN = {"model": {"architecture": "models_for_tests:without_batchnorm"}, "code": {"path": str(OWN_CODE)}}


@pytest.fixture(autouse=True)
def _without_gpu(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.chdir(tmp_path)


def test_mistakes_end_a_run_with_2_before_a_stage(tmp_path: Path) -> None:
    Image.new("RGB", (8, 8)).save(tmp_path / "1.png")
    local = {"run": {"root": "runs"}, "sharding": {"source": "."}, "data": {"image_size": 16}}
    (tmp_path / "run.yaml").write_text(yaml.safe_dump(local))
    changes = ("model.architecture=resnett", "data.transform=math:sinus")
    answer = CliRunner().invoke(app, ["run", "run.yaml", *changes], obj=0.0)
    assert answer.exit_code == 2, answer.output
    for text in (
        "model.architecture 'resnett' is unknown",
        "data.transform 'math:sinus' (installed)",
        "to do: ",
    ):
        assert text in answer.output
    assert not (tmp_path / "runs").exists()


def test_gpus_of_planned_machines_are_known_and_own_code_is_imported() -> None:
    sections: dict[str, Any] = {**OWN, "parallel": {"sync_batch_norm": True}}
    sections["model"] = {**OWN["model"], "freeze": ["backbone.*"]}
    config = parse_config({**sections, "resources": {"machine": {"type": "n1-standard-8"}}}, where="test")
    frozen, without = (problem.given for problem in checks.check_planned(config).problems)
    assert "model.freeze: the pattern 'backbone.*' matches no" in frozen
    assert "there is no GPU on n1-standard-8" in without


def test_what_a_check_finds_ends_each_command_with_2(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sources = []

    def check(config: RunConfig, *, online: bool) -> Findings:
        sources.append((config.sharding.source, online))
        return Findings(problems=[Problem("no such network", "another", "choose it")])

    monkeypatch.setattr("pipelines.plan.check_planned", check)
    (tmp_path / "line.yaml").write_text(yaml.safe_dump(VALID | {"schedule": {"cron": "0 6 * * 1"}}))
    (tmp_path / "raw.csv").write_text("uri,label\n")
    # The source that is here is looked at, not the copy that is still to be made.
    for command in (["plan"], ["compile"], ["submit", "--dry-run"]):
        answer = CliRunner().invoke(app, [*command, "line.yaml", "sharding.source=raw.csv"])
        assert answer.exit_code == 2 and "no such network" in answer.output, answer.output
    answer = CliRunner().invoke(app, ["schedule", "create", "line.yaml"])
    assert answer.exit_code == 2 and "no such network" in answer.output
    assert sources == [(str(tmp_path / "raw.csv"), False)] * 3 + [("gs://my-bucket/raw", True)]
    assert {path.name for path in tmp_path.iterdir()} == {"line.yaml", "raw.csv"}


def test_a_check_that_ends_or_hangs_is_a_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    python = tmp_path / "python"
    monkeypatch.setattr("sys.executable", str(python))
    monkeypatch.setattr(checks, "TIMEOUT_S", 0.5)
    config, messages = RunConfig(), list[str]()
    for script in ("echo killed >&2; exit 3", "exec sleep 60"):
        python.write_text(f"#!/bin/sh\n{script}\n")
        python.chmod(0o755)
        checks.check_local(config, messages.append)
    ended, hung = messages
    assert ended.startswith("warning: unchecked, since the check ended with exit code 3: killed: own code, network")
    assert hung.startswith("warning: unchecked, since the check timed out after 0.5 s")
