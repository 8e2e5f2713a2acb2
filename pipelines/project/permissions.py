"""Permissions of the declared roles that a line's requests need; what else the roles hold is not listed.

One page per service, with the permissions of each of its roles: https://docs.cloud.google.com/iam/docs/roles-permissions/SERVICE
(aiplatform, dataflow, storage, logging, artifactregistry, iam, cloudbuild, cloudquotas, serviceusage).
"""

from __future__ import annotations

import re

from pipelines.project.roles import BUILD, RUNNER, USER, Role

_VERBS = ("create", "get", "list", "update", "delete")
_IMAGES = ("artifactregistry.repositories.get", "artifactregistry.repositories.downloadArtifacts")
_DATAFLOW_READ = ("dataflow.jobs.get", "dataflow.jobs.list", "dataflow.messages.list", "dataflow.metrics.get")
_DATAFLOW_CHANGE = ("dataflow.jobs.create", "dataflow.jobs.cancel", "dataflow.jobs.updateContents")
# Role -> permissions. Roles of Dataflow hold some of Cloud Storage too, on all buckets of the project.
PERMISSIONS: dict[str, frozenset[str]] = {
    "roles/aiplatform.user": frozenset(
        [
            f"aiplatform.{kind}.{verb}"
            for kind in ("customJobs", "pipelineJobs", "schedules", "models")
            for verb in _VERBS
        ]
        + [f"aiplatform.{kind}.{verb}" for kind in ("contexts", "artifacts", "executions") for verb in _VERBS]
        + [f"aiplatform.{kind}.cancel" for kind in ("customJobs", "pipelineJobs")]
        + ["aiplatform.models.upload", "aiplatform.contexts.addContextArtifactsAndExecutions"]
        + ["aiplatform.contexts.addContextChildren", "aiplatform.contexts.queryContextLineageSubgraph"]
        + ["aiplatform.metadataStores.create", "aiplatform.metadataStores.get", "resourcemanager.projects.get"]
    ),
    "roles/dataflow.admin": frozenset(
        [*_DATAFLOW_CHANGE, *_DATAFLOW_READ, "resourcemanager.projects.get", "storage.buckets.get"]
        + [f"storage.objects.{verb}" for verb in ("create", "get", "list")]
    ),
    "roles/dataflow.developer": frozenset([*_DATAFLOW_CHANGE, *_DATAFLOW_READ, "resourcemanager.projects.get"]),
    "roles/dataflow.worker": frozenset(
        ["storage.buckets.get", "storage.objects.create", "storage.objects.get", "logging.logEntries.create"]
    ),
    "roles/logging.logWriter": frozenset(["logging.logEntries.create"]),
    "roles/logging.viewer": frozenset(["logging.logEntries.list", "resourcemanager.projects.get"]),
    "roles/storage.objectUser": frozenset(f"storage.objects.{verb}" for verb in _VERBS),
    "roles/storage.objectViewer": frozenset(["storage.objects.get", "storage.objects.list"]),
    "roles/storage.legacyBucketReader": frozenset(["storage.buckets.get", "storage.objects.list"]),
    "roles/artifactregistry.reader": frozenset(_IMAGES),
    "roles/artifactregistry.writer": frozenset([*_IMAGES, "artifactregistry.repositories.uploadArtifacts"]),
    "roles/iam.serviceAccountUser": frozenset(["iam.serviceAccounts.actAs", "iam.serviceAccounts.get"]),
    "roles/cloudbuild.builds.editor": frozenset(f"cloudbuild.builds.{verb}" for verb in ("create", "get", "list")),
    "roles/cloudquotas.viewer": frozenset(["cloudquotas.quotas.get"]),
    "roles/serviceusage.serviceUsageConsumer": frozenset(["serviceusage.services.use"]),
}


_NAMED = re.compile(
    r"[Pp]ermission '?(?P<denied>[a-zA-Z]+\.[a-zA-Z.]+[a-zA-Z])'?|"
    r"does not have (?P<lacked>(?:\w+\.){2,}\w+) (?:access|permission)"
)


def find_permission(text: str) -> str:
    """Return the first permission that a service's refusal names; empty: it names none."""
    if (found := _NAMED.search(text)) is not None:
        return found["denied"] or found["lacked"]
    return "iam.serviceAccounts.actAs" if re.search(r"permission to act as", text, re.IGNORECASE) else ""


def describe_roles(permission: str) -> str:
    """Return the declared roles that hold a permission, on what and for whom; empty: none does."""
    return "; ".join(f"{role.name} on the {role.scope}, for {who}" for role, who in find_roles(permission))


def find_roles(permission: str) -> list[tuple[Role, str]]:
    """Return the declared roles that hold a permission, each with its principals: the narrowest resource first."""
    declared = ((RUNNER, "cloud.service_account"), (USER, "project.users"), (BUILD, "project.build_account"))
    found = [(role, who) for roles, who in declared for role in roles if permission in PERMISSIONS[role.name]]
    return sorted(found, key=lambda pair: pair[0].scope == "project")
