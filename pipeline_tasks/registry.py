"""The model registry of Vertex AI: is there a model of this name; and its alias `production`, which follows a line."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable
from typing import Any

from contracts import storage
from contracts.errors import TryAgain
from contracts.promotions import find_model as find_line_model
from contracts.promotions import read_decisions
from contracts.registration import find_registration
from contracts.serving import REPOSITORY
from pipeline_tasks.outputs import write_parameter

ALIAS, LABEL = "production", "decision"
"""What the version in production has; what a version has whose run decided something."""

# Of a description: no limit is documented; a console shows no more.
_MOST_CHARACTERS = 1000

TIMEOUT_S = 60.0
# How long a request is repeated, with growing pauses, when the service does not answer.
RETRY_DEADLINE_S = 180.0
# Others that decide at the same time.
_TRIES = 10
_MODEL = re.compile(r"projects/[^/]+/locations/([^/]+)/models/[^/@]+")
_OPERATION = re.compile(r"projects/[^/]+/locations/([^/]+)/operations/[^/\"]+")


def run(options: argparse.Namespace) -> None:
    """Give out the model's resource name, and whether there is one: yes or no."""
    found = find_model(options.project, options.region, options.name)
    write_parameter(options.write_resource, found or "")
    address = f"https://{options.region}-aiplatform.googleapis.com/v1/"
    write_parameter(options.write_uri, address + (found or ""))
    write_parameter(options.write_exists, "no" if found is None else "yes")


def find_model(project: str, region: str, name: str) -> str | None:
    """Return the resource name of the newest model with this display name; None: there is none.

    Raises:
        google.api_core.exceptions.GoogleAPICallError: The service says no.
    """
    from google.cloud import aiplatform_v1

    request = aiplatform_v1.ListModelsRequest(
        parent=f"projects/{project}/locations/{region}", filter=f'display_name="{name}"'
    )
    # Each page is a request of its own, with this time-out and these retries.
    found = list(_client(region).list_models(request, **_options()))
    return str(max(found, key=lambda model: model.create_time).name) if found else None


def _client(region: str) -> Any:
    from google.cloud import aiplatform_v1

    return aiplatform_v1.ModelServiceClient(client_options={"api_endpoint": f"{region}-aiplatform.googleapis.com"})


def follow_production(line: str, client_of: Callable[[str], Any] = _client) -> str:
    """Put the alias `production` onto the version that the line's newest decision names; return where it is, in words.

    The registry has no compare-and-swap. So the alias is looked at after it was moved, beside the decisions as they are
    then: of several that move it at once the last one to look leaves it right, and after a kill the next command does.

    Args:
        line: URI of the line's folder.
        client_of: Returns the ModelServiceClient of a region.

    The version that the newest decision is about says how it went: in its description, and in the label `decision`.

    Returns:
        Empty: no promoted run of the line was uploaded, or nothing was decided.

    Raises:
        google.api_core.exceptions.GoogleAPICallError: The service says no.
        DataError: A decision, a version or what the gate left is damaged.
        TryAgain: Others go on deciding.
    """
    said = _move_alias(line, client_of)
    try:
        _describe_decision(line, client_of)
    except Exception as error:  # noqa: BLE001 - what counts is where the alias is; the next command describes it
        why = (str(error).splitlines() or [""])[0]
        return "; ".join(filter(None, (said, f"no description of the decision: {type(error).__name__}: {why}")))
    return said


def _move_alias(line: str, client_of: Callable[[str], Any]) -> str:
    for _ in range(_TRIES):
        decisions = read_decisions(line)
        run = decisions[-1].production if decisions else ""
        models = {
            each: _uploaded(line, each, client_of)
            for each in dict.fromkeys(decision.production for decision in decisions)
        }
        names = list(dict.fromkeys(name for name in models.values() if name))
        if not run or not names:
            return ""
        home, moved, said = models[run], False, f"run {run} was not uploaded: no version has the alias {ALIAS}"
        version = find_line_model(line, run)
        for name in names:
            client = client_of(_region(name))
            wanted = _version_of(client, name, version.export) if version is not None and name == home else ""
            holder = _holder(client, name)
            if wanted:
                said = f"{name}@{wanted} has the alias {ALIAS}"
            if wanted != holder:
                change = (wanted, ALIAS) if wanted else (holder, f"-{ALIAS}")
                client.merge_version_aliases(name=f"{name}@{change[0]}", version_aliases=[change[1]], **_options())
                moved = True
        if not moved:
            return said
    raise TryAgain(f"the alias {ALIAS} of {storage.display(line)} was moved {_TRIES} times by others meanwhile")


def _describe_decision(line: str, client_of: Callable[[str], Any]) -> None:
    from google.cloud import aiplatform_v1
    from google.protobuf.field_mask_pb2 import FieldMask

    decisions = read_decisions(line)
    if not decisions or not (name := _uploaded(line, decisions[-1].run, client_of)):
        return
    decision, client = decisions[-1], client_of(_region(name))
    version = find_line_model(line, decision.run)
    number = _version_of(client, name, version.export) if version is not None else ""
    if not number:
        return
    found = client.get_model(name=f"{name}@{number}", **_options())
    words = f"decision {decision.number}: {decision.action}: {'; '.join(decision.reasons)}"[:_MOST_CHARACTERS]
    labels = {**found.labels, LABEL: decision.action.replace(" ", "-")}
    if (found.version_description, dict(found.labels)) != (words, labels):
        changed = aiplatform_v1.Model(name=f"{name}@{number}", version_description=words, labels=labels)
        mask = FieldMask(paths=["version_description", "labels"])
        client.update_model(model=changed, update_mask=mask, **_options())


def _uploaded(line: str, run: str, client_of: Callable[[str], Any]) -> str:
    """Return the resource name of the model that a run's export became a version of; empty: of none that is known."""
    found = find_registration(line, run) if run else None
    if found is None or not found.upload:
        return ""
    if (match := _MODEL.search(found.upload)) is not None:
        return match[0]
    # Its operation is named below the place, not below the model: it knows.
    return _ask_operation(match[0], client_of(match[1])) if (match := _OPERATION.search(found.upload)) else ""


def _ask_operation(name: str, client: Any) -> str:
    from google.api_core import exceptions as api
    from google.cloud import aiplatform_v1

    try:
        operation = client.get_operation(request={"name": name}, **_options())
    except api.NotFound:
        return ""
    return str(aiplatform_v1.UploadModelResponse.deserialize(operation.response.value).model)


def _region(name: str) -> str:
    match = _MODEL.match(name)
    return match[1] if match is not None else ""


def _version_of(client: Any, name: str, export: str) -> str:
    """Return the newest version that serves an export; empty: none does."""
    uri = storage.join(export, REPOSITORY)
    versions = client.list_model_versions(name=name, **_options())
    return max((each.version_id for each in versions if each.artifact_uri.rstrip("/") == uri), key=int, default="")


def _holder(client: Any, name: str) -> str:
    from google.api_core import exceptions as api

    try:
        return str(client.get_model(name=f"{name}@{ALIAS}", **_options()).version_id)
    except api.NotFound:
        return ""


def _options() -> dict[str, Any]:
    """Return timeout and retry of a request that may be repeated."""
    from google.api_core import exceptions as api
    from google.api_core.retry import Retry, if_exception_type

    kinds = (api.ServiceUnavailable, api.GatewayTimeout, api.InternalServerError, api.BadGateway)
    retry = Retry(predicate=if_exception_type(*kinds), initial=1.0, maximum=20.0, timeout=RETRY_DEADLINE_S)
    return {"timeout": TIMEOUT_S, "retry": retry}
