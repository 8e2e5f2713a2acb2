"""Production of a line on this machine: the gate at the end of a run, and `shardline promote`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from contracts import storage
from contracts.config import RunConfig
from contracts.errors import ConfigError, DataError, TryAgain
from contracts.result import RUN_START_NAME, run_uri
from inspection.record import close_run, make_record
from inspection.stages import StageTrace
from pipelines.clean import find_leftovers
from pipelines.promote import decide_here, promote
from tests.components.test_gate import A, B, Judge, Line
from tests.conftest import small_config


def leave_run(config: RunConfig, line: str, run_id: str, fingerprint: str | None, **results: Any) -> str:
    """Leave the documents of a run that has made an export, or none; return its folder."""
    start = json.dumps({"id": run_id, "started_at": "2026-11-22T06:00:00Z"}).encode()
    storage.replace(storage.join(run_uri(line, run_id), RUN_START_NAME), start)
    trace = StageTrace("export", Path())
    if fingerprint is not None:
        # As recorded where the line was before it was moved.
        trace.uri, trace.exit_code, trace.launched_at = f"{line}/export/{fingerprint}", 0, 1.0
    record = make_record(
        run_id=run_id, started_at="2026-11-22T06:00:00Z", config=config, traces=[trace], wall_s=1.0, error=""
    )
    close_run(record.model_copy(update={"results": {**record.results, **results}}), line=line)
    return run_uri(line, run_id)


def test_promote_moves_production_and_is_the_way_back(tmp_path: Path) -> None:
    line = Line(tmp_path)
    runs = {
        name: leave_run(line.config, line.uri, f"run-{name}", name * 16) for name in "ab" if line.publish(name * 16)
    }
    for name in "aba":
        assert promote(runs[name], f"for {name}") == str(storage.local_path(f"{line.uri}/export/{name * 16}"))
        document = json.loads((tmp_path / "weekly/production.json").read_text())
        assert (document["run"], document["why"], document["fingerprint"]) == (f"run-{name}", f"for {name}", name * 16)
    assert list(document["decided"]) == [B]


def test_promote_refuses_what_cannot_be_in_production(tmp_path: Path) -> None:
    line = Line(tmp_path)
    line.publish(A, device="")
    line.publish(B)
    for run, words in (
        (leave_run(line.config, line.uri, "run-a", A), "is unproven: not run on a GPU"),
        (leave_run(line.config, line.uri, "run-c", None), "run run-c has no finished export"),
        (str(tmp_path / "nothing"), "is no run"),
    ):
        with pytest.raises(ConfigError, match=words):
            promote(run, "")
    assert not (tmp_path / "weekly/production.json").exists()
    run = leave_run(line.config, line.uri, "run-b", B)
    (tmp_path / "weekly/production.json").write_text("{")
    with pytest.raises(DataError, match="is not JSON"):
        promote(run, "")
    (tmp_path / "weekly/production.json").unlink()
    (tmp_path / "weekly/runs/run-b/run.json").unlink()
    with pytest.raises(ConfigError, match=r"run run-b has no run\.json"):
        promote(run, "")


def test_production_that_changes_during_the_comparison_is_left_alone(tmp_path: Path) -> None:
    line = Line(tmp_path)
    exports = [line.publish(fingerprint) for fingerprint in (A, B, "c" * 16)]
    line.decide(A, Judge())
    other = leave_run(line.config, line.uri, "run-c", "c" * 16)

    def judge(command: list[str]) -> subprocess.CompletedProcess[bytes]:
        promote(other, "by hand")
        return Judge(0)(command)

    with pytest.raises(TryAgain, match="production has changed meanwhile"):
        decide_here(line.config, line.uri, "run-b", export=exports[1], shards="file:///shards", run=judge)
    assert line.production() == "run-c"


def test_clean_keeps_the_export_in_production(tmp_path: Path) -> None:
    line = Line(tmp_path)
    for number, fingerprint in enumerate((A, B)):
        line.publish(fingerprint)
        leave_run(line.config, line.uri, f"2026112{number}-060000-0001", fingerprint)
    for path in tmp_path.glob("weekly/export/**/*.*"):
        os.utime(path, (0, 0))
    assert [leftover.name for leftover in find_leftovers(line.uri, 1)] == [f"export/{A}"]
    promote(f"{line.uri}/runs/20261120-060000-0001", "")
    assert find_leftovers(line.uri, 1) == []


@pytest.mark.line
def test_a_run_replaces_production_where_it_is_not_worse(pictures: Path, tmp_path: Path) -> None:
    sections = {
        "run": {"name": "small", "root": str(tmp_path / "runs")},
        "sharding": {"source": str(pictures)},
        "export": {"allow_unproven": True, "runtime": "onnx", "precision": "fp32"},
        "profile": {"method": "off"},
        "resources": {"threads": 1},
    }
    config, line = tmp_path / "line.yaml", tmp_path / "runs" / "small"
    config.write_text(yaml.safe_dump(small_config(**sections)))

    def shardline(*words: str) -> subprocess.CompletedProcess[str]:
        done = [sys.executable, "-m", "pipelines.cli", *words]
        return subprocess.run(done, capture_output=True, text=True, timeout=600, check=False, cwd=Path.cwd())

    def run(*overrides: str) -> tuple[str, dict[str, Any], str]:
        """Run the line; return the run in production, the run's decision, and stderr."""
        done = shardline("run", str(config), *overrides)
        assert done.returncode == 0, done.stderr
        production = json.loads((line / "production.json").read_text())["run"]
        return production, json.loads((line / "run.json").read_text())["results"]["register"], done.stderr

    first, decision, _ = run()
    assert decision["verdict"] == "production" and (line / "runs" / first).is_dir()
    production, decision, output = run("train.learning_rate=0.0000001")
    assert (production, decision["verdict"]) == (first, "kept out") and "gate: kept out" in output
    worse = json.loads((line / "run.json").read_text())["id"]
    assert f"shardline promote {line}/runs/{worse}`" in output
    for name in (worse, first):
        done = shardline("promote", str(line / "runs" / name), "--why", "a test")
        assert done.returncode == 0 and done.stdout.startswith("in production: "), done.stderr
    (line / "production.json").write_text("[]")
    done = shardline("run", str(config))
    assert done.returncode == 2 and "production.json is a 'list' document" in done.stderr
    assert "shard    starts" not in done.stderr
