"""Strict state of the APIs that set up a project, asked as the HTTP door asks them."""

import io
import json
from typing import Any

import pytest

from rehearsal.doors.errors import ServiceError
from rehearsal.doors.http_messages import Request
from rehearsal.projects.apis import ProjectApis
from rehearsal.projects.methods import METHODS
from rehearsal.projects.routes import DOCUMENTS, find_method, routes_of
from rehearsal.projects.state import Lag, ProjectState

PROJECT, NUMBER = "acme-vision", "123456789012"
REPOSITORIES = f"/v1/projects/{PROJECT}/locations/us-central1/repositories"


class Apis:
    def __init__(self, **changes: Any) -> None:
        self.state = ProjectState(PROJECT, NUMBER, **changes)
        self._apis = ProjectApis({PROJECT: self.state}, lambda bucket: bucket == "there")

    def ask(self, host: str, method: str, path: str, body: object = None, **query: str) -> Any:
        content = io.BytesIO(b"" if body is None else json.dumps(body).encode())
        values = {key: [value] for key, value in query.items()}
        answer = self._apis(Request(method, path, query, {"host": host}, content, values=values))
        if answer is None:
            return None
        assert isinstance(answer.body, bytes)
        return json.loads(answer.body)


@pytest.fixture
def apis() -> Apis:
    return Apis(empty=True)


def enable(apis: Apis, *names: str) -> Any:
    return apis.ask(
        "serviceusage.googleapis.com", "POST", f"/v1/projects/{PROJECT}/services:batchEnable", {"serviceIds": names}
    )


def test_every_method_is_one_of_googles_documents() -> None:
    known = frozenset(METHODS)
    assert {route.id for host in DOCUMENTS for route in routes_of(host, known)} == known
    found = find_method("artifactregistry.googleapis.com", "GET", f"{REPOSITORIES}/shardline:getIamPolicy", known)
    assert found == "artifactregistry.projects.locations.repositories.getIamPolicy"


def test_an_api_that_is_not_enabled_refuses_by_its_name(apis: Apis) -> None:
    for host in ("artifactregistry.googleapis.com", "us-central1-aiplatform.googleapis.com", "dataflow.googleapis.com"):
        with pytest.raises(ServiceError, match="has not been used in project") as caught:
            apis.ask(host, "GET", "/v1/anything")
        assert caught.value.code == "PERMISSION_DENIED"
        assert caught.value.details()[0]["reason"] == "SERVICE_DISABLED"
    # Others' requests, once it is: not ours to answer.
    assert Apis().ask("us-central1-aiplatform.googleapis.com", "GET", "/v1/anything") is None


def test_a_new_api_refuses_for_a_while(apis: Apis) -> None:
    apis.state.lag.new_api = 2
    assert not enable(apis, "artifactregistry.googleapis.com")["done"]
    for _ in range(2):
        with pytest.raises(ServiceError, match="wait a few minutes"):
            apis.ask("artifactregistry.googleapis.com", "GET", f"{REPOSITORIES}/shardline")
    with pytest.raises(ServiceError, match="There is no resource"):
        apis.ask("artifactregistry.googleapis.com", "GET", f"{REPOSITORIES}/shardline")


def test_a_project_without_billing_enables_nothing(apis: Apis) -> None:
    apis.state.billing_account = ""
    with pytest.raises(ServiceError, match="Billing account"):
        enable(apis, "compute.googleapis.com")
    with pytest.raises(ServiceError, match="from 1 to 20"):
        enable(apis, *(f"a{number}.googleapis.com" for number in range(21)))


def test_what_exists_is_not_made_twice_and_an_operation_takes_looks() -> None:
    apis = Apis(lag=Lag(operation=1))
    host = "artifactregistry.googleapis.com"
    operation = apis.ask(host, "POST", REPOSITORIES, {"format": "DOCKER"}, repositoryId="shardline")
    path = f"/v1/{operation['name']}"
    assert [apis.ask(host, "GET", path)["done"] for _ in range(2)] == [False, True]
    with pytest.raises(ServiceError, match="already exists") as caught:
        apis.ask(host, "POST", REPOSITORIES, {"format": "DOCKER"}, repositoryId="shardline")
    assert caught.value.http_status == 409


def test_a_policy_is_written_with_the_etag_that_was_read() -> None:
    apis = Apis(lag=Lag(new_account=1))
    host, path = "cloudresourcemanager.googleapis.com", f"/v3/projects/{NUMBER}"
    account = f"runner-1@{PROJECT}.iam.gserviceaccount.com"
    binding = {"role": "roles/logging.logWriter", "members": [f"serviceAccount:{account}"]}

    def write(policy: dict[str, Any]) -> Any:
        return apis.ask(host, "POST", f"{path}:setIamPolicy", {"policy": policy})

    read = apis.ask(host, "POST", f"{path}:getIamPolicy", {})
    with pytest.raises(ServiceError, match="without etag"):
        write({"bindings": [binding]})
    with pytest.raises(ServiceError, match="does not exist"):
        write({"bindings": [binding], "etag": read["etag"]})
    body = {"accountId": "runner-1", "serviceAccount": {}}
    apis.ask("iam.googleapis.com", "POST", f"/v1/projects/{PROJECT}/serviceAccounts", body)
    with pytest.raises(ServiceError, match="does not exist"):
        write({"bindings": [binding], "etag": read["etag"]})
    assert write({"bindings": [binding], "etag": read["etag"]})["bindings"] == [binding]
    with pytest.raises(ServiceError, match="concurrent policy changes") as caught:
        write({"bindings": [], "etag": read["etag"]})
    assert caught.value.http_status == 409


@pytest.mark.parametrize("account", ["line", "Runner-1", "a" * 31])
def test_names_of_accounts_have_googles_rules(account: str) -> None:
    with pytest.raises(ServiceError, match="account ID"):
        Apis().ask("iam.googleapis.com", "POST", f"/v1/projects/{PROJECT}/serviceAccounts", {"accountId": account})


def test_a_network_in_use_stays_and_a_bucket_has_a_policy() -> None:
    apis = Apis()
    host, path = "compute.googleapis.com", f"/compute/v1/projects/{PROJECT}"
    network = f"projects/{PROJECT}/global/networks/line"
    with pytest.raises(ServiceError, match="There is no resource"):
        apis.ask(host, "POST", f"{path}/regions/us-central1/subnetworks", {"name": "line", "network": network})
    apis.ask(host, "POST", f"{path}/global/networks", {"name": "line"})
    apis.ask(host, "POST", f"{path}/regions/us-central1/subnetworks", {"name": "line", "network": network})
    with pytest.raises(ServiceError, match="already being used by"):
        apis.ask(host, "DELETE", f"{path}/global/networks/line")
    assert apis.ask("storage.googleapis.com", "GET", "/storage/v1/b/there/iam")["bindings"] == []
    with pytest.raises(ServiceError, match="does not exist"):
        apis.ask("storage.googleapis.com", "GET", "/storage/v1/b/elsewhere/iam")
    assert apis.ask("storage.googleapis.com", "GET", "/storage/v1/b/there/o") is None
