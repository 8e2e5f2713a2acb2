"""`shardline submit`: from a compiled line to a PipelineJob of Vertex Pipelines, by Google's client.

The same run id is the same job: one that exists is reported, and refused when it is not what would be submitted. First
own code is published (create-only, named by its content), then the job is created: whoever is killed between leaves an
archive that nobody reads, and the same command goes on.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from contracts import storage
from contracts.config import CodeSection
from contracts.errors import ConfigError, ShardlineError
from contracts.own_code import code_hash
from pipelines.google import (
    explained,
    first_line,
    is_about_project,
    pipeline_client,
    read_options,
    write_options,
)
from pipelines.runs.name import RunName
from pipelines.runs.tasks import state_of
from pipelines.submission.request import Submission, check_run_id, find_differences, make_request, make_run_id

if TYPE_CHECKING:
    from contracts.config import RunConfig
    from pipelines.compile import CompiledLine


@dataclass(frozen=True)
class Prepared:
    """A line that is ready to be submitted."""

    config: RunConfig
    compiled: CompiledLine
    run_id: str

    def submission(self, region: str = "") -> Submission:
        """Return its submission to a region; empty: `cloud.region`."""
        cloud = self.config.cloud
        place = region or cloud.region
        return Submission(cloud.project, place, self.run_id, make_request(self.config, self.compiled, place))


@dataclass(frozen=True)
class Submitted:
    """A job that is there."""

    name: RunName
    state: str
    existed: bool
    """Whether it was there before."""
    warning: str = ""
    """What did not work beside the job itself."""


def prepare(config: RunConfig, compiled: CompiledLine, *, run_id: str = "") -> Prepared:
    """Return what is to be submitted.

    Args:
        config: The resolved configuration.
        compiled: The line, compiled from it.
        run_id: Id of the run; empty: one is made.

    Raises:
        ConfigError: The id cannot be used.
    """
    return Prepared(config, compiled, check_run_id(run_id) if run_id else make_run_id(config.run.name))


def submit(prepared: Prepared, submission: Submission) -> Submitted:
    """Create the job, unless it is there.

    Raises:
        ConfigError: A job of this id is another one, or something given cannot work.
        TryAgain: A quota is used up, or there was no answer.
        StorageError: The bucket cannot be used.
    """
    name = RunName(submission.project, submission.region, submission.run_id)
    client = pipeline_client(submission.region)
    if (found := find_job(client, name)) is not None:
        return _accept(found, submission, name)
    # The service takes a job whose bucket is not there: its first task would fail.
    storage.list_names(prepared.compiled.pipeline_root)
    publish(prepared.compiled.documents)
    try:
        with explained(f"submitting {submission.run_id}", project=submission.project):
            message = _create(client, submission)
    except ShardlineError as error:
        # The job may be there all the same: an answer was lost, or another process was faster.
        made = _find_after(client, name, error)
        if made is None:
            raise
        accepted = _accept(made, submission, name)
        cause = f" ({first_line(error.__cause__)})" if error.__cause__ else ""
        return replace(accepted, existed=False, warning=f"the job is there, but: {first_line(error)}{cause}")
    return Submitted(name, state_of(message), False)


def publish(documents: Mapping[str, bytes]) -> None:
    """Publish what the stages will read; content that is there already is fine.

    Raises:
        StorageError: The bucket is not there, or may not be written.
        ShardlineError: Another content is there under a name that is made from the content.
    """
    for uri, content in documents.items():
        try:
            storage.publish(uri, content)
        except storage.AlreadyPublished as error:
            # An archive of own code is named by the files in it: another zlib packs them to other bytes.
            if code_hash(CodeSection(path=uri)):
                continue
            raise ShardlineError(f"{uri} holds something else than its name says") from error


def find_job(client: Any, name: RunName) -> Any | None:
    """Return a PipelineJob's message; None: there is none of this name."""
    from google.api_core.exceptions import NotFound

    with explained(f"run {name.id}", project=name.project):
        try:
            return client.get_pipeline_job(name=name.resource, **read_options())
        except NotFound as error:
            if is_about_project(error):
                raise
            return None


def read_job(client: Any, name: RunName) -> Any:
    """Return a PipelineJob's message.

    Raises:
        ConfigError: There is none of this name.
    """
    if (found := find_job(client, name)) is None:
        raise ConfigError(
            f"there is no run {name.id} in project {name.project}, region {name.region}",
            allowed="the id of a run that was submitted there",
            todo="check id, project and region; `shardline submit` prints all three",
        )
    return found


def to_dict(message: Any) -> dict[str, Any]:
    """Return a message of the API as JSON, its fields in the API's names."""
    from google.protobuf.json_format import MessageToDict

    found: dict[str, Any] = MessageToDict(message._pb)
    return found


def _create(client: Any, submission: Submission) -> Any:
    """Create the job and return its message."""
    from google.cloud.aiplatform_v1.types import PipelineJob
    from google.protobuf.json_format import ParseDict

    message = PipelineJob()
    ParseDict(submission.request, message._pb)
    return client.create_pipeline_job(
        parent=f"projects/{submission.project}/locations/{submission.region}",
        pipeline_job=message,
        pipeline_job_id=submission.run_id,
        **write_options(),
    )


def _accept(found: Any, submission: Submission, name: RunName) -> Submitted:
    """Report a job that is there.

    Raises:
        ConfigError: It is another one.
    """
    differences = find_differences(submission.request, to_dict(found))
    if differences:
        told = "\n    ".join(str(difference) for difference in differences[:8])
        raise ConfigError(
            f"run {name.id} exists, and differs:\n    {told}",
            allowed="the same run id for the same spec and parameters",
            todo="take another --run-id, or the configuration that the run was submitted with",
        )
    return Submitted(name, state_of(found), True)


def _find_after(client: Any, name: RunName, error: Exception) -> Any | None:
    """Return the job if it is there after all; what asking for it comes to is no news beside `error`."""
    try:
        return find_job(client, name)
    except ShardlineError:
        raise error from None
