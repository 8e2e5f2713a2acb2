"""Two submissions of the same work: the second adopts the first run, or names it.

Two runs of one line that train the same would write one training folder, and a bucket has no lock. So whoever submits
first says so, create-only, in LINE/submissions/WORK/NUMBER.json, and looks at the line's active runs, among which are a
schedule's. The same specification and parameters under the first run's id are the same job: Vertex AI creates it once,
however many submit it at the same moment. What begins without a submission, a schedule's run, meets the lease of the
training folder (trainer/launch/lease.py).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from contracts import storage
from contracts.config import RunConfig
from contracts.errors import ShardlineError, TryAgain
from contracts.fingerprint import combine, shard_inputs, train_inputs
from contracts.pinned import unpin
from contracts.resolve import parse_config
from pipelines.google import explained, read_options
from pipelines.runs.name import RunName
from pipelines.runs.tasks import ENDED, state_of
from pipelines.submission.ladder import list_rungs, rung_run_id
from pipelines.submission.request import find_differences
from pipelines.submission.submit import Prepared, find_job, to_dict

SUBMISSIONS_FOLDER = "submissions"
# After this a submission that has made no job was killed before it could.
_UNMADE = timedelta(minutes=15)


@dataclass(frozen=True)
class Adopted:
    """The run to submit, and whether another submission made it."""

    prepared: Prepared
    is_others: bool


def work_of(config: RunConfig) -> str:
    """Return the hash of what decides a line's weights, as far as it is known before its source is listed."""
    return combine(
        {**shard_inputs(config, listing=""), **train_inputs(config, shards="", weights=config.model.weights)}
    )


def adopt(client: Any, prepared: Prepared, *, own_id: bool) -> Adopted:
    """Return what to submit: the given run, or the one that does the same work already.

    Args:
        client: The PipelineServiceClient of the region.
        prepared: The line.
        own_id: Whether the user named the run's id: then it is not exchanged for another.

    Raises:
        TryAgain: Another run does the same work, and is not what would be submitted.
    """
    values = prepared.compiled.parameters
    work = _work_of_run(values, prepared.compiled.documents)
    if not work:
        return Adopted(prepared, False)
    folder = storage.join(str(values["line"]), SUBMISSIONS_FOLDER, work)
    while True:
        number, first = _last_claim(folder)
        if first is not None and first.name.id == prepared.run_id:
            return Adopted(prepared, False)
        if first is not None and _is_active(client, first):
            return _take(client, prepared, first.name, own_id=own_id)
        for name in _active_runs(client, prepared.config, str(values["line"]), work):
            if not _is_rung_of(name.id, prepared.run_id):
                return _take(client, prepared, name, own_id=own_id)
        if _claim(folder, number + 1, prepared):
            return Adopted(prepared, False)


def _active_runs(client: Any, config: RunConfig, line: str, work: str) -> Iterator[RunName]:
    """Yield the runs of the line that have not ended and do the same work, a schedule's included."""
    cloud = config.cloud
    request = {
        "parent": f"projects/{cloud.project}/locations/{cloud.region}",
        "filter": f'display_name="{config.run.name}"'
        + "".join(f' AND state!="PIPELINE_STATE_{state}"' for state in ("SUCCEEDED", "FAILED", "CANCELLED")),
        "read_mask": {"paths": ["name", "state", "create_time", "runtime_config"]},
    }
    with explained(f"the runs of {config.run.name}", project=cloud.project):
        found = list(client.list_pipeline_jobs(request=request, **read_options()))
    for job in sorted(found, key=lambda one: (one.create_time or datetime.min.replace(tzinfo=UTC), one.name)):
        values = dict(job.runtime_config.parameter_values or {})
        if values.get("line") == line and state_of(job) not in ENDED and _work_of_run(values, {}) == work:
            yield RunName(cloud.project, cloud.region, str(job.name).rpartition("/")[2])


def _work_of_run(values: Mapping[str, Any], documents: Mapping[str, bytes]) -> str:
    """Return the work of a run by its parameters; empty: its configuration is of another version, or gone."""
    uri = unpin(str(values.get("run_config", "")))[0]
    try:
        content = documents[uri] if uri in documents else storage.read_bytes(uri)
        return work_of(parse_config(json.loads(content), where="a run's configuration"))
    except (ShardlineError, FileNotFoundError, ValueError):
        return ""


@dataclass(frozen=True)
class _First:
    name: RunName
    claimed_at: datetime


def _last_claim(folder: str) -> tuple[int, _First | None]:
    """Return number and run of the newest submission of the work; 0 and None: there is none."""
    names = sorted(storage.list_names(folder))
    if not names:
        return 0, None
    last = json.loads(storage.read_bytes(storage.join(folder, names[-1])))
    name = RunName(last["project"], last["region"], last["run_id"])
    return int(names[-1].partition(".")[0]), _First(name, datetime.fromisoformat(last["at"]))


def _claim(folder: str, number: int, prepared: Prepared) -> bool:
    """Write down that a run does the work; whether nobody was faster."""
    cloud = prepared.config.cloud
    at = datetime.now(UTC).isoformat(timespec="seconds")
    claim = {"run_id": prepared.run_id, "project": cloud.project, "region": cloud.region, "at": at}
    try:
        storage.publish(storage.join(folder, f"{number:06d}.json"), json.dumps(claim).encode())
    except storage.AlreadyPublished:
        return False
    return True


def _is_active(client: Any, first: _First) -> bool:
    """Whether a submission's newest rung has not ended, or may still be made."""
    newest = [find_job(client, rung) for rung in list_rungs(client, first.name)][-1]
    if newest is None:
        return datetime.now(UTC) - first.claimed_at < _UNMADE
    return state_of(newest) not in ENDED


def _take(client: Any, prepared: Prepared, first: RunName, *, own_id: bool) -> Adopted:
    """Return the first run as the one to submit, where it is the same.

    Raises:
        TryAgain: It is not.
    """
    found = find_job(client, first)
    same = replace(prepared, run_id=first.id)
    wanted = same.submission(first.id).request
    differences = [] if found is None else find_differences(wanted, to_dict(found))
    if own_id or differences:
        told = "".join(f"\n    {difference}" for difference in differences[:8])
        state = state_of(found).lower() if found else "submitted"
        raise TryAgain(
            f"run {first.id} does the same work in this line ({state}){told}\n  to do: wait for it (`shardline status "
            f"{first.id} --config CONFIG`), or cancel it; two runs never write one training folder"
        )
    return Adopted(same, True)


def _is_rung_of(run_id: str, first: str) -> bool:
    suffix = run_id.removeprefix(f"{first}-r")
    return run_id == first or (suffix.isdigit() and run_id == rung_run_id(first, int(suffix) - 1))
