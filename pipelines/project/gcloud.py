"""The declaration as commands of gcloud: a shell script that makes what is missing when it runs for the first time."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator

from pipelines.project.declaration import Declaration, Grant, Resource


def to_gcloud(declaration: Declaration) -> str:
    """Return a script of bash. It ends at the first command that fails: gcloud creates nothing twice."""
    lines = ["#!/usr/bin/env bash", "# Made by `shardline project export --gcloud`.", "set -euo pipefail", ""]
    project = f"--project={declaration.project}"
    lines += [f"# {api}: {reason}" for api, reason in declaration.apis.items()]
    lines += [_line(["gcloud", "services", "enable", *declaration.apis, project]), ""]
    for resource in declaration.resources:
        cost = f" (costs: {resource.cost})" if resource.cost else ""
        lines.append(f"# {resource.key}: {resource.reason}{cost}")
        lines += [command if isinstance(command, str) else _line(command) for command in _make(declaration, resource)]
    lines.append("")
    for grant in declaration.grants:
        lines += [f"# {grant.reason}", _line(_bind(declaration, grant))]
    return "\n".join(lines)


def _make(declaration: Declaration, resource: Resource) -> Iterator[list[str] | str]:
    body, project, region = resource.body, f"--project={declaration.project}", f"--region={declaration.region}"
    location, name = f"--location={declaration.region}", resource.name
    match resource.kind:
        case "bucket":
            url = f"gs://{name}"
            yield [
                *("gcloud", "storage", "buckets", "create", url, project, location),
                *("--uniform-bucket-level-access", "--public-access-prevention"),
            ]
            rules = json.dumps(body["lifecycle"])
            yield (
                f"gcloud storage buckets update {url} {_labels(body['labels'], '--update-labels')} "
                f"--lifecycle-file=<(echo {shlex.quote(rules)})"
            )
        case "account":
            texts = [f"--display-name={body['displayName']}", f"--description={body['description']}"]
            yield ["gcloud", "iam", "service-accounts", "create", name.partition("@")[0], project, *texts]
        case "repository":
            form = f"--repository-format={body['format'].lower()}"
            yield [
                "gcloud",
                "artifacts",
                "repositories",
                "create",
                name,
                project,
                location,
                form,
                _labels(body["labels"]),
            ]
        case "network" if not body:
            yield ["gcloud", "compute", "networks", "describe", name, project, "--format=value(name)"]
        case "network":
            yield ["gcloud", "compute", "networks", "create", name, project, "--subnet-mode=custom"]
        case "subnetwork":
            network = f"--network={body['network'].rpartition('/')[2]}"
            ranges = [f"--range={body['ipCidrRange']}", "--enable-private-ip-google-access"]
            yield ["gcloud", "compute", "networks", "subnets", "create", name, project, region, network, *ranges]
        case "firewall":
            rule, network = body["allowed"][0], f"--network={body['network'].rpartition('/')[2]}"
            tags = [f"--source-tags={body['sourceTags'][0]}", f"--target-tags={body['targetTags'][0]}"]
            allowed = f"--allow={rule['IPProtocol']}:{rule['ports'][0]}"
            yield ["gcloud", "compute", "firewall-rules", "create", name, project, network, allowed, *tags]
        case "router":
            network = f"--network={body['network'].rpartition('/')[2]}"
            yield ["gcloud", "compute", "routers", "create", name, project, region, network]
            ranges = ["--auto-allocate-nat-external-ips", "--nat-all-subnet-ip-ranges"]
            nat = body["nats"][0]["name"]
            yield ["gcloud", "compute", "routers", "nats", "create", nat, project, region, f"--router={name}", *ranges]
        case "budget":
            account = f"$(gcloud billing projects describe {declaration.project} --format='value(billingAccountName)')"
            thresholds = " ".join(
                f"--threshold-rule=percent={rule['thresholdPercent']}" for rule in body["thresholdRules"]
            )
            yield (
                f'gcloud billing budgets create --billing-account="$(basename "{account}")" '
                f"--display-name={shlex.quote(name)} --budget-amount={body['amount']['specifiedAmount']['units']} "
                f"--filter-projects=projects/{declaration.project} {thresholds}"
            )
        case "tensorboard":
            yield [
                "gcloud",
                "ai",
                "tensorboards",
                "create",
                f"--display-name={name}",
                project,
                region,
                _labels(body["labels"]),
            ]


def _bind(declaration: Declaration, grant: Grant) -> list[str]:
    project = f"--project={declaration.project}"
    to = [f"--member={grant.member}", f"--role={grant.role}"]
    match grant.scope:
        case "project":
            # Without it gcloud asks, where the policy has conditions.
            return ["gcloud", "projects", "add-iam-policy-binding", grant.resource, *to, "--condition=None"]
        case "bucket":
            return ["gcloud", "storage", "buckets", "add-iam-policy-binding", f"gs://{grant.resource}", *to]
        case "repository":
            place = [project, f"--location={declaration.region}"]
            return ["gcloud", "artifacts", "repositories", "add-iam-policy-binding", grant.resource, *place, *to]
        case _:
            return ["gcloud", "iam", "service-accounts", "add-iam-policy-binding", grant.resource, project, *to]


def _labels(labels: dict[str, str], option: str = "--labels") -> str:
    return f"{option}={','.join(f'{key}={value}' for key, value in labels.items())}"


def _line(command: list[str]) -> str:
    return shlex.join(command)
