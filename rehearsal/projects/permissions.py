"""Who may call what: the permission of each method, by the project's policies.

Permissions of methods: https://docs.cloud.google.com/vertex-ai/docs/general/iam-permissions,
https://docs.cloud.google.com/dataflow/docs/concepts/access-control, https://docs.cloud.google.com/logging/docs/access-control,
https://docs.cloud.google.com/storage/docs/access-control/iam-json,
https://docs.cloud.google.com/docs/quotas/api-access and https://docs.cloud.google.com/iam/docs/service-accounts-actas.

Who submits is the project's owner. Service accounts have the roles that the policies of the project, the bucket and the
account grant them. Not checked: operations, downloads of images.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any
from urllib.parse import unquote

from rehearsal.doors.errors import ServiceError
from rehearsal.projects.state import ProjectState


def _named(service: str, kind: str, names: str, **others: str) -> dict[str, str]:
    """Return the permissions of the five usual methods of one kind, and of others: METHOD=PERMISSION."""
    usual = {
        f"{service}.Create{kind}": "create",
        f"{service}.Get{kind}": "get",
        f"{service}.List{kind}s": "list",
        f"{service}.Update{kind}": "update",
        f"{service}.Delete{kind}": "delete",
    }
    verbs = usual | {f"{service}.{method}": verb for method, verb in others.items()}
    return {method: f"aiplatform.{names}.{verb}" for method, verb in verbs.items()}


_METADATA = "MetadataService"
METHODS: dict[str, str] = {
    **_named("PipelineService", "PipelineJob", "pipelineJobs", CancelPipelineJob="cancel"),
    **_named("JobService", "CustomJob", "customJobs", CancelCustomJob="cancel"),
    **_named("ScheduleService", "Schedule", "schedules", PauseSchedule="update", ResumeSchedule="update"),
    **_named(
        "ModelService",
        "Model",
        "models",
        UploadModel="upload",
        ListModelVersions="list",
        MergeVersionAliases="update",
        DeleteModelVersion="delete",
    ),
    **_named(_METADATA, "MetadataStore", "metadataStores"),
    **_named(
        _METADATA,
        "Context",
        "contexts",
        AddContextChildren="addContextChildren",
        AddContextArtifactsAndExecutions="addContextArtifactsAndExecutions",
        QueryContextLineageSubgraph="queryContextLineageSubgraph",
    ),
    **_named(_METADATA, "Artifact", "artifacts"),
    **_named(_METADATA, "Execution", "executions"),
    "LoggingServiceV2.ListLogEntries": "logging.logEntries.list",
    "JobsV1Beta3.CreateJob": "dataflow.jobs.create",
    "JobsV1Beta3.GetJob": "dataflow.jobs.get",
    "JobsV1Beta3.UpdateJob": "dataflow.jobs.updateContents",
    "JobsV1Beta3.ListJobs": "dataflow.jobs.list",
    "MessagesV1Beta3.ListJobMessages": "dataflow.messages.list",
    "MetricsV1Beta3.GetJobMetrics": "dataflow.metrics.get",
    "Projects.GetProject": "resourcemanager.projects.get",
    "CloudQuotas.GetQuotaInfo": "cloudquotas.quotas.get",
    "CloudQuotas.ListQuotaInfos": "cloudquotas.quotas.get",
}
# Operations are of whoever began them.
FREE = frozenset({"Operations.GetOperation", "Operations.WaitOperation", "Operations.CancelOperation"})
_BUCKET = re.compile(r"/(?:download/|upload/|resumable/upload/)?storage/v1/b/(?P<bucket>[^/]+)(?P<rest>/o(?:/.*)?)?")
_OBJECT_VERBS = {"GET": "get", "DELETE": "delete", "PATCH": "update", "PUT": "update", "POST": "create"}
_BUCKET_VERBS = {"GET": "get", "DELETE": "delete", "PATCH": "update", "PUT": "update"}


class Permissions:
    """The check of every request of a service account.

    Args:
        states: Of each project; one without roles permits everything.
    """

    def __init__(self, states: Mapping[str, ProjectState]) -> None:
        self._states = states

    def check_method(self, principal: str, method: str, resource: str, request: Any) -> None:
        """Refuse a method (SERVICE.METHOD) that a service account may not call, or a job as another account.

        Raises:
            ServiceError: PERMISSION_DENIED.
        """
        if not principal or method in FREE:
            return
        self._check(principal, METHODS[method], resource, ())
        for account in _accounts(request):
            self._check(principal, "iam.serviceAccounts.actAs", account, (f"serviceAccounts/{account}",))

    def check_storage(self, principal: str, method: str, path: str) -> None:
        """Refuse a request of Cloud Storage's JSON API that a service account may not send.

        Raises:
            ServiceError: PERMISSION_DENIED.
        """
        match = _BUCKET.fullmatch(path)
        if not principal or match is None:
            return
        bucket, rest = unquote(match["bucket"]), match["rest"]
        if rest is None:
            permission = f"storage.buckets.{_BUCKET_VERBS.get(method, 'get')}"
        elif "/upload/storage/" in path:
            permission = "storage.objects.create"
        elif rest == "/o" and method == "GET":
            permission = "storage.objects.list"
        else:
            permission = f"storage.objects.{_OBJECT_VERBS.get(method, 'get')}"
        self._check(principal, permission, f"projects/_/buckets/{bucket}", (f"buckets/{bucket}",))

    def _check(self, principal: str, permission: str, resource: str, places: Iterable[str]) -> None:
        for state in self._states.values():
            if not state.permits(principal, permission, places):
                resource = resource or f"projects/{state.project}"
                text = f"{principal}: Permission '{permission}' denied on resource '{resource}' (or it may not exist)."
                info = ("IAM_PERMISSION_DENIED", {"permission": permission, "resource": resource})
                raise ServiceError("PERMISSION_DENIED", text, info=info)


def _accounts(request: Any) -> list[str]:
    """Return the accounts that a job to be created acts as."""
    job = getattr(request, "custom_job", None)
    if job is not None:
        return [job.job_spec.service_account] if job.job_spec.service_account else []
    job = getattr(request, "pipeline_job", None)
    if job is not None:
        return [job.service_account] if job.service_account else []
    account = getattr(getattr(getattr(request, "job", None), "environment", None), "service_account_email", "")
    return [account] if account and hasattr(request, "job") and not getattr(request, "job_id", "") else []
