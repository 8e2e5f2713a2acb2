"""Ranks that measure, as real processes: results, a crash, a hang, a rank without memory, torch.compile that fails."""

import os
from pathlib import Path
from typing import Any

import pytest

from contracts.artifacts import ProfileReport
from contracts.config import RunConfig
from contracts.errors import ErrorDocument
from contracts.events import EventLog, EventReader
from contracts.stage import Output, Stage
from tests.conftest import small_config
from tests.trainer.launch.machines import Machine, descendants, make_assignment, network
from trainer.launch.attempts import JobRecord
from trainer.launch.nodes import Nodes
from trainer.profiling import runner
from trainer.profiling.runner import (
    RANK_MODULE,
    RESULTS_NAME,
    Measurement,
    RankRunner,
    append,
    measure,
)

PLANTED = "tests.trainer.profiling.planted:PlantedNetwork"


def measured(shards: str, folder: Path, **sections: Any) -> Measurement:
    """Measure on this machine; its own folder keeps results.jsonl."""
    sections["profile"] = {"method": "sweep", "window_s": 0.05, "num_workers": [0], **sections.get("profile", {})}
    sections = {"data": {"num_workers": "auto"}, **sections}
    values = small_config(parallel={"slot_size": "auto"}, resources={"ranks": 1, "threads": 1}, **sections)
    config = RunConfig.model_validate({name: value for name, value in values.items() if name != "sharding"})
    output, scratch = folder / "out", folder / "scratch"
    for each in (output, scratch):
        each.mkdir()
    stage = Stage("profile", config, EventLog(folder, stage="profile", attempt="a"), "a", root=str(folder))
    outcome = measure(
        stage,
        Output(output.as_uri(), "f", {}, reused=False),
        shards=shards,
        nodes=Nodes(0, 1, "", config.resources.port, "local", ""),
        ranks=1,
        threads=1,
        scratch=scratch,
    )
    assert outcome is not None
    return outcome


def planted(**arguments: Any) -> dict[str, Any]:
    return {"model": {"architecture": PLANTED, "arguments": arguments}}


def records(folder: Path) -> list[dict[str, Any]]:
    return list(EventReader(folder / "scratch" / RESULTS_NAME).poll())


def children() -> list[str]:
    """Return the ranks that this process has started and that live."""
    return [pid for pid in map(str, descendants(os.getpid())) if RANK_MODULE.encode() in _command(pid)]


def _command(pid: str) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def test_after_a_crash_and_a_hang_answers_are_replayed(
    small_shards: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner, "MEASUREMENT_LIMIT_S", 4.0)
    fault = planted(crash_at=4, hang_at=8)
    outcome = measured(small_shards, tmp_path, profile={"slot_sizes": [2, 4, 8]}, **fault)
    assert outcome.result is not None and outcome.result.choice.slot_size == 2
    points = {point.slot_size: point for point in outcome.result.compute}
    assert {size: point.outcome for size, point in points.items()} == {2: "measured", 4: "crashed", 8: "timeout"}
    assert "SIGSEGV" in points[4].reason
    commands = [
        (record["command"]["name"], record["command"]["settings"]["slot_size"])
        for record in records(tmp_path)
        if "command" in record
    ]
    # Nothing is measured twice.
    assert commands[:3] == [("compute", 2), ("compute", 4), ("compute", 8)]
    assert commands.count(("compute", 2)) == 1
    assert sum("device" in record for record in records(tmp_path)) == 3
    assert outcome.counters and not children()


@pytest.mark.parametrize(("on_gpu", "outcome"), [(True, "crashed"), (False, "out of memory")])
def test_memory_of_the_host_that_runs_out_rules_out_no_slot_size_of_a_gpu(on_gpu: bool, outcome: str) -> None:
    end = ErrorDocument(kind="Signal", exit_code=75, message="rank 0 was ended by SIGKILL")
    assert runner._describe_crash(end, on_gpu=on_gpu).outcome == outcome


def test_a_machine_that_is_taken_away_is_no_failure_of_what_was_measured(tmp_path: Path) -> None:
    config = RunConfig.model_validate({"profile": {"budget_s": 600}})
    stage = Stage("profile", config, EventLog(None, stage="profile", attempt="a"), "a", root=str(tmp_path))
    place, record = Nodes(0, 2, "", 1, "vertex", ""), JobRecord("", "")
    starts = RankRunner(make_assignment(tmp_path), place, config.resources, record, print, stage=stage)
    path, crash = tmp_path / RESULTS_NAME, ErrorDocument(kind="failed", exit_code=75, message="peer is gone")
    assert starts.begin(None) is None
    command = {"command": {"name": "load"}, "at_s": 1.0, "limit_s": 100.0}
    append(path, **command)
    starts.uncount_start()
    assert starts.begin(crash) is None and not any("answer" in record for record in EventReader(path).poll())
    for number in range(1, 4):
        # Written just before the end.
        append(path, **command)
        assert starts.begin(crash) is None
        assert sum("answer" in record for record in EventReader(path).poll()) == number
    over = starts.begin(crash)
    assert over is not None and "the ranks ended 4 times, the last time crashed: peer is gone" in over.message
    assert sum("began_at" in record for record in EventReader(path).poll()) == 1


@pytest.mark.line
def test_two_machines_measure_together_go_on_after_a_crash_and_wait_for_the_slow_one(
    port: int, small_shards: str, tmp_path: Path
) -> None:
    fault = planted(crash_at=8, slow_rank=1, busy_s=0.05)
    profile = {"method": "sweep", "window_s": 0.05, "slot_sizes": [4, 8], "num_workers": [0]}
    resources = {"ranks": 1, "threads": 1, "nodes": 2}
    config = small_config(data={"num_workers": "auto"}, parallel={"slot_size": "auto"}, **fault) | {
        "profile": profile,
        "resources": resources,
    }
    with network(port, 2) as net:
        machines = [Machine(tmp_path, small_shards, config, node=node, net=net, stage="profile") for node in range(2)]
        try:
            for machine in machines:
                machine.start()
            for machine in machines:
                assert machine.wait() == 0, machine.stderr()
        finally:
            for machine in machines:
                machine.end()
    (uri,) = {machine.printed.strip().splitlines()[-1] for machine in machines}
    report = ProfileReport.load(uri)
    assert report.measured_nodes == 2 and report.choice.measured and report.choice.slot_size == 4
    assert [point.outcome for point in report.compute] == ["measured", "crashed"]
    # Two slots of a step, each of 50 ms on the second machine.
    assert report.chosen_point().samples_per_s is not None and report.chosen_point().samples_per_s < 4 / 0.05
    assert {path.name[:6] for path in tmp_path.glob("*/traces/*")} == {"rank-0", "rank-1"}


@pytest.mark.line
def test_a_stage_that_is_told_to_stop_ends_at_once_with_all_its_processes(small_shards: str, tmp_path: Path) -> None:
    config = small_config(data={"num_workers": "auto"}, parallel={"slot_size": "auto"}, **planted(hang_at=8))
    machine = Machine(tmp_path, small_shards, {**config, "profile": {"slot_sizes": [8]}}, stage="profile")
    machine.start()
    try:
        machine.wait_for(lambda: any(event["event"] == "ready" for event in machine.events()))
        family = list(descendants(machine.process.pid))
        machine.process.terminate()
        assert machine.wait() == 75 and "SIGTERM" in machine.stderr()
        assert family and not any(_command(str(pid)) for pid in family)
    finally:
        machine.end()
