import json
from pathlib import Path

import yaml
from typer.testing import CliRunner

from pipelines.cli import app
from tests.pipelines.test_plan import VALID


def write(folder: Path) -> Path:
    path = folder / "flowers.yaml"
    path.write_text(yaml.safe_dump(VALID))
    return path


def test_a_plan_is_printed(tmp_path: Path) -> None:
    path = write(tmp_path)
    answer = CliRunner().invoke(app, ["plan", str(path), "resources.max_cost_usd=10"])
    assert answer.exit_code == 0, answer.output
    assert "CustomJob of stage train" in answer.output
    assert "2 x g2-standard-12 with 1 x NVIDIA_L4, SPOT" in answer.output
    assert "time: unknown: no finished training" in answer.output
    assert "skypilot-catalog" in answer.output
    assert "time-out of the training job" in answer.output


def test_a_plan_as_json(tmp_path: Path) -> None:
    answer = CliRunner().invoke(app, ["plan", str(write(tmp_path)), "-o", "json"])
    assert answer.exit_code == 0, answer.output
    plan = json.loads(answer.output)
    assert plan["ok"] is True
    assert plan["machine"]["accelerator_type"] == "NVIDIA_L4"
    assert plan["timeout_s"] == 604800


def test_problems_end_with_2(tmp_path: Path) -> None:
    changes = ["resources.machine={type: n1-standard-8, accelerator_type: NVIDIA_L4}", "vertex.mail=[nobody]"]
    answer = CliRunner().invoke(app, ["plan", str(write(tmp_path)), *changes])
    assert answer.exit_code == 2
    assert "problem: resources.machine: n1-standard-8 with NVIDIA_L4" in answer.output
    assert "comes with g2-standard-4" in answer.output
    assert "problem: vertex.mail.0 = nobody" in answer.output
    as_json = CliRunner().invoke(app, ["plan", str(write(tmp_path)), *changes, "-o", "json"])
    assert as_json.exit_code == 2
    assert len(json.loads(as_json.output)["problems"]) == 2
