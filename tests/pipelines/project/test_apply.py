"""plan, apply and destroy: Google's client against a local cloud with nothing in it."""

import copy
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner, Result

from contracts.config import RunConfig
from contracts.errors import ConfigError, TryAgain
from pipelines.cli import app
from pipelines.project import client as client_module
from pipelines.project.apply import apply
from pipelines.project.client import Client, Refused
from pipelines.project.declaration import declare
from pipelines.project.destroy import destroy, list_removal
from pipelines.project.inspect import survey
from pipelines.project.made import NAME, read_made, write_made
from rehearsal.gcs.write_rate import INTERVAL_S, WriteRate
from rehearsal.projects.state import ALWAYS_ENABLED, Lag, ProjectState
from tests.pipelines.project.cloud import BUCKET, PROJECT, EmptyCloud
from tests.pipelines.project.conftest import DOCUMENT, RUNNER, WHOLE, configure

REGION = "us-central1"
NETWORK = f"projects/{PROJECT}/global/networks/default"
OTHER = {"role": "roles/browser", "members": ["user:somebody-else@example.com"]}


class LastingClient(Client):
    """A client that keeps its services: building those of Compute Engine takes half a second."""

    def __exit__(self, *_: object) -> None:
        pass


SERVICES: dict[str, Any] = {}
# Those whose requests are answered without sockets, where hundreds of commands are played.
DIRECT: dict[str, Any] = {}


@pytest.fixture
def direct(cloud: EmptyCloud) -> None:
    DIRECT.update(cloud.direct_services())


@pytest.fixture(scope="module", autouse=True)
def _close() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        # Nothing is waited for here but looks and writes that are counted.
        patch.setattr(client_module, "_FIRST_PAUSE_S", 0.01)
        yield
    with Client(PROJECT, REGION, _services=SERVICES):
        pass


def open_client(**changes: Any) -> Client:
    return LastingClient(PROJECT, REGION, _services=SERVICES, **changes)


def make(config: RunConfig, client: Client | None = None) -> list[str]:
    said: list[str] = []
    with client or open_client() as opened:
        apply(opened, survey(opened, declare(config)), said.append)
    return said


def remove(config: RunConfig, client: Client | None = None) -> list[str]:
    said: list[str] = []
    with client or open_client() as client:
        found = survey(client, declare(config))
        destroy(client, found, list_removal(client, found), said.append)
    return said


def is_complete(config: RunConfig) -> bool:
    with open_client() as client:
        return survey(client, declare(config)).is_complete


def snapshot(state: ProjectState) -> Any:
    """What a project has, without what differs by the moment."""
    resources = {
        name: {key: value for key, value in resource.items() if key != "name"}
        for name, resource in state.resources.items()
        if "/budgets/" not in name and "/tensorboards/" not in name
    }
    policies = {
        name: sorted((binding["role"], sorted(binding["members"])) for binding in policy.bindings)
        for name, policy in state.policies.items()
        if policy.bindings
    }
    return copy.deepcopy((resources, policies, sorted(state.enabled)))


def test_an_empty_project_is_filled_and_a_second_apply_finds_nothing(cloud: EmptyCloud, whole: RunConfig) -> None:
    cloud.empty(Lag(new_api=1, new_account=1, conflicts=1, operation=1))
    waited: list[str] = []
    said = make(whole, open_client(say=waited.append))
    declaration = declare(whole)
    assert said[0].startswith("enables ")
    for item in (*declaration.resources, *declaration.grants):
        assert f"makes {item.key}" in said
    # A new API, an operation and a new account were waited for.
    for what in ("the policy of", "repository shardline", f"serviceAccount:{RUNNER}, "):
        assert any(what in line for line in waited), what
    assert is_complete(whole)
    before = snapshot(cloud.state)
    assert make(whole) == []
    assert snapshot(cloud.state) == before
    # The other writer's binding, which came in between, is still there.
    assert OTHER in cloud.state.policies[f"projects/{PROJECT}"].bindings
    assert cloud.state.enabled.keys() | ALWAYS_ENABLED == set(declaration.apis)
    # What a run asks first, in containers that do not wait, answers.
    for api in ("aiplatform", "cloudbuild", "dataflow", "logging"):
        assert cloud.state.enabled[f"{api}.googleapis.com"] == 0, api


def test_destroy_leaves_nothing_but_apis_and_what_others_made(cloud: EmptyCloud, whole: RunConfig) -> None:
    cloud.empty(Lag(conflicts=1))
    make(whole)
    remove(whole)
    assert list(cloud.state.resources) == [NETWORK]
    assert cloud.buckets == []
    for policy in cloud.state.policies.values():
        assert policy.bindings in ([], [OTHER])
    assert cloud.state.enabled.keys() | ALWAYS_ENABLED == set(declare(whole).apis)
    assert remove(whole) == []


def test_what_was_there_before_is_used_and_never_destroyed(cloud: EmptyCloud, whole: RunConfig) -> None:
    state = cloud.state
    account = f"projects/{PROJECT}/serviceAccounts/{RUNNER}"
    state.resources[account] = {"name": account, "email": RUNNER}
    state.policy(f"projects/{PROJECT}").bindings.append(
        {"role": "roles/logging.logWriter", "members": [f"serviceAccount:{RUNNER}"]}
    )
    cloud.cloud.buckets.objects.create_bucket(BUCKET, {"location": "US-CENTRAL1", "labels": {"team": "vision"}})
    said = make(whole)
    assert not [line for line in said if f"account {RUNNER}" in line.partition(" on ")[0] and "grant" not in line]
    # Its own rules are another's, and stay.
    assert "lifecycle" not in cloud.cloud.buckets.objects.bucket(BUCKET).fields
    remove(whole)
    assert list(state.resources) == [account, NETWORK]
    assert cloud.buckets == [BUCKET]
    bindings = state.policies[f"projects/{PROJECT}"].bindings
    assert bindings == [{"role": "roles/logging.logWriter", "members": [f"serviceAccount:{RUNNER}"]}]


def test_a_bucket_with_data_stays(cloud: EmptyCloud, config: RunConfig) -> None:
    make(config)
    cloud.put("lines/digits/shards/manifest.json")
    with open_client() as client:
        found = survey(client, declare(config))
        removal = list_removal(client, found)
        assert removal.bucket is None
        assert any("it holds objects, such as lines/digits" in kept for kept in removal.kept)
        destroy(client, found, removal, lambda _: None)
    assert cloud.buckets == [BUCKET]
    assert is_complete(config) is False


class Killed(BaseException):
    """The process ends here."""


class MortalClient(LastingClient):
    """A client whose process is killed after one of its writes was answered, and before anything else."""

    left: int

    def read(self, api: str, method: str, *, write: bool = False, **arguments: Any) -> Any:
        answer = super().read(api, method, write=write, **arguments)
        self.left -= write
        if self.left == 0:
            raise Killed
        return answer


def kill_after(num_writes: int) -> Client:
    """Return a client that dies after so many writes.

    The project changes by writes alone, and `project` keeps nothing on this machine: so these are all the states
    in which a command that is killed at any of its requests, before or after its answer, can leave a project.
    """
    client = MortalClient(PROJECT, REGION, _services=DIRECT)
    client.left = num_writes
    return client


def direct_client() -> Client:
    return LastingClient(PROJECT, REGION, _services=DIRECT)


def test_killed_at_any_request_the_next_apply_goes_on(cloud: EmptyCloud, direct: None) -> None:
    config = configure("dataflow.network=line", "dataflow.public_ips=false")
    make(config, direct_client())
    wanted = snapshot(cloud.state)
    for number in range(1, 100):
        cloud.empty()
        try:
            make(config, kill_after(number))
        except Killed:
            make(config, direct_client())
            assert snapshot(cloud.state) == wanted
            assert make(config, direct_client()) == []
            remove(config, direct_client())
            assert (list(cloud.state.resources), cloud.buckets) == ([NETWORK], [])
        else:
            break
    assert number > 10


def test_killed_at_any_request_the_next_destroy_goes_on(cloud: EmptyCloud, config: RunConfig, direct: None) -> None:
    for number in range(1, 100):
        cloud.empty()
        make(config, direct_client())
        try:
            remove(config, kill_after(number))
        except Killed:
            remove(config, direct_client())
            assert (list(cloud.state.resources), cloud.buckets) == ([NETWORK], [])
            assert not any(policy.bindings for policy in cloud.state.policies.values())
        else:
            break
    assert number > 5


def test_a_connection_that_ends_at_a_write_leaves_nothing_unrecorded(cloud: EmptyCloud, config: RunConfig) -> None:
    # httplib2 sends a request again whose connection ended without an answer: 409 is the answer then.
    for number, answered in ((1, True), (2, False), (2, True), (3, True)):
        cloud.empty()
        with cloud.ending_connections(number, answered=answered) as ended:
            make(config)
        assert ended
        assert is_complete(config)
        remove(config)
        assert (list(cloud.state.resources), cloud.buckets) == ([NETWORK], []), number


def test_limits_end_a_wait(cloud: EmptyCloud, config: RunConfig) -> None:
    cloud.empty(Lag(new_account=10**6))
    with pytest.raises(TryAgain, match=r"is not known after 0.2 s \(the last answer: Service account"):
        make(config, open_client(limit_s=0.2))
    cloud.empty(Lag(conflicts=10**6))
    with pytest.raises(TryAgain, match="changed by others 10 times"):
        make(config)


def test_a_project_without_its_default_network_is_told_before_anything_is_made(
    cloud: EmptyCloud, config: RunConfig
) -> None:
    cloud.empty().has_default_network = False
    with pytest.raises(ConfigError, match="there is no network default"):
        make(config)
    assert (cloud.state.resources, cloud.buckets) == ({}, [])


def test_what_is_ours_is_set_again(cloud: EmptyCloud, config: RunConfig) -> None:
    make(config)
    cloud.cloud.buckets.objects.update_bucket(BUCKET, {"lifecycle": None})
    assert make(config) == [f"sets lifecycle of bucket {BUCKET}"]
    assert is_complete(config)


def test_a_budget_is_changed_in_place(cloud: EmptyCloud) -> None:
    make(configure("project.monthly_budget=100"))
    assert make(configure("project.monthly_budget=200")) == [f"sets amount of budget shardline {PROJECT}"]
    (budget,) = (resource for name, resource in cloud.state.resources.items() if "/budgets/" in name)
    assert budget["amount"]["specifiedAmount"]["units"] == "200"
    cloud.empty().billing_account = ""
    with pytest.raises(Refused, match="Billing account"):
        make(configure("project.monthly_budget=200"))


def test_two_commands_do_not_overwrite_each_others_record(cloud: EmptyCloud, config: RunConfig) -> None:
    make(config)
    with open_client() as client:
        made = read_made(client, BUCKET)
        write_made(client, BUCKET, made, made.keys | {"another"})
        with pytest.raises(TryAgain, match=NAME):
            write_made(client, BUCKET, made, made.keys)
        # What another configuration has made keeps the record, and so the bucket.
        removal = list_removal(client, survey(client, declare(config)))
    assert removal.bucket is None
    assert removal.left == {"another"}


def test_a_record_that_was_just_written_is_written_again_after_a_second(cloud: EmptyCloud, config: RunConfig) -> None:
    make(config)
    cloud.cloud.buckets.objects.write_rate = WriteRate(INTERVAL_S)
    waited: list[str] = []
    with open_client(say=waited.append) as client:
        made = write_made(client, BUCKET, read_made(client, BUCKET), frozenset({"one"}))
        write_made(client, BUCKET, made, frozenset({"two"}))
        assert read_made(client, BUCKET).keys == {"two"}
    assert waited == [f"waiting for gs://{BUCKET}/{NAME}"]


def shardline(path: Path, command: str, *options: str, overrides: tuple[str, ...] = ()) -> Result:
    return CliRunner().invoke(app, ["project", command, str(path), *overrides, *options])


def test_the_commands(cloud: EmptyCloud, tmp_path: Path) -> None:
    path = tmp_path / "line.yaml"
    path.write_text(yaml.safe_dump(DOCUMENT | {"resources": {"machine": {"type": "n1-standard-4"}}}))
    missing = shardline(path, "plan", overrides=WHOLE)
    assert missing.exit_code == 1
    assert f"missing  bucket {BUCKET}" in missing.stdout
    assert "costs: Cloud NAT" in missing.stdout
    assert "quota    aiplatform.googleapis.com/custom_model_training" in missing.stdout
    unasked = shardline(path, "apply")
    assert unasked.exit_code == 2
    assert "--yes" in unasked.stderr
    assert cloud.buckets == []
    assert shardline(path, "apply", "--yes").exit_code == 0
    assert shardline(path, "apply", "--yes").stdout == "unchanged\n"
    found = json.loads(shardline(path, "plan", "-o", "json").stdout)
    assert found["complete"]
    assert {item["state"] for item in found["items"]} == {"there"}
    unasked = shardline(path, "destroy")
    assert unasked.exit_code == 2
    assert f"removes  bucket {BUCKET}" in unasked.stdout
    assert cloud.buckets == [BUCKET]
    assert shardline(path, "destroy", "--yes").exit_code == 0
    assert cloud.buckets == []
    # As a process of its own, by the key file.
    command = [sys.executable, "-c", "from pipelines.cli import main; main()", "project", "plan", str(path)]
    environment = {**os.environ, **cloud.cloud.environment}
    planned = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    assert (planned.returncode, planned.stderr) == (1, "")
    refused = shardline(path, "plan", overrides=("cloud.region=us-central1-a",))
    assert (refused.exit_code, "cloud.region = us-central1-a" in refused.stderr) == (2, True)
