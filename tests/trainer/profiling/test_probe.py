"""Real processes that measure, and what is left of the probe when a configuration kills, hangs or starves them."""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from contracts.artifacts import Flags, Settings
from contracts.config import RunConfig
from contracts.errors import ToldError
from tests.conftest import small_config
from trainer.profiling.indicators import Counted
from trainer.profiling.measure import ComputeTime, Failed, JointRate, LoaderRate
from trainer.profiling.probe import LATE_S, RankProbe
from trainer.profiling.rank_process import PROCESS_MODULE

PLANTED = "tests.trainer.profiling.planted:PlantedNetwork"


@contextmanager
def probe(shards: str, ranks: int = 1, **sections: Any) -> Iterator[RankProbe]:
    sections.setdefault("data", {})["num_workers"] = "auto"
    sections["profile"] = {"window_s": 0.05, **sections.get("profile", {})}
    values = small_config(parallel={"slot_size": "auto"}, resources={"ranks": ranks}, **sections)
    config = RunConfig.model_validate({name: value for name, value in values.items() if name != "sharding"})
    with RankProbe(config, shards=shards, ranks=ranks, threads=1) as running:
        yield running


def children() -> list[str]:
    """Return the processes of probes that this process has started."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
            command = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode()
            if parent == os.getpid() and PROCESS_MODULE in command:
                found.append(command)
    return found


def planted(**arguments: Any) -> dict[str, Any]:
    return {"model": {"architecture": PLANTED, "arguments": arguments}}


def test_two_ranks_measure_parts_and_whole_trace_them_and_stay_together(small_shards: str, tmp_path: Path) -> None:
    settings = Settings(slot_size=4, slots_per_rank=2, num_workers=1)
    fault = planted(starved_rank=1, starved_at=8)
    options: dict[str, Any] = {"train": {"global_batch_size": 12}, "profile": {}}
    with probe(small_shards, ranks=2, **options, **fault) as running:
        assert running.device.samples == 70 and running.memory_limit_bytes
        for workers in (0, 1):
            loaded = running.load(Settings(slot_size=4, num_workers=workers, prefetch_factor=2))
            assert isinstance(loaded, LoaderRate) and min(loaded.windows) > 0
        computed = running.compute(Settings(slot_size=4, num_workers=0, flags=Flags(channels_last=True)))
        assert isinstance(computed, ComputeTime)
        assert computed.memory_bytes and computed.step_s(3) == 2 * computed.slot_s + computed.last_slot_s
        # Two at a time, of which one fails: the other one goes on.
        good, bad = running.run([settings, settings.model_copy(update={"slot_size": 16})], rounds=2)
        assert isinstance(good, JointRate) and len(good.windows) == 2 and 0 <= good.data_time_fraction <= 1
        assert isinstance(bad, JointRate)
        counted = running.trace(settings, steps=2, folder=tmp_path)
        assert isinstance(counted, list) and len(counted) == 2
        assert all(isinstance(one, Counted) and one.flops_per_sample and len(one.files) == 2 for one in counted)
        assert counted[0].nvml_utilisation_fraction is None
        assert len(children()) == 2
        assert [path.name[:7] for path in sorted(tmp_path.glob("*.pt.trace.json.gz"))] == ["rank-0.", "rank-1."]
        # Three slots for two ranks: one has two of them, the other one, and both take as many steps.
        for _ in range(2):
            assert isinstance(running.run([settings], rounds=2)[0], JointRate)
        assert all(isinstance(rate, JointRate) for rate in running.run([settings] * 2, rounds=2))
        # One rank that has no memory leaves the others where they can go on.
        starved = running.compute(Settings(slot_size=8, num_workers=0))
        assert isinstance(starved, Failed) and starved.outcome == "out of memory"
        assert isinstance(running.compute(Settings(slot_size=4, num_workers=0)), ComputeTime)
    assert children() == []


def test_a_crash_and_a_hang_are_answers_and_a_budget_that_is_over_starts_no_trace(
    small_shards: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fault = planted(crash_at=4, hang_at=8)
    monkeypatch.setattr("trainer.profiling.probe.PROBE_TIMEOUT_S", 5)
    with probe(small_shards, **fault) as running:
        crashed = running.compute(Settings(slot_size=4, num_workers=0))
        assert isinstance(crashed, Failed) and crashed.outcome == "crashed" and "SIGSEGV" in crashed.reason
        hung = running.run([Settings(slot_size=8, slots_per_rank=2, num_workers=1)], rounds=1)[0]
        assert isinstance(hung, Failed) and hung.outcome == "hung" and "no answer within" in hung.reason
        running._budget_s = running.now()
        late = running.trace(Settings(slot_size=2, slots_per_rank=2, num_workers=0), steps=1, folder=tmp_path)
        assert isinstance(late, Failed) and late.is_cut_off and "profile.budget_s" in late.reason
        assert children() == []
        running._budget_s = None
        assert isinstance(running.load(Settings(slot_size=4, num_workers=0)), LoaderRate)
        assert isinstance(running.compute(Settings(slot_size=2, num_workers=0)), ComputeTime)
    assert children() == []


@pytest.mark.parametrize(("spent_s", "waited_s"), [(0.0, 600.0), (40.0, 20.0), (59.0, LATE_S)])
def test_a_measurement_is_waited_for_no_longer_than_the_budget(
    monkeypatch: pytest.MonkeyPatch, spent_s: float, waited_s: float
) -> None:
    """One that hangs with torch.compile is given five times as long, but not more than is left."""
    config = RunConfig.model_validate({name: each for name, each in small_config().items() if name != "sharding"})
    budget_s = 60.0 if spent_s else 3600.0
    running = RankProbe(config, shards="nowhere", ranks=1, threads=1, budget_s=budget_s)
    waited: dict[str, float] = {}
    monkeypatch.setattr(running, "_ranks", ["a rank"])
    monkeypatch.setattr(running, "now", lambda: spent_s)
    monkeypatch.setattr(running, "_hear", lambda name, arguments, *, timeout_s, **_: waited.update({name: timeout_s}))
    compiled = Settings(slot_size=4, num_workers=0, flags=Flags(compile=True))
    for name in ("load", "fit", "compute", "open", "trace"):
        running.ask(name, settings=compiled)
    running.ask("window", number=0)
    assert {*waited.values()} - {120.0} == {waited_s}
    assert waited["compute"] == waited_s


def test_windows_that_were_measured_before_the_budget_ended_stand(monkeypatch: pytest.MonkeyPatch) -> None:
    config = RunConfig.model_validate({name: each for name, each in small_config().items() if name != "sharding"})
    running = RankProbe(config, shards="/nowhere", ranks=1, threads=1, budget_s=60.0)
    assert [running._patience(each, least_s=0)[1].outcome for each in (10.0, 120.0)] == ["hung", "budget"]
    over = Failed("budget", "planted")
    three = [Settings(slot_size=size, num_workers=0) for size in (4, 8, 16)]
    crashed = Failed("crashed", "planted")
    answers = iter([JointRate((4.0,), 0.0), JointRate((8.0,), 0.0), JointRate((16.0,), 0.0), over, crashed, over])
    monkeypatch.setattr(running, "_window", lambda number, settings, started: next(answers))
    first, second, third = running.run(three, rounds=2)
    assert isinstance(first, JointRate) and isinstance(third, JointRate)
    assert (first.windows, second, third.windows) == ((4.0,), crashed, (16.0,))


def test_a_model_that_cannot_be_built_is_the_users_error(small_shards: str) -> None:
    with pytest.raises(ToldError, match="no_such_argument") as told, probe(small_shards, **planted(no_such_argument=1)):
        pass
    assert told.value.exit_code == 2
    assert children() == []
