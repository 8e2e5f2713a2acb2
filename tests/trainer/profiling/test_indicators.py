"""From counters and traces to indicators."""

from pathlib import Path

import pytest

from contracts.artifacts import Indicators
from contracts.artifacts.trace import TraceSummary
from tests.trainer.profiling.gpu_trace import write_gpu_trace
from tests.trainer.profiling.kineto_writer import KinetoWriter
from trainer.profiling.indicators import Counters, make_indicators
from trainer.profiling.trace import summarise

FOLDER = Path(__file__).parent / "traces"


def recorded(*names: str) -> list[TraceSummary]:
    return [summarise(FOLDER / f"{name}.json.gz") for name in names]


def test_nothing_measured_is_none() -> None:
    found = make_indicators(Counters(), [])
    assert {name: value for name, value in found.model_dump().items() if value is not None} == {}


def test_what_is_counted_is_passed_on() -> None:
    counted = Counters(
        step_s=0.5,
        samples_per_s=100.0,
        data_time_fraction=0.25,
        copy_wait_fraction=0.05,
        flops_per_sample=12e9,
        precision="bf16",
        gpu_name="NVIDIA A100-SXM4-40GB",
        memory_peak_bytes=6 << 30,
        memory_reserved_bytes=8 << 30,
        memory_limit_bytes=40 << 30,
        allocation_retries=2,
        checkpoint_stall_fraction=0.01,
        nvml_utilisation_fraction=0.97,
    )
    found = make_indicators(counted, [])
    same = counted.model_fields_set & set(Indicators.model_fields)
    assert {name: getattr(found, name) for name in same} == {name: getattr(counted, name) for name in same}
    assert found.peak_flops == 312e12
    assert found.mfu == pytest.approx(12e9 * 100 / 312e12)
    assert found.fragmentation_fraction == pytest.approx(0.25)


@pytest.mark.parametrize(
    "counted",
    [
        Counters(flops_per_sample=1e9, samples_per_s=10.0, precision="bf16", gpu_name="Tesla T4"),
        Counters(flops_per_sample=1e9, samples_per_s=10.0, precision="fp32"),
        Counters(flops_per_sample=1e9, samples_per_s=10.0, gpu_name="NVIDIA L4"),
        Counters(flops_per_sample=1e9, precision="fp32", gpu_name="NVIDIA L4"),
        Counters(samples_per_s=10.0, precision="fp32", gpu_name="NVIDIA L4"),
    ],
)
def test_utilisation_needs_all_its_parts(counted: Counters) -> None:
    assert make_indicators(counted, []).mfu is None


def test_the_gpus_name_may_come_from_the_trace(tmp_path: Path) -> None:
    summary = summarise(write_gpu_trace(tmp_path / "t.json", gpu_name="NVIDIA L4"))
    found = make_indicators(Counters(flops_per_sample=12e9, samples_per_s=1000.0, precision="fp16"), [summary])
    assert found.mfu == pytest.approx(12e12 / 121e12)
    assert found.gpu_busy_fraction == summary.gpu_busy_fraction
    assert found.sync_fraction == 0


def test_exchange_is_that_of_the_rank_that_waits_least() -> None:
    waiting, slow = recorded("straggler-0", "straggler-1")
    for order in ([waiting, slow], [slow, waiting]):
        found = make_indicators(Counters(), order)
        assert found.communication_fraction and slow.communication_fraction
        assert 0 < found.communication_fraction <= slow.communication_fraction
        assert found.slowest_rank_ratio is not None and found.slowest_rank_ratio > 1.4


def in_turn(folder: Path, slow: tuple[int, ...], rank: int) -> TraceSummary:
    """A rank of two, of which one comes last to each exchange: that takes 20, the other waits for 200 before."""
    writer = KinetoWriter(rank=rank)
    for number, last in enumerate(slow):
        start, waits = 1000 * number, 0 if rank == last else 200
        writer.step(start, start + 1000).kernel(start, start + 780 - waits)
        writer.exchange(start + 780 - waits, start + 800).kernel(start + 800, start + 1000)
    return summarise(writer.write(folder / f"{rank}.json"))


def test_waiting_for_now_this_and_now_that_rank_is_no_exchange(tmp_path: Path) -> None:
    """Each rank waits for the other in half of the steps, which is noise of the machine."""
    both = [in_turn(tmp_path, (0, 1, 0, 1), rank) for rank in (0, 1)]
    assert [summary.communication_fraction for summary in both] == [pytest.approx(0.12)] * 2
    found = make_indicators(Counters(), both)
    assert found.communication_fraction == pytest.approx(0.02)
    assert found.slowest_rank_ratio == pytest.approx(1.0)


def test_a_machine_that_did_something_else_for_a_moment_is_no_exchange(tmp_path: Path) -> None:
    """Of four steps two have an exchange of 400 on both ranks, the others of 20; one of 200 in each step is a cost."""
    for name, took, wanted in (("load", (20, 400, 20, 400), 0.02), ("network", (200, 210, 200, 220), 0.2)):
        writer = KinetoWriter()
        for number, us in enumerate(took):
            start = 1000 * number
            writer.step(start, start + 1000).kernel(start, start + 500).exchange(start + 500, start + 500 + us)
            writer.kernel(start + 500 + us, start + 1000)
        both = [summarise(writer.write(tmp_path / f"{name}-{rank}.json")) for rank in (0, 1)]
        assert make_indicators(Counters(), both).communication_fraction == pytest.approx(wanted)


def test_an_exchange_that_differs_from_step_to_step_counts_by_its_least(tmp_path: Path) -> None:
    """As in a digits run on two cores that others used as well: 21, 380, 117 and 170 of steps of 611."""
    writer = KinetoWriter(gpu=None)
    for number, us in enumerate((21, 380, 117, 170)):
        start = 611 * number
        writer.step(start, start + 611).operator("aten::conv2d", start, start + 200)
        writer.gloo(start + 200, start + 200 + us)
    both = [summarise(writer.write(tmp_path / f"{rank}.json")) for rank in (0, 1)]
    assert make_indicators(Counters(), both).communication_fraction == pytest.approx(3 * 21 / 611)


def test_a_rank_is_slow_where_it_is_so_alone_and_traced(tmp_path: Path) -> None:
    both = [in_turn(tmp_path, (0, 0, 0, 0), rank) for rank in (0, 1)]
    traced = make_indicators(Counters(), both).slowest_rank_ratio
    assert traced == pytest.approx(0.98 / ((0.98 + 0.78) / 2))
    # Alone both are as fast, or the other one is slower: what was seen in one of them was something else's.
    assert make_indicators(Counters(rank_step_s=(1.0, 1.0)), both).slowest_rank_ratio == pytest.approx(1.0)
    assert make_indicators(Counters(rank_step_s=(1.0, 2.0)), both).slowest_rank_ratio == 1.0
    slow = make_indicators(Counters(rank_step_s=(2.0, 1.0)), both).slowest_rank_ratio
    assert slow == pytest.approx(traced)


def test_on_a_gpu_data_time_is_what_the_gpu_is_idle_for(tmp_path: Path) -> None:
    """The host waits in next() for 700 of 1000; the GPU has enough to do in all but 100 of them."""
    trace = KinetoWriter().step(0, 1000).kernel(0, 800).loader(200, 900).kernel(900, 1000)
    summary = summarise(trace.write(tmp_path / "trace.json"))
    host = Counters(data_time_fraction=0.7)
    assert make_indicators(host, [summary]).data_time_fraction == pytest.approx(0.1)
    copies = Counters(data_time_fraction=0.7, copy_wait_fraction=0.05)
    assert make_indicators(copies, [summary]).data_time_fraction == pytest.approx(0.15)
    # Without a trace, and without a GPU, the host's waiting is all that is known.
    assert make_indicators(host, []).data_time_fraction == 0.7
    assert make_indicators(host, recorded("steady")).data_time_fraction == 0.7


def test_one_rank_neither_exchanges_nor_lags() -> None:
    found = make_indicators(Counters(), recorded("steady"))
    assert found.communication_fraction is None
    assert found.slowest_rank_ratio is None


def test_traces_of_some_ranks_say_nothing_of_all() -> None:
    found = make_indicators(Counters(rank_step_s=(1.0, 1.0, 3.0)), recorded("exchange-0", "exchange-1"))
    assert found.slowest_rank_ratio == 3.0


def test_what_profiling_costs() -> None:
    (steady,) = recorded("steady")
    assert make_indicators(Counters(step_s=steady.step_s / 2), [steady]).profiler_ratio == pytest.approx(2)
