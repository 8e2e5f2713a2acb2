"""`shardline profile`: the stage by itself, its options in the words of a command line, and what it prints at the end.

What is printed is read from the report: a profile that was made before prints the same, and says that it was.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from contracts import storage
from contracts.artifacts import ProfileReport
from contracts.config import RunConfig
from contracts.errors import ConfigError
from contracts.estimate import estimate_training, num_nodes
from inspection.profile import describe
from inspection.profile_page import write_profile_page
from pipelines.local.stages import run_stage_alone
from pipelines.reported import load

_DURATION = re.compile(r"(?P<number>\d+(?:\.\d+)?)\s*(?P<unit>s|m|min|h)?", re.ASCII)
_SECONDS = {None: 1.0, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0}


def parse_duration(text: str) -> float:
    """Return the seconds of `120`, `120s`, `2m`, `2min` or `0.5h`.

    Raises:
        ConfigError: It is none.
    """
    found = _DURATION.fullmatch(text.strip())
    if found is None:
        raise ConfigError(
            f"--budget {text}",
            allowed="a number of seconds, or one with s, m, min or h behind it",
            todo="write for example 120s, 2m or 120",
        )
    return float(found["number"]) * _SECONDS[found["unit"]]


def run_profile(
    path: Path,
    overrides: list[str],
    *,
    budget: str | None,
    full_grid: bool,
    output: str | None,
    shards: str | None,
    fresh: bool,
    debug: bool,
) -> Iterator[str]:
    """Run the stage, then yield what it found out, line by line; the folder of the report comes last.

    Args:
        path: The configuration's file.
        overrides: Values that win over the file.
        budget: Duration that wins over profile.budget_s.
        full_grid: Whether every combination is measured, whatever profile.method says.
        output: Path or URI of the folder to write; None: the line's own.
        shards: Path or URI of the shards; None: the line's own.
        fresh: Delete this configuration's own report first.
        debug: The stage shows its traceback.

    Raises:
        StageFailed: It failed.
        UserError: The configuration or an option cannot be used.
    """
    given = [f"profile.budget_s={parse_duration(budget):g}"] if budget is not None else []
    given += ["profile.method=grid"] if full_grid else []
    config = load(path, [*overrides, *given])
    if budget is not None and config.profile.method == "off":
        raise ConfigError(
            f"--budget {budget}, and profile is off in {path.name}: nothing would be measured",
            allowed="--budget where profile.method is sweep or grid",
            todo=f"measure by `shardline profile {path} profile.method=sweep --budget {budget}`, or leave --budget out",
        )
    made = run_stage_alone("profile", config, output=output, given={"shards": shards}, fresh=fresh, debug=debug)
    report = ProfileReport.load(made.uri)
    place = storage.display(made.uri)
    yield from describe_profile(report, config, reused=made.reused)
    page = write_profile_page(made.uri, made.attempt)
    yield f"page: {storage.display(page)}" if page else "page: none"
    if given and load(path, overrides) != config:
        # They are part of what the report is found by.
        yield f"to train by it: shardline train {path} --profile {place}, or set {' and '.join(given)} in {path.name}"
    yield place


def describe_profile(report: ProfileReport, config: RunConfig, *, reused: bool) -> Iterator[str]:
    """Yield lines about a report, and what training by this configuration then takes."""
    if reused:
        yield (
            "reused: it was made before, for this configuration and hardware or for a training that is finished; "
            "--fresh measures again"
        )
    for name, text in describe(report):
        yield f"{name}: " + text.replace("\n", "\n  ")
    yield from _estimate(report, config)


def _estimate(report: ProfileReport, config: RunConfig) -> Iterator[str]:
    # Epochs and price may have changed since: they are in no fingerprint of a profile.
    epoch_samples = report.estimate.epoch_samples if report.estimate else None
    rate = report.chosen_point().samples_per_s
    nodes = max(num_nodes(config), report.measured_nodes)
    if epoch_samples is None or rate is None or nodes != report.measured_nodes:
        return
    ranks = report.ranks * nodes
    found = estimate_training(config, epoch_samples=epoch_samples, samples_per_s=rate * ranks)
    cost = "" if found.usd is None else f", {found.usd:.2f} USD"
    each = "" if found.usd is None else f", {found.usd / found.samples * 1e6:.4f} USD per million samples"
    time = _duration(found.hours * 3600)
    yield (
        f"training: {time}{cost} for {found.samples} samples by {ranks} ranks{each}, steps only: "
        "no evaluation, checkpoint or start is in it"
    )


def _duration(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:.1f} s"
    return f"{seconds / 60:.1f} min" if seconds < 3600 else f"{seconds / 3600:.2f} h"
