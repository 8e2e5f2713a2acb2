"""Mistakes that `run`, `plan`, `submit` and `schedule` find before a stage starts, exit code 2, nothing written."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from PIL import Image
from typer.testing import CliRunner, Result

import pipelines.rules.checks
from contracts.config.load import parse_config
from pipelines.cli import app
from pipelines.rules.checks import check_here, check_planned
from tests.conftest import OWN_CODE
from tests.pipelines.test_plan import VALID

# On CPU machines, as here.
ON_VERTEX: dict[str, Any] = {**VALID, "resources": {"machine": {"type": "n1-standard-4"}, "nodes": 1}}
OWN = "models_for_tests:without_batchnorm"
COMMANDS = {"run": [], "plan": [], "submit": ["--dry-run"]}
# What is set -> what is said; several at once, since each command starts processes that load torch.
MISTAKES: dict[str, tuple[list[str], list[str]]] = {
    "all but patterns": (
        [
            *("model.architecture=resnett", "data.transform=math:sinus"),
            *(
                "train.precision=fp16",
                "export.runtime=tensorrt_rtx",
                "export.targets=[h100]",
                "parallel.sync_batch_norm=true",
            ),
        ],
        [
            "model.architecture 'resnett' is unknown",
            "data.transform 'math:sinus' (installed)",
            "train.precision is fp16, and there is no GPU",
            "tensorrt_rtx builds no engine for sm90 (h100, h100-80gb, h200)",
            "parallel.sync_batch_norm is on, but there is no GPU",
        ],
    ),
    "own network": (
        [
            f"model.architecture={OWN}",
            f"code.path={OWN_CODE}",
            "model.arguments.dropuot=0.5",
        ],
        ["cannot be built", "unexpected keyword argument 'dropuot'"],
    ),
    "patterns": (
        [f"model.architecture={OWN}", f"code.path={OWN_CODE}", "model.freeze=[backbone.*]"],
        ["model.freeze: the pattern 'backbone.*' matches no"],
    ),
}


@pytest.fixture(autouse=True)
def _without_gpu(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def call(tmp_path: Path) -> Callable[..., Result]:
    """Runs a command on a configuration that suits it, with changes."""
    for name in ("left", "right"):
        (tmp_path / "raw" / name).mkdir(parents=True)
        Image.new("RGB", (8, 8)).save(tmp_path / "raw" / name / "1.png")
    (tmp_path / "cut.safetensors").write_bytes(b"cut")
    local = {"run": {"root": "runs"}, "sharding": {"source": "raw"}, "data": {"image_size": 16}}
    (tmp_path / "run.yaml").write_text(yaml.safe_dump(local))
    (tmp_path / "vertex.yaml").write_text(yaml.safe_dump({**ON_VERTEX, "data": {"image_size": 16}}))

    def invoke(command: str, *arguments: str) -> Result:
        file = "run.yaml" if command == "run" else "vertex.yaml"
        return CliRunner().invoke(app, [*command.split(), file, *arguments], obj=0.0)

    return invoke


@pytest.mark.parametrize(
    ("command", "mistakes"),
    [("run", "all but patterns"), ("plan", "patterns"), ("submit", "own network")],
)
def test_mistakes_end_a_command_with_2_before_a_stage(
    command: str, mistakes: str, call: Callable[..., Result], tmp_path: Path
) -> None:
    changes, said = MISTAKES[mistakes]
    answer = call(command, *changes, *COMMANDS[command])
    assert answer.exit_code == 2, answer.output
    for text in (*said, "to do: "):
        assert text in answer.output
    assert not (tmp_path / "runs").exists()


def test_weights_are_looked_at_here_and_must_be_in_a_bucket_for_vertex_ai(call: Callable[..., Result]) -> None:
    weights = [f"model.architecture={OWN}", f"code.path={OWN_CODE}", "model.weights=cut.safetensors"]
    for command, said in (
        ("run", "cut.safetensors cannot be read as safetensors"),
        ("submit", "no machine of Vertex AI sees this one's disk"),
    ):
        answer = call(command, *weights, *COMMANDS[command])
        assert answer.exit_code == 2, answer.output
        assert said in answer.output


def test_a_schedule_is_refused_likewise(call: Callable[..., Result]) -> None:
    answer = call(
        "schedule create",
        f"model.architecture={OWN}",
        f"code.path={OWN_CODE}",
        "export.runtime=tensorrt_rtx",
        "export.targets=[h100]",
        "schedule.cron=0 6 * * 1",
        "--dry-run",
    )
    assert answer.exit_code == 2 and "no engine for sm90" in answer.output


def test_plan_refuses_own_code_without_its_folder(call: Callable[..., Result]) -> None:
    answer = call("plan", f"model.architecture={OWN}", f"code.path={OWN_CODE}")
    assert answer.exit_code == 0, answer.output
    said = " ".join(answer.output.split())
    # It travels with the line.
    assert "model.architecture" not in said
    refused = call("plan", f"model.architecture={OWN}")
    assert refused.exit_code == 2 and "set code.path to the folder that holds it" in refused.output


def test_a_check_that_ends_or_hangs_is_a_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "ends_all.py").write_text("import os\nos._exit(3)\n")
    code = {"code": {"path": str(tmp_path)}}
    config = parse_config({"model": {"architecture": "ends_all:net"}} | code, where="test")
    found = check_here(config)
    assert found.problems == ()
    (warning,) = found.warnings
    assert warning.startswith("unchecked, since the check ended with exit code 3: own code, network, weights")
    (tmp_path / "hangs.py").write_text("import time\ntime.sleep(60)\n")
    monkeypatch.setattr(pipelines.rules.checks, "TIMEOUT_S", 0.01)
    found = check_here(parse_config({"model": {"architecture": "hangs:net"}} | code, where="test"))
    assert found.problems == () and "the check has not ended after 0.01 s" in found.warnings[0]


def test_gpus_of_planned_machines_are_known() -> None:
    sections = {"model": {"architecture": OWN}, "code": {"path": str(OWN_CODE)}, "parallel": {"sync_batch_norm": True}}

    def problems(machine: str) -> list[str]:
        config = parse_config({**sections, "resources": {"machine": {"type": machine}}}, where="test")
        return [problem.given for problem in check_planned(config).problems]

    assert problems("g2-standard-12") == []
    (problem,) = problems("n1-standard-8")
    assert "there is no GPU on n1-standard-8" in problem
