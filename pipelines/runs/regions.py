"""A run in several regions: `submit --wait` tries the next one of `resources.regions` when a region has no machines.

Each try is a PipelineJob of its region under the same run id. Only `submit --wait` goes on to the next region: after a
stockout, or `resources.max_pending_s` without machines, when the job is cancelled first and its end awaited. What a try
has finished (shards, a profile, checkpoints) the next one finds and reuses.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from contracts.errors import ConfigError
from contracts.result import LINE_LABEL
from pipelines.google import pipeline_client
from pipelines.rules.preflight import find_regions
from pipelines.runs.cancel import cancel
from pipelines.runs.follow import POLL_S, Ending, View, follow
from pipelines.runs.name import RunName, RunSearch
from pipelines.submission.submit import Prepared, Submitted, find_job, submit

STOCKOUT = "stockout"
"""Kind of diagnosis that another region may mend."""


def find_tries(search: RunSearch) -> list[RunName]:
    """Return the jobs of a run, one for each region in which it was tried, in the order of the regions.

    A job of the same id that is of another line is none of them.

    Raises:
        ConfigError: There is none.
    """
    found = []
    for region in dict.fromkeys([search.name.region, *search.regions]):
        name = replace(search.name, region=region)
        if _is_there(name, search.line):
            found.append(name)
    if found:
        return found
    regions = ", ".join(dict.fromkeys([search.name.region, *search.regions]))
    of_line = f" of line {search.line}" if search.line else ""
    raise ConfigError(
        f"there is no run {search.name.id}{of_line} in project {search.name.project}, region {regions}",
        allowed="the id of a run that was submitted there",
        todo="check id, project and region; `shardline submit` prints all three",
    )


def follow_regions(
    prepared: Prepared,
    view: Callable[[], View],
    *,
    say: Callable[[str], None],
    submitted: Callable[[Submitted], None],
    poll_s: float = POLL_S,
) -> Ending:
    """Submit a run to region after region until one has machines for it, and follow it to its end.

    A try that is there already is found and followed, so the same command goes on where it was interrupted.

    Args:
        prepared: What to submit.
        view: Makes what shows a run.
        say: Told in a line what happens between two regions.
        submitted: Told of each submission.
        poll_s: Seconds between two looks.
    """
    regions = find_regions(prepared.config)
    ending = Ending("FAILED", None)
    for region, following in zip(regions, [*regions[1:], ""], strict=True):
        if following and _was_tried(prepared, regions[regions.index(region) + 1 :]):
            # This command, interrupted before, had given this region up.
            continue
        made = submit(prepared, prepared.submission(region))
        submitted(made)
        client = pipeline_client(region)
        ending = follow(client, made.name, view(), pending_limit_s=_pending_limit_s(prepared, following), poll_s=poll_s)
        if not following or (ending.waiting is None and not _has_no_machines(ending)):
            return ending
        why = ending.diagnosis.cause if ending.diagnosis else ""
        if ending.waiting is not None:
            say(f"{ending.waiting.kind} {ending.waiting.id} got no machines in {region} in time: {why}; cancelling it")
            if cancel(client, made.name, say=say, poll_s=poll_s).state == "SUCCEEDED":
                return Ending("SUCCEEDED", None)
        say(f"no machines in {region}: {why}; the next region is {following}")
    return ending


def _has_no_machines(ending: Ending) -> bool:
    return ending.diagnosis is not None and ending.diagnosis.kind == STOCKOUT


def _pending_limit_s(prepared: Prepared, following: str) -> float | None:
    """Return the seconds that a job may wait for machines; in the last region there is nothing to give up for."""
    resources = prepared.config.resources
    # FLEX_START waits by design; Vertex AI itself ends that after resources.max_wait_s.
    return resources.max_pending_s if following and resources.strategy != "FLEX_START" else None


def _was_tried(prepared: Prepared, regions: Sequence[str]) -> bool:
    project = prepared.config.cloud.project
    names = (RunName(project, region, prepared.run_id) for region in regions)
    return any(_is_there(name, prepared.config.run.name) for name in names)


def _is_there(name: RunName, line: str) -> bool:
    """Whether there is a job of this name, and of this line; empty: of any."""
    job = find_job(pipeline_client(name.region), name)
    return job is not None and line in ("", dict(job.labels).get(LINE_LABEL))
