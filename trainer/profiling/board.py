"""What TensorBoard shows of a profiling run: scalars of the parts and the choice, and a table of configurations.

Every configuration with a rate is a run of the HParams plugin, in a folder of its own: that is how the plugin tells
them apart. Rates and times are the report's own numbers; what was not measured is left out, never 0.
"""

from __future__ import annotations

import math
from pathlib import Path

from contracts.artifacts import ProfilePoint, ProfileReport, Settings

# Configurations in the table of HParams, the fastest first: each is a file.
MAX_CONFIGURATIONS = 48


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
    from torch.utils.tensorboard import SummaryWriter
    from torch.utils.tensorboard.summary import hparams

    with SummaryWriter(str(folder)) as writer:
        for name, step, value in _scalars(report):
            writer.add_scalar(name, value, step)
    measured = sorted(
        (point for point in report.points if point.samples_per_s is not None), key=lambda p: -(p.samples_per_s or 0.0)
    )
    for position, point in enumerate(measured[:MAX_CONFIGURATIONS]):
        with SummaryWriter(str(folder / "configurations" / f"{position:02d}")) as writer:
            metrics = _metrics(point)
            # SummaryWriter.add_hparams would write the same into a second file.
            for summary in hparams(_settings(point, report), metrics):  # type: ignore[no-untyped-call]
                writer.file_writer.add_summary(summary)
            for name, value in metrics.items():
                writer.add_scalar(name, value, 0)
    _strip_host(folder)


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


def _settings(point: ProfilePoint, report: ProfileReport) -> dict[str, str | float]:
    values = point.model_dump(include=set(Settings.model_fields) - {"flags"})
    values |= point.flags.model_dump() | {"chosen": point.settings() == report.choice.settings()}
    # A bool would be stored as 1.0.
    return {name: str(value).lower() if isinstance(value, bool) else value for name, value in values.items()}


def _metrics(point: ProfilePoint) -> dict[str, float]:
    metrics = {
        "samples_per_s": point.samples_per_s,
        "predicted_samples_per_s": point.predicted_samples_per_s,
        "data_time_fraction": point.data_time_fraction,
        "usd_per_million_samples": point.usd_per_million_samples,
    }
    return {f"profile/{name}": value for name, value in metrics.items() if value is not None}


def _strip_host(folder: Path) -> None:
    """Give the files, one a folder, names without this machine's; TensorBoard wants `tfevents` in them."""
    for path in list(folder.rglob("*tfevents*")):
        path.rename(path.with_name("events.out.tfevents.0000000000.profile"))
