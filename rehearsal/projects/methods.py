"""What the methods do that `shardline project` calls: by the ids of Google's discovery documents."""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from rehearsal.doors.errors import ServiceError, not_found
from rehearsal.projects.builds import create_build, get_build, list_builds
from rehearsal.projects.policies import get_policy, set_policy
from rehearsal.projects.state import ProjectState

_ACCOUNT_ID = re.compile(r"[a-z][a-z0-9-]{4,28}[a-z0-9]")
_COMPUTE_COLLECTIONS = ("networks", "subnetworks", "firewalls", "routers")


@dataclass(frozen=True)
class Call:
    """One request of one method."""

    state: ProjectState
    name: str
    """The path behind the API's version, and without a verb."""
    query: Mapping[str, str]
    values: Mapping[str, list[str]]
    body: dict[str, Any]


Handler = Callable[[Call], dict[str, Any]]


def _batch_get(call: Call) -> dict[str, Any]:
    def show(name: str) -> dict[str, Any]:
        state = "ENABLED" if call.state.is_enabled(name.rpartition("/")[2]) else "DISABLED"
        return {"name": name, "state": state}

    return {"services": [show(name) for name in call.values.get("names", [])]}


def _batch_enable(call: Call) -> dict[str, Any]:
    apis = call.body.get("serviceIds", [])
    if not 1 <= len(apis) <= 20:
        raise ServiceError("INVALID_ARGUMENT", f"{len(apis)} services: from 1 to 20 can be enabled at once")
    if not call.state.billing_account:
        raise ServiceError("FAILED_PRECONDITION", f"Billing account for project '{call.state.number}' is not found.")
    call.state.enable(apis)
    name = call.state.begin(f"operations/acat.{secrets.token_hex(6)}", {})
    return {"name": name, "done": False}


def _operation(call: Call) -> dict[str, Any]:
    found = call.state.look_at(call.name)
    if found is None:
        raise not_found(call.name)
    done, result = found
    return {"name": call.name, "done": done} | ({"response": result} if done else {})


def _get(call: Call) -> dict[str, Any]:
    if call.name not in call.state.resources:
        raise not_found(call.name)
    return call.state.resources[call.name]


def _add(call: Call, name: str, resource: dict[str, Any]) -> dict[str, Any]:
    if name in call.state.resources:
        raise ServiceError("ALREADY_EXISTS", f"The resource '{name}' already exists")
    call.state.resources[name] = resource
    return resource


def _delete(call: Call) -> dict[str, Any]:
    _get(call)
    del call.state.resources[call.name]
    call.state.policies.pop(call.name, None)
    return {}


def _begun(call: Call, prefix: str, result: dict[str, Any]) -> dict[str, Any]:
    name = call.state.begin(f"{prefix}/operations/set-up-{secrets.token_hex(6)}", result)
    return {"name": name, "done": False}


def _create_account(call: Call) -> dict[str, Any]:
    account = call.body.get("accountId", "")
    if not _ACCOUNT_ID.fullmatch(account):
        raise ServiceError(
            "INVALID_ARGUMENT", f"The account ID {account!r} does not have 6 to 30 characters of a-z0-9-."
        )
    address = f"{account}@{call.state.project}.iam.gserviceaccount.com"
    name = f"projects/{call.state.project}/serviceAccounts/{address}"
    made = _add(call, name, {**call.body.get("serviceAccount", {}), "name": name, "email": address})
    call.state.new_accounts[address] = call.state.lag.new_account
    return made


def _create_repository(call: Call) -> dict[str, Any]:
    place = call.name.removesuffix("/repositories")
    name = f"{call.name}/{call.query.get('repositoryId', '')}"
    return _begun(call, place, _add(call, name, {**call.body, "name": name}))


def _delete_repository(call: Call) -> dict[str, Any]:
    return _begun(call, call.name.rpartition("/repositories/")[0], _delete(call))


def _create_tensorboard(call: Call) -> dict[str, Any]:
    if not call.body.get("displayName"):
        raise ServiceError("INVALID_ARGUMENT", "displayName is required")
    name = f"{call.name}/{10**18 + len(call.state.resources)}"
    return _begun(call, call.name.removesuffix("/tensorboards"), _add(call, name, {**call.body, "name": name}))


def _delete_tensorboard(call: Call) -> dict[str, Any]:
    return _begun(call, call.name.rpartition("/tensorboards/")[0], _delete(call))


def _list(call: Call) -> dict[str, Any]:
    collection = call.name.rpartition("/")[2]
    names = [name for name in call.state.resources if name.rpartition("/")[0] == call.name]
    return {collection: [call.state.resources[name] for name in names]}


def _billing(call: Call) -> dict[str, Any]:
    account = call.state.billing_account
    return {"projectId": call.state.project, "billingAccountName": account, "billingEnabled": bool(account)}


def _create_budget(call: Call) -> dict[str, Any]:
    name = f"{call.name}/{secrets.token_hex(8)}"
    return _add(call, name, {**call.body, "name": name})


def _patch(call: Call) -> dict[str, Any]:
    _get(call).update(call.body)
    return _get(call)


def _insert(call: Call) -> dict[str, Any]:
    if not call.body.get("name"):
        raise ServiceError("INVALID_ARGUMENT", "Invalid value for field 'resource.name': ''.")
    network = call.body.get("network", "")
    if network and network.partition("/")[2] and network not in call.state.resources:
        raise not_found(network)
    _add(call, f"{call.name}/{call.body['name']}", dict(call.body))
    return _compute_begun(call, call.name)


def _compute_patch(call: Call) -> dict[str, Any]:
    _get(call).update(call.body)
    return _compute_begun(call, call.name)


def _compute_delete(call: Call) -> dict[str, Any]:
    for name, resource in call.state.resources.items():
        if resource.get("network") == call.name:
            raise ServiceError(
                "FAILED_PRECONDITION", f"The network resource '{call.name}' is already being used by '{name}'"
            )
    _delete(call)
    return _compute_begun(call, call.name)


def _compute_begun(call: Call, name: str) -> dict[str, Any]:
    parts = name.split("/")
    place = "/".join(parts[: 3 if parts[2] == "global" else 4])
    operation = call.state.begin(f"{place}/operations/operation-{secrets.token_hex(6)}", {})
    regional = {} if parts[2] == "global" else {"region": f"https://www.googleapis.com/compute/v1/{place}"}
    return {"name": operation.rpartition("/")[2], "status": "RUNNING", **regional}


def _compute_operation(call: Call) -> dict[str, Any]:
    found = _operation(call)
    return {"name": call.name.rpartition("/")[2], "status": "DONE" if found["done"] else "RUNNING"}


def _read_policy(call: Call) -> dict[str, Any]:
    _must_be_there(call)
    return get_policy(call.state, call.name)


def _write_policy(call: Call) -> dict[str, Any]:
    _must_be_there(call)
    return set_policy(call.state, call.name, call.body.get("policy", {}))


def _must_be_there(call: Call) -> None:
    if call.name != f"projects/{call.state.project}":
        _get(call)


_AR, _TB = "artifactregistry.projects.locations", "aiplatform.projects.locations"
_BUILDS = "cloudbuild.projects.locations.builds"
_IAM, _BUDGETS = "iam.projects.serviceAccounts", "billingbudgets.billingAccounts.budgets"
METHODS: dict[str, Handler] = {
    "serviceusage.services.batchGet": _batch_get,
    "serviceusage.services.batchEnable": _batch_enable,
    "serviceusage.operations.get": _operation,
    "cloudresourcemanager.projects.getIamPolicy": _read_policy,
    "cloudresourcemanager.projects.setIamPolicy": _write_policy,
    f"{_IAM}.get": _get,
    f"{_IAM}.create": _create_account,
    f"{_IAM}.delete": _delete,
    f"{_IAM}.getIamPolicy": _read_policy,
    f"{_IAM}.setIamPolicy": _write_policy,
    f"{_AR}.repositories.get": _get,
    f"{_AR}.repositories.create": _create_repository,
    f"{_AR}.repositories.delete": _delete_repository,
    f"{_AR}.repositories.getIamPolicy": _read_policy,
    f"{_AR}.repositories.setIamPolicy": _write_policy,
    f"{_AR}.operations.get": _operation,
    f"{_TB}.tensorboards.list": _list,
    f"{_TB}.tensorboards.create": _create_tensorboard,
    f"{_TB}.tensorboards.delete": _delete_tensorboard,
    f"{_TB}.operations.get": _operation,
    f"{_BUILDS}.create": create_build,
    f"{_BUILDS}.get": get_build,
    f"{_BUILDS}.list": list_builds,
    "cloudbilling.projects.getBillingInfo": _billing,
    f"{_BUDGETS}.list": _list,
    f"{_BUDGETS}.create": _create_budget,
    f"{_BUDGETS}.patch": _patch,
    f"{_BUDGETS}.delete": _delete,
    "compute.globalOperations.get": _compute_operation,
    "compute.regionOperations.get": _compute_operation,
    **{f"compute.{collection}.get": _get for collection in _COMPUTE_COLLECTIONS},
    **{f"compute.{collection}.insert": _insert for collection in _COMPUTE_COLLECTIONS},
    **{f"compute.{collection}.patch": _compute_patch for collection in _COMPUTE_COLLECTIONS},
    **{f"compute.{collection}.delete": _compute_delete for collection in _COMPUTE_COLLECTIONS},
}
