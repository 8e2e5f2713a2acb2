from __future__ import annotations

import math
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from contracts.artifacts.export import Latency, two_figures
from contracts.config import ModelSection
from tests.trainer.export.conftest import CLASSES, IMAGE_SIZE, MODEL
from tests.trainer.export.graphs import image_signature, store_images
from tests.trainer.export.handover import make_export
from trainer.export.engines.bench import Bench, Device, Runner, _measure_batch, measure_latency
from trainer.export.engines.timing import (
    LEAST_ROUNDS,
    MOST_CALLS,
    MOST_ROUNDS,
    WARM_UP_CALLS,
    Queued,
    describe,
    measure_rate,
    time_calls,
)
from trainer.export.processes import run_step
from trainer.tasks.image import build_network


def measure(exported: Any, folder: Path, *, batches: list[int], compile_limit_s: float | None) -> Bench:
    """Run the bench as the stage does, in a process of its own."""
    document = make_export(folder / "export", exported)
    save_file(exported.model.state_dict(), folder / "model.safetensors")
    section = ModelSection.model_validate(MODEL)
    bench, cost = run_step(
        measure_latency,
        {"fp32": exported.fp32, "fp16": exported.fp16},
        [(folder / "export" / entry.name, entry) for entry in document.engines],
        precision="fp16",
        signature=image_signature(),
        build_model=partial(build_network, section, num_classes=len(CLASSES), image_size=IMAGE_SIZE),
        weights=folder / "model.safetensors",
        inputs=store_images(folder / "images", exported.images[:3]),
        batches=batches,
        threads=1,
        budget_s=0.05,
        compile_limit_s=compile_limit_s,
    )
    assert cost.peak_bytes > 0
    return bench


@pytest.mark.skipif(torch.cuda.is_available(), reason="what it expects is a CPU's")
def test_what_runs_here_is_measured_and_the_rest_has_its_reason(exported: Any, tmp_path: Path) -> None:
    bench = measure(exported, tmp_path, batches=[4, 1, 10, 1], compile_limit_s=0.05)
    found = {(latency.runner.split()[0], latency.precision, latency.batch): latency for latency in bench.latency}
    assert len(found) == len(bench.latency)
    runners = [("torch", "fp32"), ("onnxruntime", "fp32"), ("onnxruntime", "fp16")]
    assert set(found) == {(*runner, batch) for batch in (1, 4, 10) for runner in runners}
    # The first batch size pays for loading.
    assert {latency.batch for latency in bench.latency if latency.cold_s is not None} == {1}
    for latency in bench.latency:
        check(latency)
        assert latency.device == "cpu, 1 threads"
    assert {latency.runner for latency in bench.latency if latency.runner.startswith("torch")} == {
        f"torch eager {torch.__version__}"
    }
    compiled = f"torch.compile {torch.__version__}"
    assert bench.left_out == {
        "engine sm89": "not run: no GPU",
        f"{compiled}, batch 4, 10": "compiling one size takes about as long as all else here",
        f"{compiled}, fp32, batch 1": "TooLong: not compiled within 0.05 s",
    }


@pytest.mark.slow
@pytest.mark.skipif(torch.cuda.is_available(), reason="what it expects is a CPU's")
def test_torch_compile_is_measured_at_one_batch_size(exported: Any, tmp_path: Path) -> None:
    bench = measure(exported, tmp_path, batches=[1, 4], compile_limit_s=None)
    compiled = [latency for latency in bench.latency if latency.runner.startswith("torch.compile")]
    assert [(latency.batch, latency.precision) for latency in compiled] == [(1, "fp32")]
    check(compiled[0])


def check(latency: Latency) -> None:
    assert 0 < latency.p50_ms <= latency.p90_ms
    assert latency.p99_ms is None if latency.repeats < 100 else (latency.p99_ms or 0) >= latency.p90_ms
    assert latency.repeats >= LEAST_ROUNDS
    assert latency.cold_s is None or latency.cold_s > 0
    # Throughput is of the mean, which no percentile bounds; but it is a batch over a time.
    assert latency.images_per_s > 0


class Clock:
    """Time that only calls take."""

    def __init__(self) -> None:
        self.now = 0.0
        self.said: list[int] = []

    def call(self, key: int, *seconds: float) -> Any:
        """Return a call that takes these seconds, one after the other, then the last of them for good."""
        left = list(seconds)

        def call() -> None:
            self.said.append(key)
            self.now += left.pop(0) if len(left) > 1 else left[0]

        return call

    def __call__(self) -> float:
        return self.now


def test_runners_take_turns_and_warm_up_is_not_counted() -> None:
    clock = Clock()
    # The first three calls are a hundred times as slow: what a first call compiles or loads.
    calls = {key: clock.call(key, 1.0, 1.0, 1.0, seconds) for key, seconds in ((1, 0.01), (2, 0.02))}
    times, failed = time_calls(calls, budget_s=2.0, clock=clock)
    assert failed == {}
    assert all(taken == pytest.approx(0.01) for taken in times[1])
    assert all(taken == pytest.approx(0.02) for taken in times[2])
    assert clock.said[:6] == [1, 1, 1, 2, 2, 2]
    turns = [key for key, _ in groupby(clock.said[6:])]
    rounds = max(LEAST_ROUNDS, 2)  # 2 s for calls that took a second
    assert len(clock.said) - 6 == len(times[1]) + len(times[2])
    assert rounds <= len(turns) <= 2 * rounds


def test_calls_are_as_many_as_fit() -> None:
    def counts(budget_s: float, *seconds: float) -> list[int]:
        clock = Clock()
        times, _ = time_calls(
            {key: clock.call(key, one) for key, one in enumerate(seconds)}, budget_s=budget_s, clock=clock
        )
        return [len(taken) for taken in times.values()]

    assert counts(8.0, 0.0625, 0.125) == [120, 60]  # ten rounds of 0.8 s each
    assert counts(1.0, 10.0) == [LEAST_ROUNDS]  # a slow one is called all the same
    assert counts(1e6, 0.5) == [MOST_ROUNDS * MOST_CALLS]
    assert time_calls({}, budget_s=1.0) == ({}, {})


@pytest.mark.parametrize("sound", [0, 2, WARM_UP_CALLS, WARM_UP_CALLS + 1], ids=lambda calls: f"after {calls} calls")
def test_a_runner_that_fails_while_it_is_timed_is_left_out_and_the_others_are_timed(sound: int) -> None:
    clock, error = Clock(), RuntimeError("the device is lost")
    sound_call, called = clock.call(1, 1.0), 0

    def fail() -> None:
        nonlocal called
        called += 1
        if called > sound:
            raise error
        clock.call(2, 1.0)()

    times, failed = time_calls({1: sound_call, 2: fail}, budget_s=10.0, clock=clock)
    assert failed == {2: error}
    assert times == {1: [1.0] * 10}
    assert called == sound + 1  # not called again

    # The first call is the preparation's.
    runners = [
        Runner("sound", "fp32", lambda _: clock.call(1, 0.0)),
        Runner("other", "fp32", lambda _: fail),
    ]
    called = -1
    device = Device("cpu", "cpu, 1 threads", 1, torch.float32, "fp32")
    found = _measure_batch(runners, 4, device, budget_s=1e-6)
    assert [latency.runner for latency in found] == ["sound"]
    assert runners[1].errors == {4: "RuntimeError: the device is lost"}


def test_the_order_changes_from_round_to_round() -> None:
    clock = Clock()
    time_calls({key: clock.call(key, 1.0) for key in range(3)}, budget_s=10.0, clock=clock)
    rounds = [tuple(clock.said[9 + at : 12 + at]) for at in range(0, 30, 3)]
    assert all(sorted(one) == [0, 1, 2] for one in rounds)
    assert len(set(rounds)) > 1


def test_percentiles_and_throughput() -> None:
    seconds = [number / 1000 for number in range(1, 101)]  # 1 to 100 ms
    found = describe("torch eager", "fp32", "cpu, 1 threads", 8, seconds)
    assert (found.p50_ms, found.p90_ms, found.p99_ms) == (50.5, 90.1, 99.01)
    assert describe("torch eager", "fp32", "cpu, 1 threads", 8, seconds[:99]).p99_ms is None
    assert math.isclose(found.images_per_s, 8 * 100 / 5.05, rel_tol=1e-3)
    assert (found.batch, found.repeats, found.device) == (8, 100, "cpu, 1 threads")


def test_throughput_is_of_calls_that_are_queued() -> None:
    clock = Clock()
    # A device that takes a second for a call, and is told of the next in a tenth.
    queued = [0]

    def enqueue() -> None:
        clock.now += 0.1
        queued[0] += 1

    def finish() -> None:
        clock.now += 0.4 * queued[0]
        queued[0] = 0

    assert measure_rate(Queued(enqueue, finish), [1.0], 30.0, clock) == pytest.approx(2.0)
    assert queued == [0]


def test_a_runner_has_two_figures() -> None:
    def one(runner: str, batch: int, p50_ms: float, images_per_s: float) -> Latency:
        found = describe(runner, "fp16", "gpu", batch, [p50_ms / 1000])
        return found.model_copy(update={"images_per_s": images_per_s})

    latency = [one("a", 8, 4.0, 2000), one("a", 1, 1.0, 1000), one("b", 1, 2.0, 500), one("a", 32, 20.0, 1600)]
    found = [(first.p50_ms, first.batch, best.images_per_s, best.batch) for first, best in two_figures(latency)]
    assert found == [(1.0, 1, 2000, 8), (2.0, 1, 500, 1)]
