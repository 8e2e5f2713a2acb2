"""The declaration as Terraform's JSON syntax (https://developer.hashicorp.com/terraform/language/syntax/json).

Resources of the provider hashicorp/google, checked against its schema by the tests. "//" is a comment in that syntax.
"""

from __future__ import annotations

import json
import re
from typing import Any

from pipelines.project.declaration import Declaration, Grant, Resource

# The provider whose schema the tests check against.
PROVIDER = "~> 8.0"
_TYPES = {
    "bucket": "google_storage_bucket",
    "account": "google_service_account",
    "repository": "google_artifact_registry_repository",
    "network": "google_compute_network",
    "subnetwork": "google_compute_subnetwork",
    "firewall": "google_compute_firewall",
    "router": "google_compute_router",
    "budget": "google_billing_budget",
    "tensorboard": "google_vertex_ai_tensorboard",
}


def to_terraform(declaration: Declaration) -> str:
    """Return main.tf.json: everything but quotas and the network `default`, which Google makes."""
    resources: dict[str, dict[str, Any]] = {}

    def add(kind: str, name: str, content: dict[str, Any], reason: str) -> None:
        resources.setdefault(kind, {})[_identifier(name)] = {"//": reason, **content}

    for api, reason in declaration.apis.items():
        content = {"project": declaration.project, "service": api, "disable_on_destroy": False}
        add("google_project_service", api.partition(".")[0], content, reason)
    after_apis = [f"google_project_service.{name}" for name in resources["google_project_service"]]
    for resource in declaration.resources:
        if resource.body:
            content = _content(declaration, resource) | {"depends_on": after_apis}
            add(_TYPES[resource.kind], resource.name, content, resource.reason)
        if resource.kind == "router":
            content, nat = _nat(declaration, resource), resource.body["nats"][0]["name"]
            add("google_compute_router_nat", nat, content, resource.reason)
    for grant in declaration.grants:
        kind, content = _grant(declaration, grant, resources)
        add(kind, f"{grant.member} {grant.role} {grant.resource}", content, grant.reason)
    whole: dict[str, Any] = {
        "terraform": {"required_providers": {"google": {"source": "hashicorp/google", "version": PROVIDER}}},
        "provider": {"google": {"project": declaration.project, "region": declaration.region}},
        "resource": resources,
    }
    if any(resource.kind == "budget" for resource in declaration.resources):
        whole["provider"]["google"] |= {"user_project_override": True, "billing_project": declaration.project}
        whole["data"] = {"google_project": {"this": {"project_id": declaration.project}}}
    return json.dumps(whole, indent=2)


def _content(declaration: Declaration, resource: Resource) -> dict[str, Any]:
    body, project, region = resource.body, declaration.project, declaration.region
    match resource.kind:
        case "bucket":
            return {
                "project": project,
                "name": resource.name,
                "location": body["location"],
                "labels": body["labels"],
                "uniform_bucket_level_access": True,
                "public_access_prevention": "enforced",
                "lifecycle_rule": [_rule(rule) for rule in body["lifecycle"]["rule"]],
            }
        case "account":
            account = resource.name.partition("@")[0]
            return {"project": project, "account_id": account, **_snake(body)}
        case "repository":
            return {"project": project, "location": region, "repository_id": resource.name, **_snake(body)}
        case "network":
            return {"project": project, **_snake(body)}
        case "subnetwork":
            return {"project": project, "region": region, **_snake(body), **_in_network(body)}
        case "firewall":
            allowed = [{"protocol": rule["IPProtocol"], "ports": rule["ports"]} for rule in body["allowed"]]
            rest = {key: value for key, value in body.items() if key != "allowed"}
            return {"project": project, **_snake(rest), **_in_network(body), "allow": allowed}
        case "router":
            rest = {key: value for key, value in body.items() if key != "nats"}
            return {"project": project, "region": region, **_snake(rest), **_in_network(body)}
        case "budget":
            return {
                "billing_account": "${data.google_project.this.billing_account}",
                "display_name": body["displayName"],
                "budget_filter": [{"projects": ["projects/${data.google_project.this.number}"]}],
                "amount": [{"specified_amount": [dict(body["amount"]["specifiedAmount"])]}],
                "threshold_rules": [{"threshold_percent": rule["thresholdPercent"]} for rule in body["thresholdRules"]],
            }
        case "tensorboard":
            return {"project": project, "region": region, **_snake(body)}


def _nat(declaration: Declaration, router: Resource) -> dict[str, Any]:
    nat = router.body["nats"][0]
    return {
        "project": declaration.project,
        "region": declaration.region,
        "router": f"${{google_compute_router.{_identifier(router.name)}.name}}",
        "name": nat["name"],
        "nat_ip_allocate_option": nat["natIpAllocateOption"],
        "source_subnetwork_ip_ranges_to_nat": nat["sourceSubnetworkIpRangesToNat"],
    }


def _grant(declaration: Declaration, grant: Grant, resources: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """Return the kind and the content of a grant, which waits for its account and its resource by naming them."""
    address = grant.member.removeprefix("serviceAccount:")
    own = _identifier(address) if address != grant.member else ""
    known = own in resources["google_service_account"]
    member = f"serviceAccount:${{google_service_account.{own}.email}}" if known else grant.member
    content = {"role": grant.role, "member": member}
    name = _identifier(grant.resource)
    if grant.scope == "project":
        waits = [f"google_project_service.{_identifier('cloudresourcemanager')}"]
        return "google_project_iam_member", {"project": declaration.project, **content, "depends_on": waits}
    if grant.scope == "bucket":
        return "google_storage_bucket_iam_member", {"bucket": f"${{google_storage_bucket.{name}.name}}", **content}
    if grant.scope == "repository":
        place = {
            "project": declaration.project,
            "location": declaration.region,
            "repository": f"${{google_artifact_registry_repository.{name}.name}}",
        }
        return "google_artifact_registry_repository_iam_member", {**place, **content}
    account = f"${{google_service_account.{name}.name}}"
    return "google_service_account_iam_member", {"service_account_id": account, **content}


def _rule(rule: dict[str, Any]) -> dict[str, Any]:
    return {"action": [dict(rule["action"])], "condition": [_snake(rule["condition"])]}


def _in_network(body: dict[str, Any]) -> dict[str, str]:
    return {"network": f"${{google_compute_network.{_identifier(body['network'].rpartition('/')[2])}.id}}"}


def _snake(body: dict[str, Any]) -> dict[str, Any]:
    return {re.sub(r"(?<!^)(?=[A-Z])", "_", key).lower(): value for key, value in body.items()}


def _identifier(text: str) -> str:
    name = re.sub(r"[^A-Za-z0-9_]+", "_", text).strip("_")
    return name if re.match(r"[A-Za-z_]", name) else f"_{name}"
