"""TensorBoard's files of a profile report: scalars, and a row of the HParams plugin for each measured configuration.

Each configuration is a run in its own folder, as the plugin requires. Values that were not measured are left out, never
0. TensorBoard's modules write the files; they need no torch and take a second to load.
"""

from __future__ import annotations

import math
import time
from pathlib import Path

from tensorboard.compat.proto.event_pb2 import Event  # type: ignore[import-untyped]
from tensorboard.compat.proto.summary_pb2 import Summary  # type: ignore[import-untyped]
from tensorboard.plugins.hparams.summary_v2 import hparams_pb  # type: ignore[import-untyped]
from tensorboard.summary.writer.record_writer import RecordWriter  # type: ignore[import-untyped]

from contracts.artifacts import ProfileReport, Settings

METRICS = ("samples_per_s", "data_time_fraction", "usd_per_million_samples")
Scalar = tuple[str, int, float | None]
"""Name, step and value."""


def write_board(folder: Path, report: ProfileReport) -> None:
    """Write event files.

    Scalars, with the meaning of their step:
        `indicators/NAME`, `choice/NAME`: 0.
        `loader/samples_per_s`: loader workers. `compute/samples_per_s`, `compute/memory_bytes`: slot size.

    Args:
        folder: An empty or new folder.
        report: A report with a measured choice.
    """
    chosen = report.chosen_point()
    scalars: list[Scalar] = [(f"indicators/{name}", 0, value) for name, value in report.indicators]
    scalars += [(f"choice/{name}", 0, getattr(chosen, name)) for name in (*Settings.model_fields, *METRICS)]
    scalars += [("loader/samples_per_s", point.num_workers, point.samples_per_s) for point in report.loader]
    for name in ("samples_per_s", "memory_bytes"):
        scalars += [(f"compute/{name}", point.slot_size, getattr(point, name)) for point in report.compute]
    _write(folder, scalars)
    for position, point in enumerate(point for point in report.points if point.samples_per_s is not None):
        settings = dict(point.settings()) | {"chosen": point == chosen}
        metrics: list[Scalar] = [(f"profile/{name}", 0, getattr(point, name)) for name in METRICS]
        _write(folder / "configurations" / f"{position:02d}", metrics, hparams_pb(settings))


def _write(folder: Path, scalars: list[Scalar], *summaries: Summary) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    events = [Event(file_version="brain.Event:2"), *(Event(step=0, summary=summary) for summary in summaries)]
    for name, step, value in scalars:
        if value is not None and math.isfinite(value):
            events.append(Event(step=step, summary=Summary(value=[Summary.Value(tag=name, simple_value=value)])))
    # TensorBoard requires `tfevents` in the name; its own writer would add the host name.
    with (folder / "events.out.tfevents.0000000000.profile").open("wb") as stream:
        writer = RecordWriter(stream)
        for event in events:
            event.wall_time = time.time()
            writer.write(event.SerializeToString())
