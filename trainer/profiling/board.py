"""TensorBoard's files of a profile report: a row of the HParams plugin for each measured configuration.

Each configuration is a run in its own folder, as the plugin requires. Values that were not measured are left out, never
0. TensorBoard's modules write the files; they need no torch and take a second to load.
"""

from __future__ import annotations

import time
from pathlib import Path

from tensorboard.compat.proto.event_pb2 import Event  # type: ignore[import-untyped]
from tensorboard.compat.proto.summary_pb2 import Summary  # type: ignore[import-untyped]
from tensorboard.plugins.hparams.summary_v2 import hparams_pb  # type: ignore[import-untyped]
from tensorboard.summary.writer.record_writer import RecordWriter  # type: ignore[import-untyped]

from contracts.artifacts import ProfileReport

METRICS = ("samples_per_s", "data_time_fraction", "usd_per_million_samples")
EVENTS_NAME = "events.out.tfevents.0000000000.profile"
"""TensorBoard requires `tfevents` in the name; its own writer would add the host name."""


def write_board(folder: Path, report: ProfileReport) -> None:
    """Write an event file for each measured configuration.

    Args:
        folder: An empty or new folder.
        report: A report with a measured choice.
    """
    chosen = report.chosen_point()
    for position, point in enumerate(point for point in report.points if point.samples_per_s is not None):
        settings = dict(point.settings()) | {"chosen": point == chosen}
        events = [Event(file_version="brain.Event:2"), Event(step=0, summary=hparams_pb(settings))]
        for name in METRICS:
            if (value := getattr(point, name)) is not None:
                events.append(
                    Event(step=0, summary=Summary(value=[Summary.Value(tag=f"profile/{name}", simple_value=value)]))
                )
        path = folder / "configurations" / f"{position:02d}" / EVENTS_NAME
        path.parent.mkdir(parents=True)
        with path.open("wb") as stream:
            writer = RecordWriter(stream)
            for event in events:
                event.wall_time = time.time()
                writer.write(event.SerializeToString())
