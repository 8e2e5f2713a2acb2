"""Declaration of a project: the APIs, resources and grants that a configuration needs, as data. Asks nobody.

Resources stand in the order in which they can be made. `body` is what the REST API of Google takes, so that plan,
apply and destroy need no second description; terraform and gcloud translate it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

from contracts.config import RunConfig
from contracts.errors import ConfigError
from pipelines.project.roles import BUILD, RUNNER, USER, Role, Scope

Kind = Literal[
    "bucket",
    "account",
    "repository",
    "network",
    "subnetwork",
    "firewall",
    "router",
    "budget",
    "tensorboard",
]
# On what `shardline project` makes, where the resource has labels.
LABELS = {"made-by": "shardline"}
DESCRIPTION = "made by shardline project"
# https://cloud.google.com/iam/docs/service-accounts-create: the part before the @.
_ACCOUNT = re.compile(r"[a-z](?:[a-z0-9-]{4,28}[a-z0-9])@(?P<project>[a-z0-9-]+)\.iam\.gserviceaccount\.com")
# Workers of Dataflow talk to each other on these ports; a network of one's own has no rule that lets them.
# https://cloud.google.com/dataflow/docs/guides/routes-firewall
DATAFLOW_PORTS = "12345-12346"
SUBNETWORK_RANGE = "10.128.0.0/20"
_UPLOAD_DAYS, _TEMPORARY_DAYS = 7, 30

# API -> what of a line uses it.
APIS = {
    "serviceusage.googleapis.com": "APIs are listed and enabled",
    "cloudresourcemanager.googleapis.com": "the SDK asks who the project is; roles on the project",
    "iam.googleapis.com": "service accounts and their roles",
    "iamcredentials.googleapis.com": "the SDK asks about the account",
    "storage.googleapis.com": "data, shards, checkpoints and exports",
    "aiplatform.googleapis.com": "pipelines, custom jobs, models",
    "dataflow.googleapis.com": "sharding",
    "compute.googleapis.com": "the machines and networks of Dataflow and Vertex AI",
    "artifactregistry.googleapis.com": "container images",
    "cloudbuild.googleapis.com": "builds of images",
    "logging.googleapis.com": "what containers print",
    "cloudquotas.googleapis.com": "quotas (`submit`, `plan --online`)",
}
BUDGET_APIS = {
    "cloudbilling.googleapis.com": "which billing account pays",
    "billingbudgets.googleapis.com": "the budget",
}


@dataclass(frozen=True, eq=False)
class Resource:
    """One thing that a project needs to have."""

    kind: Kind
    name: str
    """Bucket, account, repository, network or display name: what it is found by."""
    reason: str
    body: dict[str, Any] = field(default_factory=dict)
    """As Google's REST API takes it."""
    cost: str = ""
    """What it costs while nothing runs; empty: nothing."""
    place: str = ""
    """Region; empty: it has none."""

    @property
    def key(self) -> str:
        """Kind and name."""
        return f"{self.kind} {self.name}"


@dataclass(frozen=True)
class Grant:
    """One role of one principal on one resource."""

    scope: Scope
    resource: str
    """Project id, bucket, repository or the account's mail address."""
    role: str
    member: str
    """As in serviceAccount:MAIL."""
    reason: str

    @property
    def key(self) -> str:
        """Role, member and resource."""
        return f"grant {self.role} to {self.member} on {self.scope} {self.resource}"


@dataclass(frozen=True)
class Declaration:
    """All that a project needs for one configuration."""

    project: str
    region: str
    bucket: str
    apis: dict[str, str]
    """API -> reason."""
    resources: tuple[Resource, ...]
    """In the order in which they can be made."""
    grants: tuple[Grant, ...]


def declare(config: RunConfig) -> Declaration:
    """Return what the project of a configuration needs.

    Raises:
        ConfigError: It names no project, region, bucket or account, or one that Google would refuse.
    """
    from pipelines.rules.cloud_names import check_name

    cloud = config.cloud
    bucket = config.run.root.removeprefix("gs://").partition("/")[0] if config.run.root.startswith("gs://") else ""
    for problem in (
        *check_name("project", "cloud.project", cloud.project),
        *check_name("region", "cloud.region", cloud.region),
        *check_name("bucket", "run.root: bucket", bucket),
    ):
        raise ConfigError(problem.given, allowed=problem.allowed, todo=problem.todo)
    for where, address in (
        ("cloud.service_account", cloud.service_account),
        ("project.build_account", config.project.build_account),
    ):
        if where == "cloud.service_account" or address:
            _check_account(where, address, cloud.project)
    resources = (*_storage(config, bucket), *_accounts(config), *_repositories(config), *_network(config))
    return Declaration(
        project=cloud.project,
        region=cloud.region,
        bucket=bucket,
        apis=APIS | (BUDGET_APIS if config.project.monthly_budget else {}),
        resources=(*resources, *_extras(config)),
        grants=tuple(_grants(config, bucket)),
    )


def _check_account(where: str, address: str, project: str) -> None:
    match = _ACCOUNT.fullmatch(address)
    if match is None or match["project"] != project:
        raise ConfigError(
            f"{where} = {address}" if address else f"{where} is not set",
            allowed=f"NAME@{project}.iam.gserviceaccount.com; NAME has 6 to 30 lower-case letters, digits and '-'",
            todo=f"set {where} to an account of this project, e.g. "
            f"shardline-{'runner' if where.startswith('cloud') else 'build'}@{project}.iam.gserviceaccount.com",
        )


def _storage(config: RunConfig, bucket: str) -> Iterator[Resource]:
    # Rules by age would delete shards in use. A rule takes prefixes and suffixes of names: `.work` stands in the
    # middle of one, and is `shardline clean --unfinished`'s to delete.
    rules: list[dict[str, Any]] = [
        {"action": {"type": "AbortIncompleteMultipartUpload"}, "condition": {"age": _UPLOAD_DAYS}}
    ]
    if not config.dataflow.temp_location:
        condition = {"age": _TEMPORARY_DAYS, "matchesPrefix": ["dataflow/temp/"]}
        rules.append({"action": {"type": "Delete"}, "condition": condition})
    body = {
        "name": bucket,
        "location": config.cloud.region.upper(),
        "labels": LABELS,
        "iamConfiguration": {"uniformBucketLevelAccess": {"enabled": True}, "publicAccessPrevention": "enforced"},
        "lifecycle": {"rule": rules},
    }
    yield Resource("bucket", bucket, "data, shards, checkpoints, exports", body, place=config.cloud.region)


def _accounts(config: RunConfig) -> Iterator[Resource]:
    for address, reason in (
        (config.cloud.service_account, "the pipeline, its jobs and Dataflow's workers act as it"),
        (config.project.build_account, "Cloud Build builds images as it"),
    ):
        if address:
            name = address.partition("@")[0]
            yield Resource("account", address, reason, {"displayName": name, "description": DESCRIPTION})


def _repositories(config: RunConfig) -> Iterator[Resource]:
    images, registry = _image_repository(config), config.vertex.registry
    region, project = config.cloud.region, config.cloud.project
    found = [(images, "DOCKER", "container images")] if images else []
    if registry:
        place, its_project, name = registry.removeprefix("https://").split("/")
        if its_project == project and place == f"{region}-kfp.pkg.dev":
            found.append((name, "KFP", "compiled pipelines"))
    for name, form, reason in found:
        yield Resource(
            "repository",
            name,
            reason,
            {"format": form, "labels": LABELS, "description": DESCRIPTION},
            cost="storage of images beyond 0.5 GB" if form == "DOCKER" else "",
            place=region,
        )


def _image_repository(config: RunConfig) -> str:
    """Return the name of the repository of images; "" where it is another project's or region's."""
    place = config.cloud.images.repository
    if not place:
        return "shardline"
    host, project, name, *_ = [*place.split("/"), "", ""]
    own = host == f"{config.cloud.region}-docker.pkg.dev" and project == config.cloud.project
    return name if own else ""


def _network(config: RunConfig) -> Iterator[Resource]:
    """Yield the network of Dataflow's workers: `default`, which Google makes, is only looked for."""
    cloud, dataflow = config.cloud, config.dataflow
    network, region = dataflow.network or "default", cloud.region
    if "/" in network:
        # A network of another project (Shared VPC) is that project's.
        return
    if network == "default":
        yield Resource(
            "network", network, "Dataflow's workers; every new project has it unless its organisation forbids"
        )
        return
    subnetwork = dataflow.subnetwork.rpartition("/")[2] or network
    body = {"name": network, "autoCreateSubnetworks": False, "description": DESCRIPTION}
    yield Resource("network", network, "Dataflow's workers", body)
    body = {
        "name": subnetwork,
        "network": f"projects/{cloud.project}/global/networks/{network}",
        "ipCidrRange": SUBNETWORK_RANGE,
        "privateIpGoogleAccess": True,
        "description": DESCRIPTION,
    }
    yield Resource(
        "subnetwork", subnetwork, "addresses of workers; Google's APIs without addresses outside", body, place=region
    )
    body = {
        "name": f"{network}-dataflow",
        "network": f"projects/{cloud.project}/global/networks/{network}",
        "direction": "INGRESS",
        "allowed": [{"IPProtocol": "tcp", "ports": [DATAFLOW_PORTS]}],
        "sourceTags": ["dataflow"],
        "targetTags": ["dataflow"],
        "description": DESCRIPTION,
    }
    yield Resource("firewall", f"{network}-dataflow", "Dataflow's workers exchange data with each other", body)
    if not dataflow.public_ips:
        nat = {
            "name": f"{network}-nat",
            "natIpAllocateOption": "AUTO_ONLY",
            "sourceSubnetworkIpRangesToNat": "ALL_SUBNETWORKS_ALL_IP_RANGES",
        }
        body = {
            "name": f"{network}-router",
            "network": f"projects/{cloud.project}/global/networks/{network}",
            "nats": [nat],
            "description": DESCRIPTION,
        }
        cost = "Cloud NAT: an hourly fee per machine that uses it, an address, and traffic by the GB"
        yield Resource(
            "router", f"{network}-router", "machines without addresses reach the internet", body, cost, region
        )


def _extras(config: RunConfig) -> Iterator[Resource]:
    if amount := config.project.monthly_budget:
        title = f"shardline {config.cloud.project}"
        body: dict[str, Any] = {
            "displayName": title,
            "amount": {"specifiedAmount": {"units": str(amount)}},
            "thresholdRules": [{"thresholdPercent": part} for part in (0.5, 0.9, 1.0)],
        }
        yield Resource("budget", title, "mail at 50, 90 and 100 %; it stops nothing", body)
    if config.project.tensorboard:
        body = {"displayName": "shardline", "labels": LABELS, "description": DESCRIPTION}
        cost = "storage of what is written, by the GB and month"
        yield Resource("tensorboard", "shardline", "curves of runs in the console", body, cost, config.cloud.region)


def _grants(config: RunConfig, bucket: str) -> Iterator[Grant]:
    runner, build = config.cloud.service_account, config.project.build_account
    repositories = [resource.name for resource in _repositories(config)]
    principals: list[tuple[str, tuple[Role, ...]]] = [(f"serviceAccount:{runner}", RUNNER)]
    if build:
        principals.append((f"serviceAccount:{build}", BUILD))
    principals += [(member, USER) for member in dict.fromkeys(config.project.users)]
    places: dict[Scope, list[str]] = {
        "project": [config.cloud.project],
        "bucket": [bucket],
        "repository": repositories,
        "runner": [runner],
        "build account": [build] if build else [],
    }
    for member, roles in principals:
        for role in roles:
            for place in places[role.scope]:
                yield Grant(role.scope, place, role.name, member, role.reason)
