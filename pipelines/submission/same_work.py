"""Two submissions of the same work: the second adopts the first run, or names it.

Two runs of one line that train the same would write one training folder, and a bucket has no lock. So whoever submits
first says so, create-only, in LINE/submissions/WORK/NUMBER.json, and looks at the line's active runs, among which are a
schedule's. The same specification and parameters under the first run's id are the same job: Vertex AI creates it once,
however many submit it at the same moment. What begins without a submission, a schedule's run, meets the lease of the
training folder (trainer/launch/lease.py).
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from contracts import storage
from contracts.config import RunConfig
from contracts.errors import ConfigError, ShardlineError, TryAgain
from contracts.fingerprint import combine, shard_inputs, train_inputs
from contracts.pinned import unpin
from contracts.resolve import parse_config
from pipelines.google import explained, pipeline_client, read_options
from pipelines.runs.name import RunName
from pipelines.runs.tasks import ENDED, state_of
from pipelines.submission.ladder import list_rungs, make_rungs, rung_run_id, rung_submission
from pipelines.submission.request import Difference, find_differences
from pipelines.submission.submit import Prepared, find_job, to_dict

SUBMISSIONS_FOLDER = "submissions"
# After this a submission that has made no job was killed before it could.
_UNMADE = timedelta(minutes=15)


@dataclass(frozen=True)
class Adopted:
    """The run to submit, and whether another submission made it."""

    prepared: Prepared
    is_others: bool
    rung: int = 0
    """Index of the rung of the ladder that is at work; 0: the first, or none is yet."""
    claim: str = ""
    """URI of this submission's own claim; empty: it is another's."""


@dataclass(frozen=True)
class _Other:
    """Another submission of the same work."""

    name: RunName
    """The run of its first rung."""
    rung: int
    """Index of its newest rung."""
    job: Any | None
    """That rung's message; None: the submission has made no job."""
    claimed_at: datetime | None = None
    """When it was claimed; None: it was found among the active runs."""

    @property
    def active(self) -> bool:
        """Whether its newest rung has not ended."""
        return self.job is not None and state_of(self.job) not in ENDED

    @property
    def may_begin(self) -> bool:
        """Whether it has made no job, and may still do so."""
        return self.job is None and self.claimed_at is not None and datetime.now(UTC) < self.claimed_at + _UNMADE


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
    cloud = prepared.config.cloud
    own = RunName(cloud.project, cloud.region, prepared.run_id)
    while True:
        number, first = _last_claim(client, folder, cloud.region)
        if first is not None and first.name == own:
            rung = first.rung if first.active else 0
            return Adopted(prepared, False, rung, claim=_claim_uri(folder, number))
        if first is not None and (first.active or first.may_begin):
            return _take(prepared, first, own_id=own_id)
        for other in _active_runs(client, prepared.config, str(values["line"]), work):
            if not _is_rung_of(other.name.id, prepared.run_id):
                return _take(prepared, other, own_id=own_id)
        if _claim(folder, number + 1, prepared):
            return Adopted(prepared, False, claim=_claim_uri(folder, number + 1))


@contextlib.contextmanager
def withdrawn_where_refused(client: Any, adopted: Adopted) -> Iterator[None]:
    """Take the submission's claim back when its job is refused: nobody is to wait for it."""
    try:
        yield
    except ConfigError:
        cloud = adopted.prepared.config.cloud
        name = RunName(cloud.project, cloud.region, adopted.prepared.run_id)
        # What is refused may be a later rung, or a job that is there and differs.
        with contextlib.suppress(ShardlineError):
            if adopted.claim and find_job(client, name) is None:
                storage.delete(adopted.claim)
        raise


def _active_runs(client: Any, config: RunConfig, line: str, work: str) -> Iterator[_Other]:
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
            name = RunName(cloud.project, cloud.region, str(job.name).rpartition("/")[2])
            # The list is without specs.
            if (whole := find_job(client, name)) is not None and state_of(whole) not in ENDED:
                yield _Other(name, 0, whole)


def _work_of_run(values: Mapping[str, Any], documents: Mapping[str, bytes]) -> str:
    """Return the work of a run by its parameters; empty: its configuration is of another version, or gone."""
    uri = unpin(str(values.get("run_config", "")))[0]
    try:
        content = documents[uri] if uri in documents else storage.read_bytes(uri)
        return work_of(parse_config(json.loads(content), where="a run's configuration"))
    except (ShardlineError, FileNotFoundError, ValueError):
        return ""


def _last_claim(client: Any, folder: str, region: str) -> tuple[int, _Other | None]:
    """Return number and run of the newest submission of the work; 0 and None: there is none.

    Args:
        client: The PipelineServiceClient of the region.
        folder: URI of the claims.
        region: The client's region: a claim of another one is looked up there.
    """
    names = sorted(storage.list_names(folder))
    if not names:
        return 0, None
    last = json.loads(storage.read_bytes(storage.join(folder, names[-1])))
    name = RunName(last["project"], last["region"], last["run_id"])
    if name.region != region:
        client = pipeline_client(name.region)
    jobs = [find_job(client, rung) for rung in list_rungs(client, name)]
    found = _Other(name, len(jobs) - 1, jobs[-1], datetime.fromisoformat(last["at"]))
    return int(names[-1].partition(".")[0]), found


def _claim(folder: str, number: int, prepared: Prepared) -> bool:
    """Write down that a run does the work; whether nobody was faster."""
    cloud = prepared.config.cloud
    at = datetime.now(UTC).isoformat(timespec="seconds")
    claim = {"run_id": prepared.run_id, "project": cloud.project, "region": cloud.region, "at": at}
    try:
        storage.publish(_claim_uri(folder, number), json.dumps(claim).encode())
    except storage.AlreadyPublished:
        return False
    return True


def _claim_uri(folder: str, number: int) -> str:
    return storage.join(folder, f"{number:06d}.json")


def _take(prepared: Prepared, other: _Other, *, own_id: bool) -> Adopted:
    """Return the other submission as the one to go on with, where it is the same.

    Raises:
        TryAgain: It is not.
    """
    cloud = prepared.config.cloud
    same = replace(prepared, run_id=other.name.id)
    # A run of another place is another one, even where it is called so.
    elsewhere = (other.name.project, other.name.region) != (cloud.project, cloud.region)
    differences: list[Difference] = []
    if other.job is not None and not elsewhere:
        wanted = rung_submission(same, make_rungs(prepared.config), other.rung).request
        differences = find_differences(wanted, to_dict(other.job))
    if not (own_id or elsewhere or differences):
        return Adopted(same, True, rung=other.rung)
    name = replace(other.name, id=rung_run_id(other.name.id, other.rung))
    if other.job is None and other.claimed_at is not None:
        until = (other.claimed_at + _UNMADE).astimezone(UTC)
        place = f" cloud.project={name.project} cloud.region={name.region}" if elsewhere else ""
        raise TryAgain(
            f"run {name.id} was to do the same work in this line and is not there: it is being submitted at this "
            f"moment, or its command was killed\n  to do: `shardline submit CONFIG{place} --run-id {name.id}` makes "
            f"that run; after {until:%H:%M} UTC any other id is taken"
        )
    told = "".join(f"\n    {difference}" for difference in differences[:8])
    raise TryAgain(
        f"run {name.id} does the same work in this line ({state_of(other.job).lower()}){told}\n  to do: wait for it "
        f"(`shardline status {name.resource}`), or cancel it (`shardline cancel {name.resource}`); two runs never "
        "write one training folder"
    )


def _is_rung_of(run_id: str, first: str) -> bool:
    suffix = run_id.removeprefix(f"{first}-r")
    return run_id == first or (suffix.isdigit() and run_id == rung_run_id(first, int(suffix) - 1))
