"""The profile stage beside a full grid and beside the defaults, on workloads of the examples (two ranks).

    python benchmarks/profiling.py [texts images segmentation] [--rounds 5] [--record benchmarks/results]

The grid measures every slot size with every number of workers end to end, by the stage's own ranks and windows. The
rate of the sweep's choice is taken from the grid, so that both were measured in one run; the fastest setting has an
interval of its windows, and a choice inside it is not told apart from it. Trainings with the choice, with
`profile: off`, and with `off` once more (A/A) run in turn.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from itertools import pairwise, product
from pathlib import Path
from typing import Any

import yaml

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.shared import REPOSITORY, describe_machine, judge, quotients, record, run, summary
from contracts import storage
from contracts.artifacts import ProfileChoice, ProfilePoint, ProfileReport
from contracts.events import EVENTS_NAME, EventReader
from contracts.process import run_process
from contracts.stage import run_stage
from trainer.profiling import runner, task, worker
from trainer.profiling.search import ROUNDS, Probe, Result, Space

GRID = "benchmarks.profiling"
WORKLOADS: dict[str, tuple[str, list[str], dict[str, Any]]] = {
    "images": ("configs/digits.yaml", ["examples/digits.py", "raw/digits"], {}),
    "texts": ("configs/text.yaml", ["examples/texts.py", "raw/messages", "--texts", "2000"], {}),
    "segmentation": ("examples/segmentation/config.yaml", ["examples/segmentation/draw.py", "raw/shapes"], {}),
}
CHANGES: dict[str, Any] = {
    "parallel": {"slot_size": "auto"},
    "resources": {"ranks": 2},
    "profile": {"method": "sweep", "window_s": 1, "budget_s": 900},
}


def main() -> None:
    """Measure the workloads and print what was found; or be a rank or the stage of a grid."""
    runner.RANK_MODULE, runner.search = GRID, search_grid  # type: ignore[assignment]
    if sys.argv[1:2] == ["grid"]:
        sys.argv.pop(1)
        run_process(lambda: run_stage("profile", task.execute))
    if len(sys.argv) == 3 and sys.argv[2].isdigit():
        worker.run_search = runner.run_search
        run_process(lambda: worker.main(sys.argv[1], int(sys.argv[2])))
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("workloads", nargs="*", default=[*WORKLOADS])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--record", type=Path, default=None, help="folder for a dated result file")
    options = parser.parse_args()
    parts: dict[str, object] = {}
    for name in options.workloads:
        with tempfile.TemporaryDirectory() as folder:
            about = {**describe_machine("torch"), "rounds": options.rounds}
            parts[name] = {"about": about, **measure(Path(folder), name, options.rounds)}
            print(json.dumps({name: parts[name]}, indent=1), flush=True)
    if options.record:
        record(options.record, "profiling", parts)


def search_grid(space: Space, probe: Probe, **ignored: object) -> Result:
    """Measure all settings end to end, window by window in turn, and choose the fastest."""
    settings = [space.settings(*key) for key in product(space.slot_sizes, space.num_workers)]
    answers = probe.run(settings, rounds=ROUNDS)
    points = [
        ProfilePoint(
            **dict(each),
            samples_per_s=statistics.median(answer.windows),
            samples_per_s_min=min(answer.windows),
            samples_per_s_max=max(answer.windows),
            windows=len(answer.windows),
        )
        for each, answer in zip(settings, answers, strict=True)
        if not isinstance(answer, runner.Failed)
    ]
    points.sort(key=lambda point: -(point.samples_per_s or 0))
    return Result(choice=ProfileChoice(**dict(points[0].settings()), reason="the fastest of the grid"), points=points)


def measure(folder: Path, name: str, rounds: int) -> dict[str, object]:
    """Return seconds of sweep and grid, the rate of the choice over the grid's best, and trainings in turn."""
    path, (script, raw, *more), changes = WORKLOADS[name]
    run([sys.executable, str(REPOSITORY / script), str(folder / raw), *more])
    config = yaml.safe_load((REPOSITORY / path).read_text())
    if "code" in config:
        config["code"]["path"] = str(REPOSITORY / config["code"]["path"])
    config["sharding"]["source"] = str(folder / config["sharding"]["source"])
    for section, values in {**CHANGES, **changes}.items():
        config[section] = {**(config.get(section) if isinstance(config.get(section), dict) else {}), **values}
    config.setdefault("data", {}).pop("num_workers", None)

    def stage(command: list[str], *inputs: str, **sections: Any) -> str:
        text = json.dumps({**config, **sections})
        options = [f"--config-json={text}", f"--root={tempfile.mkdtemp(dir=folder)}"]
        return run([sys.executable, *command, *options, *inputs]).splitlines()[-1]

    shards = f"--shards={stage(['-m', 'sharding.task'])}"
    swept = stage(["-m", "trainer.profiling.task"], shards)
    sweep = ProfileReport.load(swept)
    grid = ProfileReport.load(stage([__file__, "grid"], shards))
    best = grid.points[0]
    chosen = next(point for point in grid.points if point.settings() == sweep.choice.settings())
    assert best.samples_per_s and best.samples_per_s_min and chosen.samples_per_s and chosen.samples_per_s_max
    off = {**config["profile"], "method": "off"}
    profiles = {
        "choice": swept,
        "off": stage(["-m", "trainer.profiling.task"], shards, profile=off),
    }
    profiles["off again"] = profiles["off"]
    rates: dict[str, list[float]] = {arm: [] for arm in profiles}
    for number in range(rounds):
        for arm in [*profiles] if number % 2 else [*profiles][::-1]:
            trained = stage(["-m", "trainer.task"], shards, f"--profile={profiles[arm]}")
            rates[arm].append(rate_of(trained))
            print(f"{name}, round {number + 1}: {arm} {rates[arm][-1]:.2f} steps/s", file=sys.stderr, flush=True)
    again = quotients(rates["off again"], rates["off"])
    return {
        "settings": {"choice": dict(sweep.choice), "best of the grid": dict(best), "grid": len(grid.points)},
        "sweep, s": round(sweep.wall_s, 1),
        "grid, s": round(grid.wall_s, 1),
        "time of the sweep over the grid's": round(sweep.wall_s / grid.wall_s, 2),
        "rate of the choice over the grid's best": round(chosen.samples_per_s / best.samples_per_s, 3),
        "told apart from the best": chosen.samples_per_s_max < best.samples_per_s_min,
        "training, steps/s": {arm: summary(values) for arm, values in rates.items()},
        "training with the choice over off": judge(quotients(rates["choice"], rates["off"]), again, at_least=1.0),
    }


def rate_of(trained: str) -> float:
    """Return the optimizer steps per second of a training: the median between two looks at the loss."""
    root = Path(storage.display(trained)).parent
    (events,) = (root / "attempts").glob(f"*/{EVENTS_NAME}")
    progress = [event for event in EventReader(events).poll() if event["event"] == "progress"]
    speeds = [
        (later["done"] - earlier["done"]) / (later["time"] - earlier["time"]) for earlier, later in pairwise(progress)
    ]
    return statistics.median(speeds)


if __name__ == "__main__":
    main()
