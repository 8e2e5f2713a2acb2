"""Permissions of methods, tokens of service accounts, and policies that decide."""

from pathlib import Path

import pytest

from rehearsal.doors.access import Access, principal_of, token_of
from rehearsal.doors.errors import ServiceError
from rehearsal.doors.services import methods
from rehearsal.projects.permissions import FREE, METHODS, Permissions
from rehearsal.projects.state import ProjectState

PROJECT = "acme-vision"
RUNNER = f"runner@{PROJECT}.iam.gserviceaccount.com"
ROLES = {
    "roles/aiplatform.user": frozenset({"aiplatform.customJobs.create"}),
    "roles/storage.objectViewer": frozenset({"storage.objects.get", "storage.objects.list"}),
    "roles/iam.serviceAccountUser": frozenset({"iam.serviceAccounts.actAs"}),
}


class Cloud:
    """A project whose policies grant what a test wants."""

    def __init__(self) -> None:
        self.state = ProjectState(PROJECT, "1", roles=ROLES)
        self.permissions = Permissions({PROJECT: self.state})

    def grant(self, place: str, role: str) -> None:
        self.state.policy(place).bindings.append({"role": role, "members": [f"serviceAccount:{RUNNER}"]})


def test_every_method_that_is_served_has_a_permission() -> None:
    served = {f"{method.service.rsplit('.', 1)[1]}.{method.name}" for _, method in methods()}
    assert served <= METHODS.keys() | FREE


def test_tokens_are_of_accounts(tmp_path: Path) -> None:
    access = Access(tmp_path, project=PROJECT)
    token = token_of(access.token, RUNNER)
    assert principal_of(token) == RUNNER
    for credential, principal in ((token, RUNNER), (access.token, "")):
        assert access.check({"authorization": f"Bearer {credential}", "host": "127.0.0.1:1"}) == principal
    for credential in (f"other{token}", f"{access.token}~zz"):
        with pytest.raises(ServiceError) as caught:
            access.check({"authorization": f"Bearer {credential}", "host": "127.0.0.1:1"})
        assert caught.value.code == "UNAUTHENTICATED"


def test_a_method_needs_a_role_on_the_project_and_one_on_the_account_that_its_job_acts_as() -> None:
    from google.cloud.aiplatform_v1 import types

    cloud = Cloud()
    job = types.CustomJob({"job_spec": {"service_account": RUNNER}})
    request = types.CreateCustomJobRequest(custom_job=job)

    def create(principal: str = RUNNER) -> None:
        cloud.permissions.check_method(principal, "JobService.CreateCustomJob", "projects/1/locations/r", request)

    create("")
    with pytest.raises(
        ServiceError, match=r"Permission 'aiplatform.customJobs.create' denied on .*projects/1"
    ) as caught:
        create()
    assert caught.value.details()[0]["reason"] == "IAM_PERMISSION_DENIED"
    cloud.grant(f"projects/{PROJECT}", "roles/aiplatform.user")
    with pytest.raises(ServiceError, match=r"Permission 'iam.serviceAccounts.actAs' denied"):
        create()
    cloud.grant(f"projects/{PROJECT}/serviceAccounts/{RUNNER}", "roles/iam.serviceAccountUser")
    create()
    cloud.state.roles = None
    cloud.permissions.check_method(RUNNER, "JobsV1Beta3.CreateJob", "", None)


@pytest.mark.parametrize(
    ("method", "path", "permission"),
    [
        ("GET", "/storage/v1/b/line/o", ""),
        ("GET", "/storage/v1/b/line/o/a%2Fb", ""),
        ("GET", "/download/storage/v1/b/line/o/a", ""),
        ("GET", "/storage/v1/b/other/o/a", "storage.objects.get"),
        ("GET", "/storage/v1/b/line", "storage.buckets.get"),
        ("POST", "/upload/storage/v1/b/line/o", "storage.objects.create"),
        ("PUT", "/upload/storage/v1/b/line/o", "storage.objects.create"),
        ("POST", "/storage/v1/b/line/o/a/rewriteTo/b/line/o/b", "storage.objects.create"),
        ("DELETE", "/storage/v1/b/line/o/a", "storage.objects.delete"),
    ],
)
def test_requests_of_storage_need_a_role_on_their_bucket(method: str, path: str, permission: str) -> None:
    cloud = Cloud()
    cloud.grant("buckets/line", "roles/storage.objectViewer")
    if permission:
        with pytest.raises(ServiceError, match=f"Permission '{permission}' denied"):
            cloud.permissions.check_storage(RUNNER, method, path)
    else:
        cloud.permissions.check_storage(RUNNER, method, path)
