"""What TensorBoard shows of a profiling run: scalars of the parts and the choice, and a table of configurations.

Every configuration with a rate is a run of the HParams plugin, in a folder of its own: that is how the plugin tells
them apart. Rates and times are the report's own numbers; what was not measured is left out, never 0. It is written by
TensorBoard's own modules, which need no torch and take a second to load.
"""

from __future__ import annotations

import math
import time
from pathlib import Path

from tensorboard.compat.proto.event_pb2 import Event  # type: ignore[import-untyped]
from tensorboard.compat.proto.summary_pb2 import Summary  # type: ignore[import-untyped]
from tensorboard.plugins.hparams.summary_v2 import hparams_pb  # type: ignore[import-untyped]
from tensorboard.summary.writer.record_writer import RecordWriter  # type: ignore[import-untyped]

from contracts.artifacts import ProfilePoint, ProfileReport, Settings

# Configurations in the table of HParams, the fastest first: each is a file.
MAX_CONFIGURATIONS = 48
METRICS = ("samples_per_s", "predicted_samples_per_s", "data_time_fraction", "usd_per_million_samples")


def write_board(folder: Path, report: ProfileReport) -> None:
    """Write event files.

    Scalars, with what their step is:
        `indicators/NAME`, `choice/NAME`, `sweep/NAME`: 0.
        `loader/samples_per_s`: loader processes; of several measurements with as many, the best.
        `compute/samples_per_s`, `compute/memory_bytes`: slot size; of several, the best and the most.
        `configurations/measured_samples_per_s`, `.../predicted_samples_per_s`: place in the report's list of points.

    Args:
        folder: An empty or new folder.
        report: What was measured.
    """
    _write(folder, [_scalar(*each) for each in _scalars(report)])
    measured = sorted(
        (point for point in report.points if point.samples_per_s is not None), key=lambda p: -(p.samples_per_s or 0.0)
    )
    for position, point in enumerate(measured[:MAX_CONFIGURATIONS]):
        row = [(0, hparams_pb(_settings(point, report)))]
        row += [_scalar(f"profile/{name}", 0, value) for name in METRICS if (value := getattr(point, name)) is not None]
        _write(folder / "configurations" / f"{position:02d}", row)


def _scalar(name: str, step: int, value: float) -> tuple[int, Summary]:
    return step, Summary(value=[Summary.Value(tag=name, simple_value=value)])


def _write(folder: Path, summaries: list[tuple[int, Summary]]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    # TensorBoard wants `tfevents` in the name; its own writer would add this machine's.
    with (folder / "events.out.tfevents.0000000000.profile").open("wb") as stream:
        writer = RecordWriter(stream)
        events = [Event(step=step, summary=summary) for step, summary in summaries]
        for event in [Event(file_version="brain.Event:2"), *events]:
            event.wall_time = time.time()
            writer.write(event.SerializeToString())


def _scalars(report: ProfileReport) -> list[tuple[str, int, float]]:
    found: list[tuple[str, int, float | None]] = []
    found += [(f"indicators/{name}", 0, value) for name, value in report.indicators.model_dump().items()]
    choice = report.choice
    settings = ("slot_size", "slots_per_rank", "num_workers", "prefetch_factor", "threads")
    found += [(f"choice/{name}", 0, getattr(choice, name)) for name in settings]
    chosen = next((point for point in report.points if point.settings() == choice.settings()), None)
    if chosen is not None:
        found.append(("choice/samples_per_s", 0, chosen.samples_per_s))
        found += [(f"choice/{unit}_per_s", 0, value) for unit, value in chosen.units_per_s.items()]
        found.append(("choice/data_time_fraction", 0, chosen.data_time_fraction))
    found += [
        ("sweep/wall_s", 0, report.wall_s),
        ("sweep/overlap", 0, report.overlap),
        ("sweep/predictor_error", 0, report.predictor_error),
    ]
    rates: dict[int, float] = {}
    for part in report.loader:
        rates[part.num_workers] = max(rates.get(part.num_workers, 0.0), part.samples_per_s or 0.0)
    found += [("loader/samples_per_s", step, rate or None) for step, rate in sorted(rates.items())]
    rates, memory = {}, dict[int, int]()
    for steps in report.compute:
        rates[steps.slot_size] = max(rates.get(steps.slot_size, 0.0), steps.samples_per_s or 0.0)
        memory[steps.slot_size] = max(memory.get(steps.slot_size, 0), steps.memory_bytes or 0)
    found += [("compute/samples_per_s", step, rate or None) for step, rate in sorted(rates.items())]
    found += [("compute/memory_bytes", step, taken or None) for step, taken in sorted(memory.items())]
    for step, point in enumerate(report.points):
        found.append(("configurations/measured_samples_per_s", step, point.samples_per_s))
        found.append(("configurations/predicted_samples_per_s", step, point.predicted_samples_per_s))
    return [(name, step, value) for name, step, value in found if value is not None and math.isfinite(value)]


def _settings(point: ProfilePoint, report: ProfileReport) -> dict[str, str | float | bool]:
    values = point.model_dump(include=set(Settings.model_fields) - {"flags"})
    return values | point.flags.model_dump() | {"chosen": point.settings() == report.choice.settings()}
