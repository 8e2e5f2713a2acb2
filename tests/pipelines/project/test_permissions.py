"""Roles and their permissions: what a line asks for is declared, and a missing role is named."""

from typing import Any

import pytest
from google.oauth2.credentials import Credentials

from contracts.errors import ConfigError
from pipelines.google import explained
from pipelines.project.apply import apply
from pipelines.project.client import Client
from pipelines.project.declaration import declare
from pipelines.project.inspect import survey
from pipelines.project.kinds import find
from pipelines.project.permissions import PERMISSIONS, find_roles
from pipelines.project.roles import BUILD, RUNNER, USER
from rehearsal.doors.access import token_of
from rehearsal.doors.services import methods
from rehearsal.projects.permissions import FREE, METHODS
from tests.pipelines.project.cloud import BUCKET, PROJECT, EmptyCloud
from tests.pipelines.project.conftest import RUNNER as ACCOUNT
from tests.pipelines.project.conftest import configure


def test_declared_roles_have_permissions_and_they_cover_every_method() -> None:
    assert {role.name for role in (*RUNNER, *BUILD, *USER)} == PERMISSIONS.keys()
    names = {f"{method.service.rsplit('.', 1)[1]}.{method.name}" for _, method in methods()} - FREE
    for name in names:
        assert find_roles(METHODS[name]), name


def _ask(cloud: EmptyCloud, method: str, url: str, **body: Any) -> None:
    import requests

    with requests.Session() as session, explained(url, project=PROJECT):
        session.headers["Authorization"] = f"Bearer {token_of(cloud.cloud.vertex.access.token, ACCOUNT)}"
        session.request(method, url, timeout=60, **body).raise_for_status()


@pytest.mark.parametrize(
    ("role", "place", "method", "url", "permission"),
    [
        (
            "roles/dataflow.admin",
            f"projects/{PROJECT}",
            "GET",
            f"https://dataflow.googleapis.com/v1b3/projects/{PROJECT}/locations/us-central1/jobs",
            "dataflow.jobs.list",
        ),
        (
            "roles/storage.objectUser",
            f"buckets/{BUCKET}",
            "DELETE",
            f"https://storage.googleapis.com/storage/v1/b/{BUCKET}/o/shardline-project.json",
            "storage.objects.delete",
        ),
    ],
    ids=["dataflow", "storage"],
)
def test_with_a_role_taken_away_the_permission_and_the_declared_role_are_named(
    cloud: EmptyCloud, role: str, place: str, method: str, url: str, permission: str
) -> None:
    state = cloud.state
    with Client(PROJECT, "us-central1") as client:
        apply(client, survey(client, declare(configure())), lambda _: None)
    state.roles = PERMISSIONS
    policy = state.policies[place]
    bindings = policy.bindings
    policy.bindings = [binding for binding in bindings if binding["role"] != role]
    with pytest.raises(ConfigError) as caught:
        _ask(cloud, method, url)
    text = str(caught.value)
    assert f"permission {permission} is missing" in text
    assert f"{role} on the {'bucket' if 'buckets' in place else 'project'}, for cloud.service_account" in text
    assert "`project apply` grants it" in text
    policy.bindings = bindings
    _ask(cloud, method, url)


def test_a_bucket_that_may_not_be_looked_at_is_named_as_somebody_elses(cloud: EmptyCloud) -> None:
    """No policy has this account: Google answers an owner likewise whose bucket's name is another's."""
    cloud.state.roles = PERMISSIONS
    bucket = next(each for each in declare(configure()).resources if each.kind == "bucket")
    with Client(PROJECT, "us-central1") as client:
        client._found_credentials = Credentials(token_of(cloud.cloud.vertex.access.token, ACCOUNT))
        with pytest.raises(ConfigError, match=f"bucket {BUCKET} is somebody else's") as caught:
            find(client, bucket)
    assert "storage.buckets.get" in caught.value.given and "--bucket" in caught.value.todo
