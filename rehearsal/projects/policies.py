"""IAM policies: read and write with etags, as https://cloud.google.com/iam/docs/allow-policies#etag has it.

A member that is an account of the project must be there; a new one is not known everywhere at once.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rehearsal.doors.errors import ServiceError
from rehearsal.projects.state import Policy, ProjectState

_OTHER_WRITER = {"role": "roles/browser", "members": ["user:somebody-else@example.com"]}


def get_policy(state: ProjectState, name: str) -> dict[str, Any]:
    """Return the policy of a resource."""
    return _show(state.policy(name))


def set_policy(state: ProjectState, name: str, wanted: Mapping[str, Any]) -> dict[str, Any]:
    """Replace the policy of a resource.

    Raises:
        ServiceError: ABORTED: another write came between; INVALID_ARGUMENT: no etag, or an unknown member.
    """
    policy = state.policy(name)
    if policy.conflicts_left:
        policy.conflicts_left -= 1
        policy.bindings.append(dict(_OTHER_WRITER))
        policy.generation += 1
    if not wanted.get("etag"):
        raise ServiceError("INVALID_ARGUMENT", f"a policy of {name} without etag would overwrite another's change")
    if wanted["etag"] != policy.etag:
        text = (
            "There were concurrent policy changes. Please retry the whole read-modify-write with exponential backoff."
        )
        raise ServiceError("ABORTED", text)
    if any("condition" in binding for binding in policy.bindings) and wanted.get("version") != 3:
        raise ServiceError("INVALID_ARGUMENT", "A policy with conditions must be written with version 3.")
    for binding in wanted.get("bindings", []):
        for member in binding.get("members", []):
            _check_member(state, member)
    policy.bindings = [dict(binding) for binding in wanted.get("bindings", []) if binding.get("members")]
    policy.generation += 1
    return _show(policy)


def _check_member(state: ProjectState, member: str) -> None:
    address = member.removeprefix("serviceAccount:")
    if not address.endswith(f"@{state.project}.iam.gserviceaccount.com") or member == address:
        return
    left = state.new_accounts.get(address, 0)
    if f"projects/{state.project}/serviceAccounts/{address}" not in state.resources or left:
        state.new_accounts[address] = max(0, left - 1)
        raise ServiceError("INVALID_ARGUMENT", f"Service account {address} does not exist.")


def _show(policy: Policy) -> dict[str, Any]:
    return {"version": 3, "etag": policy.etag, "bindings": [dict(binding) for binding in policy.bindings]}
