"""`project apply`: make what is missing, in an order that a killed command can be run again from."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from contracts.errors import ConfigError
from pipelines.project import kinds
from pipelines.project.client import Client, Refused
from pipelines.project.declaration import Declaration
from pipelines.project.inspect import Survey, find_missing_apis, survey
from pipelines.project.made import write_made
from pipelines.project.policies import group_by_resource, write_grants

# Services.batchEnable takes 20 names.
_MAX_ENABLED = 20
# A read of each API that a run calls first where nobody waits: Google's wait_gcp_resources asks Dataflow once.
_READS = {
    "aiplatform.googleapis.com": "projects.locations.pipelineJobs.list",
    "cloudbuild.googleapis.com": "projects.locations.builds.list",
    "dataflow.googleapis.com": "projects.locations.jobs.list",
    "logging.googleapis.com": "projects.sinks.list",
}


def apply(client: Client, found: Survey, say: Callable[[str], None]) -> None:
    """Make what a survey found missing.

    First the APIs, then the bucket, then the record of what is going to be made, then that. So a command that is killed
    anywhere leaves nothing unrecorded, and the next one goes on.

    Args:
        client: The APIs.
        found: What is there.
        say: Told of each thing that is made.

    Raises:
        ConfigError: It cannot be made: a permission, a name that is another's, no billing account.
        TryAgain: Something is not known within the client's limit, or others change the same things.
    """
    declaration = found.declaration
    if found.missing_apis:
        _enable(client, declaration, say)
        # What could not be looked at before may be there.
        found = survey(client, declaration)
    for resource in found.missing:
        if not resource.body:
            raise ConfigError(
                f"there is no {resource.key}",
                allowed="a project that has it: Google makes it with the project, unless the organisation forbids it",
                todo="set the network of Dataflow to another name: `project apply` makes such a network",
            )
    bucket = declaration.resources[0]
    if found.found[bucket] is None:
        say(f"makes {bucket.key}")
        kinds.create(client, bucket)
        found.found[bucket] = kinds.find(client, bucket)
    missing = [resource for resource in found.missing if resource is not bucket]
    new = ({item.key for item in missing} | {grant.key for grant in found.missing_grants}) - found.made.keys
    made = found.made
    if new:
        made = write_made(client, bucket.name, made, made.keys | new)
    strange: set[str] = set()
    for resource in missing:
        say(f"makes {resource.key}")
        if not kinds.create(client, resource) and resource.key in new:
            strange.add(resource.key)
    for resource, keys in found.differing():
        if found.is_made(resource):
            say(f"sets {', '.join(keys)} of {resource.key}")
            kinds.change(client, resource, found.found[resource] or {}, keys)
    for grants in group_by_resource(found.missing_grants):
        for grant in grants:
            say(f"makes {grant.key}")
        write_grants(client, grants, present=True)
    if strange:
        # Somebody else made these between the look and the creation: they are theirs.
        write_made(client, bucket.name, made, made.keys - strange)


def _enable(client: Client, declaration: Declaration, say: Callable[[str], None]) -> None:
    missing = find_missing_apis(client, declaration)
    for start in range(0, len(missing), _MAX_ENABLED):
        some = missing[start : start + _MAX_ENABLED]
        say(f"enables {', '.join(some)}")
        parent = f"projects/{client.project}"
        operation = client.call(
            "serviceusage", "services.batchEnable", write=True, parent=parent, body={"serviceIds": some}
        )
        client.finish("serviceusage", operation, "the APIs")
    for api in missing:
        if api in _READS:
            client.wait(f"an answer of {api}", functools.partial(_answers, client, api))


def _answers(client: Client, api: str) -> bool:
    """Whether a new API is known where it is asked: whatever it answers but that it is disabled.

    Raises:
        Refused: It says that it is disabled.
    """
    project, place = f"projects/{client.project}", f"projects/{client.project}/locations/{client.region}"
    named: dict[str, Any] = {"parent": project if api.startswith("logging") else place}
    if api.startswith("dataflow"):
        named = {"projectId": client.project, "location": client.region}
    try:
        client.call(api.partition(".")[0], _READS[api], **named)
    except Refused as error:
        if error.is_disabled:
            raise
    return True
