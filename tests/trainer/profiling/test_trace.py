"""What is read out of traces that torch recorded: traces/ (record_traces.py), and one recorded here."""

import getpass
import gzip
import json
import socket
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
import torch
from torch.profiler import ProfilerActivity, profile, record_function, schedule

from contracts.artifacts.trace import TraceSummary
from contracts.errors import DataError
from tests.trainer.profiling.gpu_trace import write_gpu_trace
from trainer.profiling.trace import strip_host, summarise

FOLDER = Path(__file__).parent / "traces"
RECORDED = sorted(path.name.removesuffix(".json.gz") for path in FOLDER.glob("*.json.gz"))


@cache
def recorded(name: str) -> TraceSummary:
    return summarise(FOLDER / f"{name}.json.gz")


def share(summary: TraceSummary, part: str) -> float:
    return summary.breakdown_s[part] / sum(summary.breakdown_s.values())


@pytest.mark.parametrize("name", RECORDED)
def test_parts_of_recorded_steps(name: str) -> None:
    found = recorded(name)
    assert (found.device, found.gpu_name, found.steps) == ("cpu", None, 3)
    assert set(found.breakdown_s) == {"loader", "forward", "backward", "optimizer", "communication", "other"}
    assert all(seconds >= 0 for seconds in found.breakdown_s.values())
    steps = [span for lane in found.lanes if lane.name == "steps" for span in lane.spans]
    assert [span.category for span in steps] == ["step"]
    # Marks lie next to each other: what lies between them is little.
    assert share(found, "other") < 0.05
    # What a CPU cannot say is not measured.
    gpu_only = ("gpu_busy_fraction", "occupancy_fraction", "sync_fraction", "kernels_per_step", "pageable_copies")
    assert [getattr(found, name) for name in gpu_only] == [None] * len(gpu_only)
    assert not found.kernels
    assert all(row.device_s is None for row in found.operators)


@pytest.mark.parametrize("name", RECORDED)
def test_operators_own_time_is_no_more_than_the_steps(name: str) -> None:
    found = recorded(name)
    steps_s = found.steps * sum(found.breakdown_s.values())
    assert 0 < sum(row.self_s for row in found.operators) <= 2 * steps_s
    assert all(row.self_s <= row.total_s * (1 + 1e-9) for row in found.operators if row.calls == 1)
    assert {"aten::addmm", "aten::mm"} <= {row.name for row in found.operators}


@pytest.mark.parametrize("name", RECORDED)
def test_a_lane_shows_one_thing_at_a_time(name: str) -> None:
    for lane in recorded(name).lanes:
        ends = [span.start_s + span.duration_s for span in lane.spans]
        starts = [span.start_s for span in lane.spans]
        assert all(begin >= end - 1e-9 for begin, end in zip(starts[1:], ends, strict=False)), lane.name


def test_a_slow_loader_is_seen() -> None:
    assert share(recorded("starved"), "loader") > 0.6
    assert share(recorded("steady"), "loader") < 0.2


def test_copies_are_seen() -> None:
    copying, steady = recorded("copying").copy_kernel_fraction, recorded("steady").copy_kernel_fraction
    assert copying is not None and steady is not None
    assert copying > 0.2 > 0.02 > steady


def test_exchange_is_seen_where_nothing_computes() -> None:
    exchange = [recorded(f"exchange-{rank}") for rank in (0, 1)]
    assert [summary.rank for summary in exchange] == [0, 1]
    for summary in exchange:
        assert summary.communication_fraction == pytest.approx(share(summary, "communication"))
        assert share(summary, "communication") > 0.2
    # A rank that is alone has nobody to exchange with.
    assert share(recorded("steady"), "communication") == 0


def test_who_waits_for_the_straggler_shows_it_as_exchange() -> None:
    waiting, slow = recorded("straggler-0"), recorded("straggler-1")
    assert share(waiting, "communication") > 0.6 > 0.2 > share(slow, "communication")
    assert waiting.step_s == pytest.approx(slow.step_s, rel=0.2)


def test_the_curve_of_memory_has_its_peak(tmp_path: Path) -> None:
    steady = recorded("steady")
    assert steady.memory and all(sample.reserved_bytes is None for sample in steady.memory)
    times = [sample.at_s for sample in steady.memory]
    assert times == sorted(times)
    raw = json.loads(gzip.decompress((FOLDER / "steady.json.gz").read_bytes()))["traceEvents"]
    most = max(event["args"]["Total Allocated"] for event in raw if event["name"] == "[memory]")
    assert max(sample.allocated_bytes for sample in steady.memory) == most
    many = summarise(write_gpu_trace(tmp_path / "t.json.gz", kernels=300, steps=3))
    assert len(many.memory) <= 400
    assert max(sample.allocated_bytes for sample in many.memory) == 11 << 30
    assert {sample.reserved_bytes for sample in many.memory} == {14 << 30}


def test_a_page_can_show_the_timeline_of_a_long_step(tmp_path: Path) -> None:
    found = summarise(write_gpu_trace(tmp_path / "t.json.gz", kernels=500, slots=2, steps=1))
    assert 0 < sum(len(lane.spans) for lane in found.lanes) <= 1500


def test_unzipped_is_the_same(tmp_path: Path) -> None:
    plain = tmp_path / "steady.json"
    plain.write_bytes(gzip.decompress((FOLDER / "steady.json.gz").read_bytes()))
    assert summarise(plain) == recorded("steady")


# --- no trace ---------------------------------------------------------------------------------------------------------


def cut_short(path: Path) -> None:
    path.write_bytes((FOLDER / "steady.json.gz").read_bytes()[:20000])


def without_steps(path: Path) -> None:
    document = json.loads(gzip.decompress((FOLDER / "steady.json.gz").read_bytes()))
    document["traceEvents"] = [e for e in document["traceEvents"] if not e["name"].startswith("ProfilerStep")]
    path.write_text(json.dumps(document))


@pytest.mark.parametrize(
    "write",
    [
        lambda path: None,
        lambda path: path.write_bytes(b""),
        lambda path: path.write_text("not JSON"),
        lambda path: path.write_text("[]"),
        lambda path: path.write_text('{"traceEvents": 3}'),
        lambda path: path.write_text('{"traceEvents": [1, 2]}'),
        cut_short,
        without_steps,
    ],
    ids=["missing", "empty", "text", "list", "no events", "numbers", "cut short", "without steps"],
)
def test_what_is_no_trace(tmp_path: Path, write: Callable[[Path], None]) -> None:
    path = tmp_path / "trace.json"
    write(path)
    with pytest.raises(DataError, match=r"trace\.json is no trace of torch's profiler"):
        summarise(path)


# --- the machine's names ----------------------------------------------------------------------------------------------


def test_strip_host_of_what_torch_writes(tmp_path: Path) -> None:
    """With stacks, which hold paths, and with a host and a user in a mark, as a script may well have them."""
    path = tmp_path / "trace.json"
    host, user = socket.gethostname(), getpass.getuser()
    layer = torch.nn.Linear(8, 8)
    with profile(
        activities=[ProfilerActivity.CPU],
        schedule=schedule(wait=0, warmup=1, active=2, repeat=1),
        on_trace_ready=lambda profiler: profiler.export_chrome_trace(str(path)),
        with_stack=True,
        record_shapes=True,
        acc_events=True,
    ) as profiler:
        for _ in range(3):
            with record_function(f"epoch on {host} of {user} in {tmp_path}/data"):
                layer(torch.zeros(4, 8)).sum().backward()
            profiler.step()
    before = path.read_text()
    assert str(tmp_path) in before
    assert json.loads(before)["host_name"]
    frames = [event["name"] for event in json.loads(before)["traceEvents"] if event.get("cat") == "python_function"]
    assert any(str(Path(__file__).parent) in name or name.startswith("/") or "tests/trainer" in name for name in frames)

    seen = summarise(path)
    strip_host(path)
    after = json.loads(path.read_text())
    assert not {"host_name", "traceName"} & set(after)
    values = list(strings(after))
    assert not [value for value in values if str(tmp_path) in value or str(Path.home()) + "/" in value]
    assert not [value for value in values if str(Path(torch.__file__).parents[1]) in value]
    marks = {event["name"] for event in after["traceEvents"] if event["name"].startswith("epoch on")}
    assert marks == {"epoch on machine of machine in data"}
    assert summarise(path).breakdown_s == seen.breakdown_s
    assert not list(tmp_path.glob(".*")), "a part was left behind"


def strings(value: object) -> list[str]:
    if isinstance(value, dict):
        return [text for item in value.values() for text in strings(item)]
    if isinstance(value, list):
        return [text for item in value for text in strings(item)]
    return [value] if isinstance(value, str) else []


def test_strip_host_leaves_what_is_no_trace(tmp_path: Path) -> None:
    path = tmp_path / "trace.json.gz"
    path.write_bytes(b"something else")
    with pytest.raises(DataError):
        strip_host(path)
    assert path.read_bytes() == b"something else"
