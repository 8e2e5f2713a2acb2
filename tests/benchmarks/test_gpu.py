"""The GPU check where there is no GPU, and the page that lists what it checks."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from benchmarks.gpu.__main__ import rates
from benchmarks.gpu.lines import LINES
from benchmarks.gpu.marked_tests import MARK, marked_files

REPOSITORY = Path(__file__).parents[2]
PAGE = REPOSITORY / "docs" / "gpu.md"
# What stands in code that does something on a GPU alone.
GPU_WORDS = re.compile(
    r"torch\.(backends\.)?(cuda|cudnn)|import pynvml|libcuda|\"nccl|type == \"cuda\"|is_cuda|driver/nvidia"
    r"|CUDAExecutionProvider"
)
NEEDS_GPU = {line.name for line in LINES if line.without_gpu}


def make(output: Path, *variables: str) -> tuple[int, dict[str, Any]]:
    """Run `make test-gpu` by this interpreter; return its exit code and its result."""
    command = ["make", "test-gpu", f"PYTHON={sys.executable}", "BIN=none", "DEVICE=cpu", f"OUTPUT={output}"]
    return run([*command, *variables], output)


def check(output: Path, *options: str, environment: Mapping[str, str] | None = None) -> tuple[int, dict[str, Any]]:
    """Run what it runs, with options of its own."""
    command = [sys.executable, "-m", "benchmarks.gpu", "--device=cpu", f"--output={output}", *options]
    return run(command, output, environment)


def run(command: list[str], output: Path, environment: Mapping[str, str] | None = None) -> tuple[int, dict[str, Any]]:
    done = subprocess.run(
        command,
        cwd=REPOSITORY,
        env={**os.environ, **(environment or {})},
        capture_output=True,
        text=True,
        check=False,
        timeout=500,
    )
    assert output.exists(), done.stderr
    assert str(output) in done.stdout
    return done.returncode, json.loads(output.read_bytes())


def by_name(result: dict[str, Any]) -> dict[str, dict[str, Any]]:
    assert [line["name"] for line in result["lines"]] == [line.name for line in LINES]
    return {line["name"]: line for line in result["lines"]}


def test_a_line_passes_and_those_that_need_a_gpu_are_not_run(tmp_path: Path) -> None:
    code, result = make(tmp_path / "result.json", "ONLY=fp32")
    lines = by_name(result)
    assert code == 0
    assert {name for name, line in lines.items() if line["status"] == "passed"} == {"fp32"}
    for name, line in lines.items():
        assert line["checked"]
        if name in NEEDS_GPU:
            assert line["status"] == "not run" and line["why"].startswith("no GPU")
    assert (result["format"], result["device"], result["gpus"], result["ranks"]) == (1, None, 0, 2)
    assert result["versions"]["torch"] and result["commit"] and result["date"]
    details = lines["fp32"]["details"]
    assert details["steps"] == 60
    assert details["last_loss"] < details["first_loss"]
    assert result["rates"] == {"fp32": {"shardline": details["samples_per_s"]}}
    assert details["samples_per_s"] > 0


def test_rates_stand_beside_those_of_the_peers_in_the_same_precision() -> None:
    measured = {"fp32": 300.0, "bf16": 900.0, "bare-ddp": {"fp32": 400.0, "bf16": 600.0, "channels-last": 1.0}}
    lines = [{"name": line.name, "details": {}} for line in LINES]
    for line in lines:
        if line["name"] in measured:
            line["details"] = {"samples_per_s": measured[str(line["name"])]}
    assert rates(lines) == {
        "fp32": {"shardline": 300.0, "bare_ddp": 400.0, "over_bare_ddp": 0.75},
        "bf16": {"shardline": 900.0, "bare_ddp": 600.0, "over_bare_ddp": 1.5},
    }


def test_a_line_that_fails_is_named_and_the_exit_code_says_so(tmp_path: Path) -> None:
    code, result = check(tmp_path / "result.json", "--only=fp32", "--set=train.optimizer=lion")
    line = by_name(result)["fp32"]
    assert code == 1
    assert line["status"] == "failed"
    assert "exit code 2" in line["why"] and "lion" in line["why"]
    # No folder of this machine.
    assert str(REPOSITORY) not in json.dumps(result)


@pytest.mark.slow
def test_a_line_that_hangs_is_ended_with_all_its_processes(tmp_path: Path) -> None:
    held = tmp_path / "held.jsonl"
    code, result = check(
        tmp_path / "result.json",
        "--only=fp32",
        "--limit-s=30",
        environment={"SHARDLINE_PAUSE_AT": "start-up:1", "SHARDLINE_PAUSE_FILE": str(held)},
    )
    line = by_name(result)["fp32"]
    assert (code, line["status"]) == (1, "failed")
    assert "did not end within" in line["why"]
    assert "log: WORK/fp32/log.txt" in line["details"]["log"]
    ranks = [json.loads(text)["pid"] for text in held.read_text().splitlines()]
    assert len(ranks) == 2
    deadline = time.monotonic() + 20
    while any(Path(f"/proc/{pid}").exists() for pid in ranks) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not [pid for pid in ranks if Path(f"/proc/{pid}").exists()]


@pytest.mark.slow
@pytest.mark.timeout(510)
def test_the_command_for_gpus_ends_well_without_one(tmp_path: Path) -> None:
    code, result = make(tmp_path / "result.json")
    assert code == 0
    for name, line in by_name(result).items():
        if name in NEEDS_GPU:
            assert line["why"].startswith("no GPU")
        else:
            # Lightning is no dependency.
            assert line["status"] == "passed" or line["why"].startswith("not installed"), line
    assert by_name(result)["resume"]["details"]["bits_equal"] is True
    assert by_name(result)["evaluation"]["details"]["relative_difference"] < 1e-5


def test_tests_for_gpus_are_found_without_importing_them() -> None:
    marked = {path for path in (REPOSITORY / "tests").rglob("*.py") if MARK in path.read_text(encoding="utf-8")}
    assert set(marked_files()) == marked - {Path(__file__)}
    assert len(marked) > 5


def test_the_page_lists_every_gpu_path_and_no_file_that_is_gone() -> None:
    page = PAGE.read_text(encoding="utf-8")
    named = set(re.findall(r"`((?:trainer|benchmarks|tests|contracts|pipelines)/[\w/.]+\.py)`", page))
    assert sorted(name for name in named if not (REPOSITORY / name).exists()) == []
    paths = {
        path.relative_to(REPOSITORY).as_posix()
        for path in (REPOSITORY / "trainer").rglob("*.py")
        if GPU_WORDS.search(path.read_text(encoding="utf-8"))
    }
    assert sorted(paths - named) == [], "docs/gpu.md: a path that does something on a GPU has a row"
    assert sorted({line.name for line in LINES} - set(re.findall(r"`([\w-]+)`", page))) == []
