"""What a rehearsal says at its end: rows of a word and a text, or JSON."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

from pipelines.rehearse.rehearsed import Rehearsed
from rehearsal.cloud import BUCKETS_FOLDER

_KINDS = ("sigterm", "sigkill")


def print_rehearsal(found: Rehearsed, stream: TextIO, *, kept: Path | None = None) -> None:
    """Print what happened, what it would have cost, and whether the result is that of an undisturbed training.

    Args:
        found: What happened.
        stream: Where to print.
        kept: The folder that holds what the rehearsal left; None: it is gone.
    """
    print(f"rehearsal of {found.line}, {found.wall_s:.0f} s", file=stream)
    for name, text in rows(found):
        print(f"  {name:<14}{text}", file=stream)
    if kept is not None:
        # The objects of its buckets are files there, so that no server is needed to look at them.
        line = kept / BUCKETS_FOLDER / found.line.removeprefix("gs://")
        print(f"  {'look':<14}shardline report {line}; shardline runs {line.parent}", file=stream)


def rows(found: Rehearsed) -> Iterator[tuple[str, str]]:
    """Yield what is to be said, by what it is about."""
    for stand_in in found.stand_ins:
        yield "stand-in", stand_in
    for name, value in sorted(found.variables.items()):
        yield "runner", f"{name}={value} (the specification is unchanged)"
    if found.hash:
        yield "specification", f" sha256:{found.hash}"
    for name, state, seconds in found.tasks:
        yield "task", f"{name:<32} {state:<14} {seconds:>7.1f} s"
    for name, state, seconds, machines in found.jobs:
        yield "custom job", f"{name:<32} {state.removeprefix('JOB_STATE_'):<14} {seconds:>7.1f} s, machines: {machines}"
    for when, state in found.fired:
        yield "scheduled", f"{when} {state.removeprefix('PIPELINE_STATE_')}"
    for gone in found.preempted:
        yield "preempted", f"machine {gone.node} of {gone.display_name} by {gone.kind} at step {gone.step}"
    if found.faults:
        yield "storage", f"{found.faults} requests struck by a rule"
    yield "cost", _cost(found)
    if found.goodput is not None:
        told = found.goodput
        steps = f"{told.steps} steps, {told.lost_steps} lost"
        counts = f"{told.attempts} attempts, {told.preemptions} preemptions"
        yield "goodput", f"{told.goodput_percent:.1f} % of {told.wall_s:.0f} s; {steps}; {counts}"
    if found.artefact:
        yield "artefact", found.artefact
    if (compared := found.comparison) is not None:
        same = "the same" if compared.parameters == found.parameters is not None else "NOT the same"
        yield "result", f"{same} parameters as undisturbed: sha256 {found.parameters}"
        if compared.shards is not None:
            yield "result", f"{'the same' if compared.shards else 'NOT the same'} shards as without faults"
    yield from _outcome(found)


def _outcome(found: Rehearsed) -> Iterator[tuple[str, str]]:
    """Yield what was survived, what ended the run, and what this rehearsal does not prove."""
    happened = list(found.struck)
    if found.preempted:
        kinds = ", ".join(f"{sum(gone.kind == kind for gone in found.preempted)} by {kind}" for kind in _KINDS)
        happened.insert(0, f"{len(found.preempted)} machines taken away ({kinds})")
    if found.faults and not any("answered with 503" in text for text in found.struck):
        happened.append(f"{found.faults} requests to buckets struck by a rule")
    for text in happened or ["nothing: nothing disturbed the run"]:
        yield "happened" if found.exit_code else "survived", text
    if found.exit_code:
        yield "ended by", f"{found.ended_by or 'see above'} (exit code {found.exit_code})"
    for option in found.idle:
        yield "not proven", f"{option} struck nothing"
    if found.comparison is None or found.comparison.reason:
        yield "not proven", "whether the parameters are those of an undisturbed training: nothing was compared"
    yield "not proven", "permissions, quotas, images, networks and machines of the real project (docs/rehearsal.md)"


def to_json(found: Rehearsed) -> str:
    """Return the same as JSON."""
    values = {field.name: getattr(found, field.name) for field in dataclasses.fields(found)}
    values |= {"config": found.config.model_dump(mode="json"), "complaints": found.complaints}
    values["preempted"] = [dataclasses.asdict(gone) for gone in found.preempted]
    values["comparison"] = dataclasses.asdict(found.comparison) if found.comparison else None
    values["goodput"] = found.goodput.model_dump(mode="json") if found.goodput else None
    return json.dumps(values, indent=1, default=str)


def _cost(found: Rehearsed) -> str:
    """Return what the rehearsed seconds of training machines would have cost at the planned price."""
    from pipelines.plan import find_cost

    price = find_cost(found.config).price_usd_per_h
    seconds = sum(s for name, _, s, _ in found.jobs if name.endswith("-train"))
    if price is None:
        return "price of the machines unknown: set resources.price_usd_per_h"
    return f"{seconds:.0f} s of training at {price:.2f} USD an hour: {seconds / 3600 * price:.4f} USD (estimate)"
