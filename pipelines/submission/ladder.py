"""The ladder: places to try one after the other, each by a submission of its own.

A rung is the same spec under an id of its own (RUN, RUN-r2, RUN-r3) with other parameters: Vertex Pipelines has no
field for it. Only `submit --wait` climbs: after a stockout, a quota error, spot machines that were taken away too
often, or `resources.max_pending_s` without machines, when the run is cancelled first and its end awaited. A user error
stops.
What a rung finished before (shards, a profile, checkpoints) the next one finds and reuses.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pipelines.runs.cancel import cancel
from pipelines.runs.follow import POLL_S, Ending, View, follow
from pipelines.runs.name import RunName
from pipelines.submission.submit import Prepared, Submitted, find_job, submit

if TYPE_CHECKING:
    from contracts.config import RunConfig
    from pipelines.submission.request import Submission


@dataclass(frozen=True)
class Rung:
    """One place to try."""

    label: str
    """What a user reads: SPOT in us-central1."""
    parameters: dict[str, Any]
    """Parameters in which it differs from the others."""
    pending_limit_s: float | None
    """Seconds that a job may wait for machines there; None: for ever."""


@dataclass(frozen=True)
class Step:
    """What to do when a rung has ended."""

    climb: bool
    why: str
    cancel: bool = False
    """Whether the run must be cancelled first."""


def make_rungs(config: RunConfig) -> list[Rung]:
    """Return the rungs of a configuration, the first first; there is always one."""
    from pipelines.graph.compile import rung_parameters
    from pipelines.rules.preflight import find_rungs

    return [
        Rung(
            label=f"{rung.strategy} in {rung.region or config.cloud.region}",
            parameters=rung_parameters(config, rung),
            # FLEX_START waits by design; Vertex AI itself ends that after resources.max_wait_s.
            pending_limit_s=None if rung.strategy == "FLEX_START" else config.resources.max_pending_s,
        )
        for rung in find_rungs(config)
    ]


def rung_run_id(run_id: str, index: int) -> str:
    """Return the id of the run of a rung, which counts from 0."""
    return run_id if index == 0 else f"{run_id}-r{index + 1}"


def rung_submission(prepared: Prepared, rungs: Sequence[Rung], index: int) -> Submission:
    """Return the submission of a rung, which counts from 0; beyond the ladder it has the first one's parameters."""
    parameters = rungs[index].parameters if index < len(rungs) else None
    return prepared.submission(rung_run_id(prepared.run_id, index), parameters)


def list_rungs(client: Any, name: RunName) -> Iterator[RunName]:
    """Yield a run, and then the later rungs that `submit --wait` has submitted of it (RUN-r2, RUN-r3, ...).

    Each is asked for when the one before it has been dealt with: whoever follows a run sees the rungs that come.
    """
    yield name
    for index in itertools.count(1):
        rung = dataclasses.replace(name, id=rung_run_id(name.id, index))
        if find_job(client, rung) is None:
            return
        yield rung


def decide(ending: Ending, *, is_last: bool) -> Step:
    """Return what to do after a rung.

    Args:
        ending: How it ended.
        is_last: Whether there is no other.
    """
    if ending.waiting is not None:
        why = f": {ending.diagnosis.cause}" if ending.diagnosis else ""
        return Step(True, f"{ending.waiting.kind} {ending.waiting.id} got no machines in time{why}", cancel=True)
    if ending.diagnosis is None:
        return Step(False, f"the run ended: {ending.state.lower()}")
    why = f"{ending.diagnosis.kind}: {ending.diagnosis.cause}"
    if not ending.diagnosis.climbs:
        return Step(False, why)
    return Step(not is_last, why)


def climb(
    client: Any,
    prepared: Prepared,
    rungs: Sequence[Rung],
    view: Callable[[], View],
    *,
    say: Callable[[str], None],
    submitted: Callable[[Submitted], None],
    poll_s: float = POLL_S,
) -> Ending:
    """Submit rung after rung until one succeeds, fails for a reason that no rung mends, or none is left.

    A rung that was submitted before is found and followed, so the same command goes on where it was interrupted.

    Args:
        client: The PipelineServiceClient of the run's region.
        prepared: What to submit.
        rungs: The places to try.
        view: Makes what shows a run.
        say: Told in a line what happens between two rungs.
        submitted: Told of each submission.
        poll_s: Seconds between two looks.
    """
    ending = Ending("FAILED", None)
    for index, rung in enumerate(rungs):
        is_last = index == len(rungs) - 1
        made = submit(prepared, rung_submission(prepared, rungs, index))
        submitted(made)
        # On the last rung there is nothing to give up waiting for.
        limit_s = None if is_last else rung.pending_limit_s
        ending = follow(client, made.name, view(), pending_limit_s=limit_s, poll_s=poll_s)
        step = decide(ending, is_last=is_last)
        if step.cancel:
            say(f"rung {index + 1} of {len(rungs)}, {rung.label}: {step.why}; it is cancelled first")
            if cancel(client, made.name, say=say, poll_s=poll_s).state == "SUCCEEDED":
                return Ending("SUCCEEDED", None)
        if ending.state == "CANCELLED" and not is_last and _was_tried(client, prepared, index + 1):
            # This command, interrupted before, had given this rung up for the next.
            continue
        if not step.climb:
            if ending.diagnosis is not None and ending.diagnosis.climbs and len(rungs) > 1:
                say(f"all {len(rungs)} rungs were tried; run the same command later with another --run-id")
            return ending
        say(f"rung {index + 1} of {len(rungs)}, {rung.label}: {step.why}; the next is {rungs[index + 1].label}")
    return ending


def _was_tried(client: Any, prepared: Prepared, index: int) -> bool:
    cloud = prepared.config.cloud
    name = RunName(cloud.project, cloud.region, rung_run_id(prepared.run_id, index))
    return find_job(client, name) is not None
