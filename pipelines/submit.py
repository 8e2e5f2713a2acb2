"""`shardline submit`: a configuration's line as a PipelineJob, by Google's SDK.

Data of this machine and own code are published first (create-only, named by content), then the job is created: whoever
is killed between leaves files that nobody reads, and the same command goes on. The same run id is the same job.
"""

from __future__ import annotations

import contextlib
import json
import random
import re
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from components.gate import require_comparable
from contracts import storage
from contracts.canonical import canonical, canonical_hash
from contracts.config import CodeSection, RunConfig
from contracts.errors import ConfigError, ShardlineError
from contracts.own_code import code_hash
from contracts.result import LINE_LABEL, PIPELINE_FOLDER
from pipelines.compile import CompiledLine, compile_line
from pipelines.google import CALL_TIMEOUT_S, explained, find_quota_metrics, first_line, import_sdk
from pipelines.images import find_images, find_stale
from pipelines.local_data import LocalData, find_local_data, upload
from pipelines.plan import Plan, make_plan

if TYPE_CHECKING:
    from google.cloud.aiplatform import PipelineJob

Say = Callable[[str], None]


@dataclass(frozen=True)
class Ready:
    """A line that can be submitted.

    Attributes:
        config: With its source in the bucket and its images.
        plan: What a submission creates, and its cost.
        compiled: The pipeline and its parameters.
        cache: Whether KFP's cache is used.
        data: Data of this machine that must be uploaded first; None: there is none.
    """

    config: RunConfig
    plan: Plan
    compiled: CompiledLine
    data: LocalData | None
    cache: bool = True


def look_ahead(
    config: RunConfig,
    say: Say,
    *,
    run_id: str = "",
    scheduled: bool = False,
    online: bool = False,
    complete: bool = False,
) -> tuple[RunConfig, LocalData | None, Plan]:
    """Return a configuration as its submission has it, the data that is uploaded first, and the plan.

    Args:
        config: Resolved, with absolute paths.
        say: Told of a reading that takes a while.
        run_id: Id of the run; empty: one is made.
        scheduled: Whether it is for a schedule.
        online: Whether it is to be submitted: buckets are asked, and images must be built.
        complete: Whether the stages are asked too where the rules have found a problem.

    Raises:
        ConfigError: Data cannot be read.
    """
    stale = find_stale(config)
    data = find_local_data(config, say)
    config, missing = find_images(data.of(config) if data else config)
    plan = make_plan(
        config,
        run_id=run_id,
        scheduled=scheduled,
        online=online,
        complete=complete,
        local_source=data.given if data else "",
        placeholders=() if online else (*([data.in_words()] if data else []), *missing),
        unbuilt=missing if online else (),
    )
    return config, data, replace(plan, warnings=(*plan.warnings, *([stale] if stale else [])))


def make_ready(
    config: RunConfig, say: Say, *, run_id: str = "", scheduled: bool = False, online: bool = False, cache: bool = True
) -> Ready:
    """Check and compile a line; nothing is created.

    Args:
        config: Resolved, with absolute paths.
        say: Told of warnings, and of what stands for data or images that are not there yet.
        run_id: Id of the run; empty: one is made.
        scheduled: Whether it is for a schedule.
        online: Whether it is to be submitted: buckets are asked, and images must be built.
        cache: Whether KFP's cache is used.

    Raises:
        ConfigError: The plan's first problem.
        DataError: production.json of the line is damaged, or of another one.
    """
    config, data, plan = look_ahead(config, say, run_id=run_id, scheduled=scheduled, online=online)
    plan.require()
    if online and config.register.upload:
        require_comparable(config, storage.join(storage.normalise(config.run.root), config.run.name))
    for kind, texts in (("warning", plan.warnings), ("placeholder", plan.placeholders)):
        for text in texts:
            say(f"{kind}: {text}")
    return Ready(config, plan, compile_line(config, plan), data, cache)


def make_job(ready: Ready, run_id: str = "", region: str = "", *, offline: bool = False) -> PipelineJob:
    """Return the PipelineJob of a line as Google's SDK has it, before it is created.

    Args:
        ready: The line.
        run_id: Id of the run; empty: the SDK makes one, as for a schedule.
        region: Where; empty: `cloud.region`.
        offline: Whether it is only looked at: no credentials are needed.
    """
    from google.auth.credentials import AnonymousCredentials

    aiplatform = import_sdk()
    cloud, compiled = ready.config.cloud, ready.compiled
    place = region or cloud.region
    with tempfile.NamedTemporaryFile("w", suffix=".json") as spec, _vertex(place):
        json.dump(compiled.spec, spec)
        spec.flush()
        job = aiplatform.PipelineJob(
            display_name=ready.config.run.name,
            template_path=spec.name,
            job_id=run_id or None,
            pipeline_root=storage.join(
                storage.normalise(ready.config.run.root), ready.config.run.name, PIPELINE_FOLDER
            ),
            parameter_values={**compiled.parameters, "region": place},
            labels={**cloud.labels, LINE_LABEL: ready.config.run.name},
            encryption_spec_key_name=cloud.kms_key or None,
            # After a failure the record of the run is still written.
            failure_policy="slow",
            # True would override what each task says.
            enable_caching=None if ready.cache else False,
            project=cloud.project,
            location=place,
            credentials=AnonymousCredentials() if offline else None,  # type: ignore[no-untyped-call]
        )
    job._gca_resource.service_account = cloud.service_account
    # The service's own checks: quotas, roles, regions.
    job._gca_resource.preflight_validations = True
    return job


def describe_job(job: PipelineJob) -> dict[str, Any]:
    """Return the request that creates a job, as JSON in the API's names."""
    request = to_dict(job._gca_resource)
    return {
        "parent": f"projects/{job.project}/locations/{job.location}",
        "pipelineJobId": job.job_id,
        "pipelineSpecSha256": canonical_hash(request["pipelineSpec"]),
        "pipelineJob": request,
    }


def submit(ready: Ready, run_id: str, say: Say, region: str = "") -> PipelineJob:
    """Create the job of a line, unless it is there.

    Args:
        ready: The line.
        run_id: Id of the run.
        say: Told whether it was submitted, or exists, and its page in the console.
        region: Where; empty: `cloud.region`.

    Raises:
        ConfigError: A job of this id is another one, or something given cannot work.
        TryAgain: There was no answer.
        StorageError: The bucket cannot be used.
    """
    job = make_job(ready, run_id, region)
    if (found := find_job(run_id, job.project, job.location)) is None:
        publish(ready, say)
        try:
            _create(job, run_id)
        except ShardlineError:
            # Another process was faster, or an answer was lost.
            if (found := find_job(run_id, job.project, job.location)) is None:
                raise
    if found is not None:
        _require_same(job, found)
        job = found
    say(f"run {run_id} {'submitted' if found is None else 'exists: ' + state_of(found)}")
    say(job._dashboard_uri())
    return job


def submit_once(ready: Ready, run_id: str, say: Say) -> PipelineJob:
    """Create the job of a line in its first region, as `submit`.

    Raises:
        ConfigError: A job of this id has ended before.
    """
    job = submit(ready, run_id, say)
    if (state := state_of(job)) in ("failed", "cancelled"):
        raise ConfigError(
            f"run {run_id} has ended before: {state}; nothing was submitted",
            allowed="the id of a run that works, or a new one",
            todo="take another --run-id, or leave it out and one is made",
        )
    return job


def publish(ready: Ready, say: Say) -> None:
    """Bring to the bucket what the stages will read: data of this machine and own code.

    Raises:
        StorageError: The bucket is not there, or may not be written.
    """
    # The SDK would make a bucket that is not there, in a project of its choice.
    storage.list_names(storage.normalise(ready.config.run.root))
    if ready.data is not None:
        upload(ready.data, say)
    for uri, content in ready.compiled.documents.items():
        try:
            storage.publish(uri, content)
        except storage.AlreadyPublished as error:
            # An archive of own code is named by the files in it: another zlib packs them to other bytes.
            if not code_hash(CodeSection(path=uri)):
                raise ShardlineError(f"{uri} holds something else than its name says") from error


def find_job(run_id: str, project: str, region: str) -> PipelineJob | None:
    """Return a PipelineJob; None: there is none of this id.

    Args:
        run_id: Its id, or its full resource name.
        project: Id of the project.
        region: Where.
    """
    from google.api_core.exceptions import NotFound

    with _vertex(region), explained(f"run {run_id}"):
        try:
            found: PipelineJob = import_sdk().PipelineJob.get(run_id, project=project, location=region)
        except NotFound:
            return None
    return found


def state_of(job: Any) -> str:
    """Return the state of a pipeline, a job or a task as it was read last, in lower case without its prefix."""
    message = getattr(job, "gca_resource", job)
    return re.sub(r"^(pipeline|job)_state_", "", message.state.name.lower())


def make_run_id(line: str) -> str:
    """Return a new id: the line's name, the time (UTC) and four digits."""
    name = re.sub(r"[^a-z0-9]+", "-", line.lower()).strip("-") or "line"
    prefix = name if name[0].isalpha() else f"line-{name}"
    return f"{prefix}-{time.strftime('%Y%m%d-%H%M%S', time.gmtime())}-{random.SystemRandom().randrange(10**4):04d}"


def to_dict(message: Any) -> dict[str, Any]:
    """Return a message of the API as JSON, its fields in the API's names and numbers as they were given."""
    from google.protobuf.json_format import MessageToDict

    found: dict[str, Any] = canonical(MessageToDict(message._pb))
    return found


@contextlib.contextmanager
def _vertex(region: str) -> Iterator[None]:
    """Turn the SDK's own refusals of names and regions, a ValueError each, into ours."""
    with explained(f"Vertex AI in {region}"):
        try:
            yield
        except ValueError as error:
            raise ConfigError(
                f"Vertex AI in {region}: {first_line(error)}",
                allowed="names and regions that Google's SDK takes",
                todo="correct the key that is named, or cloud.region",
            ) from error


def _create(job: PipelineJob, run_id: str) -> None:
    """Create a job, with the checks of the service: quotas, roles, images, regions.

    Raises:
        ConfigError: One of them refuses it.
    """
    with explained(f"submitting {run_id}"):
        try:
            job.submit(
                job._gca_resource.service_account,
                create_request_timeout=CALL_TIMEOUT_S,
            )
        except Exception as error:
            # The SDK wraps what these checks say in a bare Exception.
            if type(error) is not Exception:
                raise
            metrics = find_quota_metrics(str(error))
            raise ConfigError(
                f"submitting {run_id}: the service's own checks refuse it ({error})",
                allowed="a job that the project has quota, roles and images for",
                todo=f"ask for more of {', '.join(metrics)} at https://console.cloud.google.com/iam-admin/quotas"
                if metrics
                else "correct what the answer names; deploy/terraform/project makes what a project needs",
            ) from error


def _require_same(wanted: PipelineJob, found: PipelineJob) -> None:
    """Refuse a job of the same id that runs something else.

    Raises:
        ConfigError: Its pipeline or its parameters are others.
    """
    ours, theirs = (_decisive(job) for job in (wanted, found))
    different = [
        f"{name} is {theirs.get(name, 'unset')} there, {ours.get(name, 'unset')} here"
        for name in sorted(ours.keys() | theirs.keys())
        if ours.get(name) != theirs.get(name)
    ]
    if different:
        raise ConfigError(
            f"run {wanted.job_id} exists with another configuration:\n    " + "\n    ".join(different),
            allowed="the same run id for the same configuration",
            todo="take another --run-id, or leave it out and one is made",
        )


def _decisive(job: PipelineJob) -> Mapping[str, Any]:
    """Return what decides what a job runs: the hash of its pipeline, parameters, and keys of its configuration."""
    values = to_dict(job._gca_resource)
    parameters = values.get("runtimeConfig", {}).get("parameterValues", {})
    # Each stage has a part of it; the record has all keys that are no defaults.
    sections = json.loads(parameters.get("run_config", "{}"))
    keys = {f"{section}.{key}": value for section, entries in sections.items() for key, value in entries.items()}
    others = {name: value for name, value in parameters.items() if not name.endswith("_config")}
    # The specification holds the parameters as defaults.
    spec = values.get("pipelineSpec", {})
    spec = {**spec, "root": {**spec.get("root", {}), "inputDefinitions": None}}
    return {"the pipeline": canonical_hash(spec)[:12], **others, **keys}
