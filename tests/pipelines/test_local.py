"""`shardline run` up to a stage that fails; the whole line is tests/test_line.py's."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from contracts.artifacts import RunRecord
from contracts.config import RunConfig
from contracts.errors import ConfigError
from inspection.run.find import find_place
from inspection.run.read import read_run
from pipelines.local.drill import run_drill
from pipelines.local.run import check_line
from pipelines.local.stages import run_stage_alone

Shardline = Callable[..., subprocess.CompletedProcess[str]]
KFP_CHATTER = ("KFP Executor", "executor_input", "parameterValues", "INFO", "Traceback", "RuntimeError")


def read_record(path: Path) -> RunRecord:
    return RunRecord.parse(path.read_bytes(), where=str(path))


@pytest.fixture(scope="module")
def failed(shardline: Shardline) -> subprocess.CompletedProcess[str]:
    """A run whose shards are made, and whose next stage refuses its number of workers."""
    # Refused before the stage starts a process that loads torch.
    return shardline("run", "tiny.yaml", "data.num_workers=3", "profile.num_workers=[0, 1]", "resources.ranks=1")


@pytest.fixture(scope="module")
def line(project: Path, failed: subprocess.CompletedProcess[str]) -> Path:
    assert failed.stdout.splitlines()[-1] == "runs/tiny"
    return project / "runs" / "tiny"


def test_the_stages_error_is_the_runs(failed: subprocess.CompletedProcess[str]) -> None:
    assert failed.returncode == 2
    assert "error: stage profile: " in failed.stderr
    assert "data.num_workers" in failed.stderr
    assert "to do:" in failed.stderr


def test_kfp_is_silent(failed: subprocess.CompletedProcess[str], line: Path) -> None:
    for word in KFP_CHATTER:
        assert word not in failed.stdout + failed.stderr
    (log,) = line.glob("runs/*/kfp.log")
    assert "parameterValues" in log.read_text()


def test_progress_is_drawn_from_events(failed: subprocess.CompletedProcess[str]) -> None:
    lines = failed.stderr.splitlines()
    assert lines[0] == "shard    starts"
    assert any(text.startswith("shard    done: ") for text in lines)
    assert "profile  failed" in lines


def test_a_root_called_python3_is_where_the_shards_are(line: Path) -> None:
    assert "python3" in str(line)
    assert len(list(line.glob("shard/*/manifest.json"))) == 1
    assert list(line.glob("profile/*/manifest.json")) == []


def test_the_record_of_a_failed_run(line: Path) -> None:
    record = read_record(line / "run.json")
    assert record.state == "failed"
    assert "data.num_workers" in record.error
    assert [stage.state for stage in record.stages] == ["done", "failed", "not started", "not started"]
    shard = record.stages[0]
    assert shard.uri is not None
    assert shard.manifest_sha256 is not None
    assert 0 < shard.start_s < shard.wall_s < record.wall_s
    assert record.process_start_s >= shard.start_s
    assert 0 < record.kfp_s < record.wall_s
    assert sum(record.results["data"]["samples"].values()) == 48
    assert record.config["run"]["root"] == str(line.parent)
    assert "# Run " in (line / "report.md").read_text()


def test_the_run_has_its_own_folder(line: Path) -> None:
    (start_path,) = line.glob("runs/*/run-start.json")
    start = json.loads(start_path.read_text())
    assert start["id"] == start_path.parent.name == read_record(line / "run.json").id
    for name in ("run.json", "report.md"):
        assert (start_path.parent / name).read_bytes() == (line / name).read_bytes()


def test_nothing_stays_in_the_folder_for_temporary_files(line: Path, environment: dict[str, str]) -> None:
    assert line.exists()
    assert list(Path(environment["TMPDIR"]).iterdir()) == []


def test_a_second_run_reuses_the_shards(line: Path, shardline: Shardline) -> None:
    answer = shardline("run", "tiny.yaml", "data.num_workers=4", "profile.num_workers=[0, 1]")
    assert answer.returncode == 2
    assert "data.num_workers" in answer.stderr
    assert "shard    reused: finished before, nothing to do" in answer.stderr
    assert [stage.state for stage in read_record(line / "run.json").stages][:2] == ["reused", "failed"]
    assert len(list(line.glob("runs/*/run.json"))) == 2


def test_a_missing_source_leaves_nothing(project: Path, shardline: Shardline) -> None:
    answer = shardline("run", "tiny.yaml", "sharding.source=nowhere", "run.root=sourceless")
    assert answer.returncode == 2
    assert answer.stdout == "", "it is known before the first stage"
    assert "nowhere does not exist" in answer.stderr
    assert "Traceback" not in answer.stderr
    assert not (project / "sourceless").exists()


def test_a_fault_of_kfp_names_its_log(project: Path, environment: dict[str, str]) -> None:
    # A package that hides kfp. The current folder is on no process's path (PYTHONSAFEPATH), this one is.
    (project / "broken").mkdir()
    (project / "broken" / "kfp.py").write_text("raise ImportError('hidden')")
    answer = subprocess.run(
        [sys.executable, "-m", "pipelines.cli", "run", "../tiny.yaml", "sharding.source=../raw"],
        cwd=project / "broken",
        env={
            **environment,
            "PYTHONPATH": os.pathsep.join(filter(None, (str(project / "broken"), os.environ.get("PYTHONPATH")))),
        },
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert answer.returncode == 70
    assert "kfp.log" in answer.stderr
    assert "Traceback" not in answer.stderr


def list_descendants(pid: int) -> Iterator[int]:
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except FileNotFoundError:
        return
    for child in map(int, children):
        yield child
        yield from list_descendants(child)


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def wait_for(condition: Callable[[], Any], what: str) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.02)


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize(("number", "exit_code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGKILL, -9)])
def test_a_signal_ends_every_process(
    project: Path, environment: dict[str, str], number: signal.Signals, exit_code: int
) -> None:
    root = project / f"interrupted {number.name}"
    process = subprocess.Popen(
        [sys.executable, "-m", "pipelines.cli", "run", "tiny.yaml", f"run.root={root.name}"],
        cwd=project,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # As a terminal does for Ctrl-C: the signal goes to the command's own group only.
        start_new_session=True,
    )
    # The stage is up: orchestrator, shell, executor and stage are there.
    wait_for(lambda: list(root.rglob("events.jsonl")), "no stage started")
    pids = list(list_descendants(process.pid))
    assert len(pids) >= 3
    os.killpg(process.pid, number)
    stdout, stderr = process.communicate(timeout=60)
    assert process.returncode == exit_code, stderr
    wait_for(lambda: not any(map(is_alive, pids)), "a process lives on")
    assert list(root.rglob("manifest.json")) == []
    if number != signal.SIGKILL:
        assert f"interrupted by {number.name}" in stderr
        assert "Traceback" not in stderr
        assert stdout.splitlines()[-1] == f"{root.name}/tiny"
        record = read_record(root / "tiny" / "run.json")
        assert (record.state, record.stages[0].state) == ("interrupted", "interrupted")
        assert record.stages[1].state == "not started"
        view = read_run(find_place(str(root / "tiny")))
        assert (view.state, view.stages[0].state) == ("interrupted", "interrupted")
        assert "the same command again continues" in view.error


@pytest.mark.skipif(sys.platform != "linux", reason="signals")
def test_nohup_is_respected(project: Path, environment: dict[str, str]) -> None:
    process = subprocess.Popen(
        ["sh", "-c", 'trap "" HUP; exec "$0" -m pipelines.cli shard tiny.yaml run.root=nohup', sys.executable],
        cwd=project,
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    attempts = project / "nohup"
    wait_for(lambda: list(attempts.rglob("events.jsonl")) or process.poll() is not None, "no stage started")
    process.send_signal(signal.SIGHUP)
    assert process.wait(timeout=60) == 0


@pytest.mark.parametrize(
    ("sections", "given"),
    [
        ({"train": {"global_batch_size": 2}, "resources": {"ranks": 4}}, "global_batch_size 2 for resources.ranks = 4"),
        ({"sharding": {"splits": {"train": 0.9, "validation": 0.1, "test": 0}}}, "sharding.splits.test = 0"),
        ({"resources": {"max_cost_usd": 5, "machine": {"type": "n1-standard-4"}}}, "resources.max_cost_usd = 5"),
    ],
)
def test_what_cannot_succeed_is_found_before_the_first_stage(sections: dict[str, Any], given: str) -> None:
    with pytest.raises(ConfigError) as caught:
        check_line(RunConfig.model_validate(sections))
    assert given in caught.value.given


def test_a_cost_cap_without_a_price_is_refused_where_one_stage_or_a_drill_trains_here() -> None:
    config = RunConfig.model_validate({"resources": {"max_cost_usd": 5, "machine": {"type": "n1-standard-4"}}})
    with pytest.raises(ConfigError, match=r"resources\.max_cost_usd = 5 without resources\.price_usd_per_h") as caught:
        run_stage_alone("train", config, output=None, given={}, fresh=False, debug=False)
    assert caught.value.exit_code == 2
    with pytest.raises(ConfigError, match=r"resources\.max_cost_usd = 5 without"):
        run_drill(config, kills=1, mode="sigkill", seed=0, output=None, given={})
    check_line(RunConfig.model_validate({"resources": {"max_cost_usd": 5, "price_usd_per_h": 1}}))


def test_a_manifest_may_bring_its_own_test_split() -> None:
    splits = {"train": 0.9, "validation": 0.1, "test": 0}
    check_line(RunConfig.model_validate({"sharding": {"source": "photos.CSV", "splits": splits}}))
    check_line(RunConfig.model_validate({"train": {"global_batch_size": 4}, "resources": {"ranks": 4}}))


def test_the_check_comes_before_any_document(shardline: Shardline, project: Path) -> None:
    done = shardline(
        "run", "tiny.yaml", "run.name=refused", "train.global_batch_size=1", "resources.ranks=2", "parallel.slot_size=1"
    )
    assert done.returncode == 2
    assert "train.global_batch_size to 2 or more" in done.stderr
    assert not list(project.glob("*/refused"))
