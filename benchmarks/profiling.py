"""The sweep of the profiling run beside the full grid over the same space, as ratios from one run.

    python benchmarks/profiling.py --repeats 3 --record benchmarks/results
    python benchmarks/profiling.py --only memory-limited --repeats 1        some minutes, on an idle machine
    python benchmarks/profiling.py --only digits                            the demo's profile stage, start to report

Three workloads whose bottleneck differs: large JPEGs and a small network; a larger network on small images; a network
whose activations meet a stated limit of memory (RLIMIT_DATA). Both arms ask the same probe, each from a start of its
processes on. Then what each of them chose is measured end to end, window by window in turn, with the grid's best a
second time: that one's ratio to itself (A/A) is what noise alone makes, and it is printed first. Under a limit of
memory each of these windows has processes of its own. Points of the grid that the sweep has predicted and did not
measure tell how far the predictor is off.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.figures import describe_machine, judge, record, summary
from benchmarks.pictures import write_pictures
from contracts.artifacts import ProfilePoint, Settings
from contracts.config import RunConfig
from contracts.stage import run_stage
from sharding.task import shard
from trainer.profiling.grid import full_grid
from trainer.profiling.ledger import Ledger, Result
from trainer.profiling.measure import ComputeTime, Failed, JointRate
from trainer.profiling.probe import RankProbe
from trainer.profiling.space import Space, make_space
from trainer.profiling.sweep import sweep

SPACE: dict[str, Any] = {
    "slot_sizes": [4, 8, 16, 32],
    "num_workers": [0, 1, 2],
    "prefetch_factors": [2, 4],
    "threads": [1, 2],
    "exclude": ["precision", "channels_last", "compile", "activation_checkpointing"],
}
BATCH = 32
# Neither arm is to be cut short.
BUDGET_S = 3600.0
REPOSITORY = Path(__file__).parents[1]
DIGITS = "digits"
# What the demo's profile stage is asked, and the most seconds that it may take.
DIGITS_ARMS = {
    "flags excluded": (["profile.exclude=[precision,channels_last,compile,activation_checkpointing]"], 12.0),
    "as configured": ([], 16.0),
}
MEMORY = 160_000_000


def network(embedding: int, *hidden: int) -> dict[str, Any]:
    """Return a residual network by its widths."""
    sizes = list(hidden)
    return {
        "architecture": "resnet",
        "arguments": {
            "layer_type": "basic",
            "embedding_size": embedding,
            "hidden_sizes": sizes,
            "depths": [1] * len(sizes),
        },
    }


# Name: bytes of a JPEG, number of them, sections of the configuration.
WORKLOADS: dict[str, tuple[int, int, dict[str, Any]]] = {
    "input-bound": (150_000, 512, {"data": {"image_size": 32, "decode": "full"}, "model": network(8, 8, 16)}),
    "compute-bound": (8_000, 1024, {"data": {"image_size": 64}, "model": network(16, 16, 32, 64)}),
    "memory-limited": (8_000, 1024, {"data": {"image_size": 96}, "model": network(64, 64, 64)}),
}


def main() -> None:
    """Run what the arguments ask for and print it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=3, help="sweeps and grids of each workload [default: 3]")
    parser.add_argument(
        "--rounds", type=int, default=9, help="windows in turn, to compare what was chosen [default: 9]"
    )
    parser.add_argument("--window-s", type=float, default=0.4)
    parser.add_argument("--only", choices=(*WORKLOADS, DIGITS), default=None)
    parser.add_argument("--record", type=Path, default=None, help="folder for a dated result file")
    parser.add_argument("--notes", default="", help="what was expected; kept with the result")
    options = parser.parse_args()
    about: dict[str, object] = {
        **describe_machine("torch"),
        "space": SPACE,
        "global_batch_size": BATCH,
        "window_s": options.window_s,
        "notes": options.notes,
    }
    print(f"space: {SPACE}, global batch {BATCH}", flush=True)
    parts: dict[str, object] = {}
    with tempfile.TemporaryDirectory() as place:
        for name in [options.only] if options.only else (*WORKLOADS, DIGITS):
            how = measure_digits if name == DIGITS else measure
            parts[name] = how(name, Path(place) / name, options)
            print(f"{name}: {parts[name]}", flush=True)
            if options.record is not None:
                record(options.record, "profiling", {"about": about, **parts})


def measure(name: str, place: Path, options: argparse.Namespace) -> dict[str, object]:
    """Return a workload's figures."""
    file_bytes, number, sections = WORKLOADS[name]
    shards = make_shards(place, file_bytes, number)
    profile = {**SPACE, "window_s": options.window_s}
    if name == "memory-limited":
        profile["memory_bytes"] = least_memory(shards, sections, profile) + MEMORY
        print(f"memory of a rank: {profile['memory_bytes'] / 1e6:.0f} MB", flush=True)
    config = configure(sections, profile)
    times, quality, again, errors, chosen = [], [], [], [], []
    for repeat in range(options.repeats):
        swept, swept_s = timed(sweep, shards, config)
        grid, grid_s = timed(full_grid, shards, config)
        points = [point for point in grid.points if point.samples_per_s]
        if repeat == 0:
            print(f"{name}: {len(grid.points)} points, {len(points)} of them work", flush=True)
        times.append(swept_s / grid_s)
        ours, best = settings_of(swept.choice), settings_of(grid.choice)
        pairs, same = compare(shards, config, ours, best, options.rounds)
        quality += pairs
        again += same
        errors.append(predictor_error(swept, grid))
        chosen.append({"sweep": words(ours), "grid": words(best), "sweep_s": swept_s, "grid_s": grid_s})
        print(
            f"{name} {repeat}: A/A {median(same):.3f}; chosen over grid's best {median(pairs):.3f}, time "
            f"{times[-1]:.3f} ({swept_s:.0f} s of {grid_s:.0f} s), predictor error {errors[-1]}; {chosen[-1]}",
            flush=True,
        )
    known = [error for error in errors if error is not None]
    return {
        "points": len(grid.points),
        "memory_bytes": profile.get("memory_bytes"),
        "throughput of the choice over that of the grid's best": judge(quality, again, at_least=0.97),
        "time of the sweep over that of the grid": {**summary(times), "line": "<= 0.333"},
        "predictor error (median over points that were not measured)": {**summary(known), "line": "<= 0.15"},
        "runs": chosen,
    }


def measure_digits(name: str, place: Path, options: argparse.Namespace) -> dict[str, object]:
    """Return seconds of the demo's profile stage as a command, from its start to its report, arm by arm in turn."""
    place.mkdir()
    cli = [sys.executable, "-m", "pipelines.cli"]
    config = [str(REPOSITORY / "configs" / "digits.yaml"), "sharding.source=raw", f"run.root={place / 'runs'}"]
    subprocess.run([sys.executable, str(REPOSITORY / "examples" / "digits.py"), "raw"], cwd=place, check=True)
    subprocess.run([*cli, "shard", *config], cwd=place, check=True, capture_output=True)
    times: dict[str, list[float]] = {arm: [] for arm in DIGITS_ARMS}
    for repeat in range(options.repeats):
        for arm, (overrides, _) in DIGITS_ARMS.items():
            began = time.perf_counter()
            subprocess.run(
                [*cli, "profile", *config, *overrides, "--fresh"], cwd=place, check=True, capture_output=True
            )
            times[arm].append(time.perf_counter() - began)
            print(f"{name} {repeat}: {arm} {times[arm][-1]:.1f} s", flush=True)
    return {arm: {**summary(times[arm]), "line": f"<= {line} s"} for arm, (_, line) in DIGITS_ARMS.items()}


def timed(search: Callable[[Ledger], Result], shards: str, config: RunConfig) -> tuple[Result, float]:
    """Return what a search found, and its seconds, the start of its processes within."""
    with probe(shards, config) as running:
        result = search(Ledger(space_of(config, running), running, budget_s=BUDGET_S))
        return result, running.now()


def compare(
    shards: str, config: RunConfig, ours: Settings, best: Settings, rounds: int
) -> tuple[list[float], list[float]]:
    """Return the ratios of ours to the grid's best, and of that one to itself, round by round."""
    # The best on both sides of ours: what drifts over a round falls on both arms alike.
    arms = [best, ours, best]
    if config.profile.memory_bytes is None:
        with probe(shards, config) as running:
            rates = [windows_of(one) for one in running.run(arms, rounds=rounds)]
    else:
        # Near a limit what stood beside it, or came before it, would decide whether it fits.
        rates = [[], [], []]
        for number in [0, 1, 2] * rounds:
            with probe(shards, config) as running:
                rates[number] += windows_of(running.run([arms[number]], rounds=1)[0])
    first, middle, last = rates
    # Ours lies between the two: their mean is of the same moment.
    pairs = [2 * m / (a + b) for a, m, b in zip(first, middle, last, strict=True)]
    return pairs, [b / a for a, b in zip(first, last, strict=True)]


def windows_of(found: JointRate | Failed) -> list[float]:
    """Return the rates that were measured."""
    if isinstance(found, Failed):
        raise SystemExit(f"a chosen configuration fails: {found}")
    return list(found.windows)


def predictor_error(swept: Result, grid: Result) -> float | None:
    """Return the median of |predicted / measured - 1| over points of the grid that the sweep did not measure."""
    measured = {key(point): point.samples_per_s for point in grid.points}
    errors = [
        abs(point.predicted_samples_per_s / rate - 1)
        for point in swept.points
        if point.samples_per_s is None and point.predicted_samples_per_s and (rate := measured.get(key(point)))
    ]
    return median(errors) if errors else None


def key(point: ProfilePoint) -> tuple[int, int, int, int]:
    """Return what tells points of the space apart."""
    return point.slot_size, point.num_workers, point.threads, point.prefetch_factor


def words(settings: Settings) -> str:
    """Return a configuration in words."""
    return (
        f"slots of {settings.slot_size}, {settings.num_workers} workers, {settings.prefetch_factor} ahead, "
        f"{settings.threads} threads"
    )


def settings_of(choice: Any) -> Settings:
    """Return the settings of a choice."""
    return Settings.model_validate(choice.model_dump(include=set(Settings.model_fields)))


def least_memory(shards: str, sections: dict[str, Any], profile: dict[str, Any]) -> int:
    """Return what a rank takes for the smallest slots, in bytes."""
    with probe(shards, configure(sections, profile)) as running:
        found = running.compute(Settings(slot_size=SPACE["slot_sizes"][0], num_workers=0))
        if not isinstance(found, ComputeTime) or found.memory_bytes is None:
            raise SystemExit(f"memory cannot be measured here: {found}")
        return found.memory_bytes


def space_of(config: RunConfig, running: RankProbe) -> Space:
    """Return the space of a configuration on this machine."""
    return make_space(config, ranks=1, cores_per_rank=2, device=running.device)


def probe(shards: str, config: RunConfig) -> RankProbe:
    """Return a probe of one rank, not started."""
    return RankProbe(config, shards=shards, ranks=1, threads=2)


def configure(sections: dict[str, Any], profile: dict[str, Any]) -> RunConfig:
    """Return a workload's configuration."""
    values = {"train": {"global_batch_size": BATCH}, "resources": {"ranks": 1}, **sections, "profile": profile}
    return RunConfig.model_validate(values)


def make_shards(place: Path, file_bytes: int, number: int) -> str:
    """Write pictures and shard them; return the URI of the shards."""
    import json

    write_pictures(place / "raw", total_bytes=file_bytes * number, file_bytes=file_bytes)
    sharding = {"source": str(place / "raw"), "splits": {"train": 1.0, "validation": 0, "test": 0}}
    if run_stage(
        "shard", shard, ["--output", str(place / "shards"), "--config-json", json.dumps({"sharding": sharding})]
    ):
        raise SystemExit("sharding failed")
    return (place / "shards").absolute().as_uri()


if __name__ == "__main__":
    main()
