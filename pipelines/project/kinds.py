"""How each kind of resource is found, made, changed and deleted: one table of calls, and what runs them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from contracts.errors import ConfigError
from pipelines.project.client import Client, Refused
from pipelines.project.declaration import DESCRIPTION, LABELS, Resource

_HTTP_CONFLICT, _HTTP_FORBIDDEN, _HTTP_NOT_FOUND = 409, 403, 404
# Of a body: what says who made a thing, and what is its place in another; neither is compared.
_NOT_COMPARED = ("labels", "description", "displayName", "name", "network")


@dataclass(frozen=True)
class _Calls:
    """Methods of one kind, for one resource."""

    api: str
    collection: str
    find: dict[str, Any]
    """Arguments of get, delete and patch."""
    create: dict[str, Any]
    """Arguments of the creation, but for the body."""
    create_method: str = "create"
    wrap: str = ""
    """Where the body stands in the creation's body."""
    extra: dict[str, Any] = field(default_factory=dict)
    """What the creation's body has beside it."""
    listed: dict[str, Any] | None = None
    """Arguments of list, for a kind whose names the service gives: it is found by its display name."""


def find(client: Client, resource: Resource) -> dict[str, Any] | None:
    """Return a resource as it is, None where there is none.

    Raises:
        ConfigError: It is a bucket, and another's.
        Refused: The API said no.
    """
    calls = _calls(client, resource)
    if calls.listed is not None:
        return _find_listed(client, calls, resource)
    try:
        return client.call(calls.api, f"{calls.collection}.get", **calls.find)
    except Refused as error:
        if resource.kind == "bucket" and error.status == _HTTP_FORBIDDEN and not error.is_disabled:
            raise ConfigError(
                f"bucket {resource.name} is somebody else's, or your account may not look at it ({error.text})",
                allowed="a name that nobody has, as all of Google Cloud shares the names of buckets; or a bucket of "
                "this project",
                todo="take another name: `shardline init --bucket`, or run.root",
            ) from error
        if error.status != _HTTP_NOT_FOUND:
            raise
        return None


def create(client: Client, resource: Resource) -> bool:
    """Make a resource, and wait until it is there; False where somebody else has made it meanwhile.

    One that is there and says that `shardline project` made it is ours: httplib2 sends a request again whose connection
    ended without an answer, and the second is told of what the first has made.
    """
    calls = _calls(client, resource)
    body = {**calls.extra, calls.wrap: resource.body} if calls.wrap else {**resource.body, **calls.extra}
    try:
        method = f"{calls.collection}.{calls.create_method}"
        answer = client.wait(
            f"{calls.api} ({resource.key})",
            lambda: client.call(calls.api, method, write=True, body=body, **calls.create),
        )
    except Refused as error:
        if error.status == _HTTP_CONFLICT:
            return _is_marked(client.wait(resource.key, lambda: find(client, resource)))
        raise
    _finish(client, calls.api, answer, resource.key)
    return True


def _is_marked(found: Mapping[str, Any]) -> bool:
    labels = found.get("labels") or {}
    return found.get("description") == DESCRIPTION or LABELS.items() <= labels.items()


def delete(client: Client, resource: Resource) -> None:
    """Delete a resource, and wait until it is gone; one that is gone is none to delete."""
    calls = _calls(client, resource)
    arguments = calls.find
    if calls.listed is not None:
        found = _find_listed(client, calls, resource)
        if found is None:
            return
        arguments = {"name": found["name"]}
    try:
        answer = client.call(calls.api, f"{calls.collection}.delete", write=True, **arguments)
    except Refused as error:
        if error.status == _HTTP_NOT_FOUND:
            return
        raise
    _finish(client, calls.api, answer, f"the end of {resource.key}")


def change(client: Client, resource: Resource, found: Mapping[str, Any], keys: list[str]) -> None:
    """Set the declared values of some keys of a resource that `project apply` has made."""
    calls = _calls(client, resource)
    body = {key: resource.body[key] for key in keys}
    arguments: dict[str, Any] = dict(calls.find)
    if calls.listed is not None:
        arguments |= {"name": found["name"], "updateMask": ",".join(keys)}
    if resource.kind in ("repository", "account"):
        arguments["updateMask"] = ",".join(keys)
    if resource.kind == "subnetwork" and "fingerprint" in found:
        body["fingerprint"] = found["fingerprint"]
    answer = client.call(calls.api, f"{calls.collection}.patch", write=True, body=body, **arguments)
    _finish(client, calls.api, answer, f"the change of {resource.key}")


def find_differences(resource: Resource, found: Mapping[str, Any]) -> list[str]:
    """Return the keys of the declared body whose values the resource lacks."""
    return [key for key, value in resource.body.items() if key not in _NOT_COMPARED and not _has(found.get(key), value)]


def _has(found: Any, wanted: Any) -> bool:
    """Whether a value holds all that is wanted: maps by their keys, lists by their items."""
    if isinstance(wanted, Mapping):
        return isinstance(found, Mapping) and all(_has(found.get(key), value) for key, value in wanted.items())
    if isinstance(wanted, list):
        return isinstance(found, list) and all(any(_has(item, value) for item in found) for value in wanted)
    return bool(found == wanted)


def _find_listed(client: Client, calls: _Calls, resource: Resource) -> dict[str, Any] | None:
    assert calls.listed is not None
    token = ""
    while True:
        more = calls.listed | ({"pageToken": token} if token else {})
        page = client.call(calls.api, f"{calls.collection}.list", **more)
        for item in page.get(calls.collection.rpartition(".")[2], []):
            if item.get("displayName") == resource.name:
                return dict(item)
        token = page.get("nextPageToken", "")
        if not token:
            return None


def _finish(client: Client, api: str, answer: Mapping[str, Any], what: str) -> None:
    if "done" in answer or "status" in answer or "/operations/" in str(answer.get("name", "")):
        client.finish(api, answer, what)


def _calls(client: Client, resource: Resource) -> _Calls:
    project, region, name = client.project, client.region, resource.name
    place = f"projects/{project}/locations/{region}"
    match resource.kind:
        case "bucket":
            return _Calls("storage", "buckets", {"bucket": name}, {"project": project}, "insert")
        case "account":
            found, body = {"name": f"projects/{project}/serviceAccounts/{name}"}, {"accountId": name.partition("@")[0]}
            parent = {"name": f"projects/{project}"}
            return _Calls("iam", "projects.serviceAccounts", found, parent, wrap="serviceAccount", extra=body)
        case "repository":
            found, parent = {"name": f"{place}/repositories/{name}"}, {"parent": place, "repositoryId": name}
            return _Calls("artifactregistry", "projects.locations.repositories", found, parent)
        case "network" | "firewall":
            return _Calls(
                "compute",
                f"{resource.kind}s",
                {"project": project, resource.kind: name},
                {"project": project},
                "insert",
            )
        case "subnetwork" | "router":
            parent = {"project": project, "region": region}
            return _Calls("compute", f"{resource.kind}s", {**parent, resource.kind: name}, parent, "insert")
        case "budget":
            number = client.call("cloudresourcemanager", "projects.get", name=f"projects/{project}")["name"]
            parent = {"parent": find_billing_account(client)}
            extra = {"budgetFilter": {"projects": [number]}}
            return _Calls("billingbudgets", "billingAccounts.budgets", {}, parent, extra=extra, listed=parent)
        case "tensorboard":
            parent = {"parent": place}
            return _Calls("aiplatform", "projects.locations.tensorboards", {}, parent, listed=parent)


def find_billing_account(client: Client) -> str:
    """Return the billing account of the project, as billingAccounts/ID.

    Raises:
        ConfigError: It has none.
    """
    name = client.call("cloudbilling", "projects.getBillingInfo", name=f"projects/{client.project}")
    if not name.get("billingAccountName"):
        raise ConfigError(
            f"project {client.project} has no billing account",
            allowed="a project that somebody pays for",
            todo=f"gcloud billing projects link {client.project} --billing-account=ID",
        )
    return str(name["billingAccountName"])
