"""Grants in IAM policies: read, changed and written back with the etag that was read.

https://cloud.google.com/iam/docs/granting-changing-revoking-access#multiple-roles-programmatic. Bindings with a
condition are another's and are kept.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable
from typing import Any

from contracts.errors import TryAgain
from pipelines.project.client import Client, Refused
from pipelines.project.declaration import Grant

# Each attempt loses to a writer in between; the service asks for new attempts itself.
_MAX_ATTEMPTS = 10
_HTTP_CONFLICT, _HTTP_PRECONDITION, _HTTP_NOT_FOUND = 409, 412, 404
_VERSION = 3


def group_by_resource(grants: Iterable[Grant]) -> list[list[Grant]]:
    """Return the grants of each resource, one list per policy."""
    groups: dict[tuple[str, str], list[Grant]] = {}
    for grant in grants:
        scope = "account" if grant.scope in ("runner", "build account") else grant.scope
        groups.setdefault((scope, grant.resource), []).append(grant)
    return list(groups.values())


def find_granted(client: Client, grants: list[Grant]) -> set[Grant]:
    """Return those of one resource's grants that its policy has; none where the resource is not there."""
    try:
        policy = _read(client, grants[0])
    except Refused as error:
        if error.status == _HTTP_NOT_FOUND:
            return set()
        raise
    return {grant for grant in grants if _is_granted(policy, grant)}


def write_grants(client: Client, grants: list[Grant], *, present: bool) -> None:
    """Add (or remove) grants of one resource; nothing is written where nothing changes.

    Raises:
        TryAgain: Others changed the policy each time, or it does not know a new account within the limit.
    """
    for _ in range(_MAX_ATTEMPTS):
        policy = client.wait(f"the policy of {grants[0].resource}", lambda: _read(client, grants[0]))
        wanted = [grant for grant in grants if _is_granted(policy, grant) != present]
        if not wanted:
            return
        for grant in wanted:
            _change(policy, grant, present=present)
        policy["version"] = _VERSION
        try:
            members = ", ".join(dict.fromkeys(grant.member for grant in wanted))
            what = f"{members} in the policy of {grants[0].resource}"
            client.wait(what, functools.partial(_write, client, grants[0], policy))
            return
        except Refused as error:
            if error.status not in (_HTTP_CONFLICT, _HTTP_PRECONDITION):
                raise
    raise TryAgain(
        f"the policy of {grants[0].resource} was changed by others {_MAX_ATTEMPTS} times in between\n"
        "  to do: run the same command again: nothing of theirs was overwritten"
    )


def _is_granted(policy: dict[str, Any], grant: Grant) -> bool:
    return any(
        binding["role"] == grant.role and grant.member in binding.get("members", []) and "condition" not in binding
        for binding in policy.get("bindings", [])
    )


def _change(policy: dict[str, Any], grant: Grant, *, present: bool) -> None:
    bindings = policy.setdefault("bindings", [])
    own = [binding for binding in bindings if binding["role"] == grant.role and "condition" not in binding]
    if present and own:
        own[0].setdefault("members", []).append(grant.member)
    elif present:
        bindings.append({"role": grant.role, "members": [grant.member]})
    for binding in () if present else own:
        binding["members"] = [member for member in binding.get("members", []) if member != grant.member]
    policy["bindings"] = [binding for binding in bindings if binding.get("members")]


def _read(client: Client, grant: Grant) -> dict[str, Any]:
    if grant.scope == "bucket":
        bucket: dict[str, Any] = {"bucket": grant.resource, "optionsRequestedPolicyVersion": _VERSION}
        return client.call("storage", "buckets.getIamPolicy", **bucket)
    api, collection, resource = _place(client, grant)
    if grant.scope == "project":
        body = {"options": {"requestedPolicyVersion": _VERSION}}
        return client.call(api, f"{collection}.getIamPolicy", resource=resource, body=body)
    return client.call(api, f"{collection}.getIamPolicy", resource=resource, options_requestedPolicyVersion=_VERSION)


def _write(client: Client, grant: Grant, policy: dict[str, Any]) -> dict[str, Any]:
    if grant.scope == "bucket":
        return client.call("storage", "buckets.setIamPolicy", write=True, bucket=grant.resource, body=policy)
    api, collection, resource = _place(client, grant)
    return client.call(api, f"{collection}.setIamPolicy", write=True, resource=resource, body={"policy": policy})


def _place(client: Client, grant: Grant) -> tuple[str, str, str]:
    if grant.scope == "project":
        return "cloudresourcemanager", "projects", f"projects/{grant.resource}"
    if grant.scope == "repository":
        name = f"projects/{client.project}/locations/{client.region}/repositories/{grant.resource}"
        return "artifactregistry", "projects.locations.repositories", name
    return "iam", "projects.serviceAccounts", f"projects/{client.project}/serviceAccounts/{grant.resource}"
