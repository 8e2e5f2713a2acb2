"""Attacks on a running local cloud: nobody without its token, and no web page, gets anything done at any port."""

import http.client
import json
import socket
import stat
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.auth import crypt, jwt
from google.cloud import aiplatform_v1 as gapic

from rehearsal.cloud import LocalCloud
from rehearsal.errors import ServiceError
from rehearsal.gcs import BucketServer
from rehearsal.servers.access import TOKEN_URI, Access

PARENT = "projects/acme/locations/us-central1"
GRANT = "urn:ietf:params:oauth:grant-type:jwt-bearer"


@pytest.fixture(scope="module")
def cloud(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCloud]:
    folder = tmp_path_factory.mktemp("attacked")
    with LocalCloud(folder / "cloud", projects={"acme": "123456789012"}, buckets=["line"]) as found:
        yield found


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """A custom job that leaves a file when it is executed."""
    proof = tmp_path_factory.mktemp("proof") / "executed"
    container = {"image_uri": "a.io/p/i@sha256:" + "0" * 64, "command": ["touch", str(proof)]}
    pool = {"replica_count": 1, "machine_spec": {"machine_type": "n1-standard-4"}, "container_spec": container}
    return {"display_name": "an attack", "job_spec": {"worker_pool_specs": [pool]}}


def port_of(endpoint: str) -> int:
    return int(endpoint.rpartition(":")[2])


def ask(port: int, verb: str, path: str, headers: dict[str, str], body: bytes = b"") -> int:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    try:
        connection.putrequest(verb, path, skip_host=True)
        for name, value in ({"Host": f"127.0.0.1:{port}", "Content-Length": str(len(body))} | headers).items():
            connection.putheader(name, value)
        connection.endheaders(body)
        return connection.getresponse().status
    finally:
        connection.close()


# Headers, TOKEN in them standing for the rehearsal's, and the status of the refusal.
BEARER = {"Authorization": "Bearer TOKEN"}
ATTACKS: dict[str, tuple[dict[str, str], int]] = {
    "no token": ({}, 401),
    "wrong token": ({"Authorization": "Bearer ya29.guessed"}, 401),
    "Google's host and no token": ({"Host": "us-central1-aiplatform.googleapis.com"}, 401),
    "another host": ({**BEARER, "Host": "evil.example"}, 403),
    "a host that ends as Google's": ({**BEARER, "Host": "googleapis.com.evil.example"}, 403),
    "a web page": ({**BEARER, "Origin": "https://evil.example"}, 403),
}


def attack_with(name: str, access: Access) -> tuple[dict[str, str], int]:
    headers, status = ATTACKS[name]
    return {key: value.replace("TOKEN", access.token) for key, value in headers.items()}, status


def test_rest_executes_nothing(cloud: LocalCloud, job: dict[str, Any]) -> None:
    port, path = port_of(cloud.vertex.endpoint), f"/v1/{PARENT}/customJobs"
    body = json.dumps(gapic.CustomJob.to_dict(gapic.CustomJob(job))).encode()
    for attack in ATTACKS:
        headers, status = attack_with(attack, cloud.vertex.access)
        before = len(cloud.vertex.access_log.entries())
        assert ask(port, "POST", path, headers, body) == status, attack
        assert ask(port, "GET", path, headers) == status, attack
        refused = [entry.status for entry in cloud.vertex.access_log.entries()[before:]]
        assert refused == [{401: "UNAUTHENTICATED", 403: "PERMISSION_DENIED"}[status]] * 2
    assert not list(cloud.store.list("projects/", gapic.CustomJob))
    assert not Path(job["job_spec"]["worker_pool_specs"][0]["container_spec"]["command"][1]).exists()


@pytest.fixture(scope="module")
def locked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BucketServer]:
    """A bucket server by itself."""
    with BucketServer(tmp_path_factory.mktemp("locked"), buckets=["line"]) as found:
        yield found


@pytest.mark.parametrize("attack", ["no token", "a web page"])
def test_a_bucket_shows_and_takes_nothing(cloud: LocalCloud, locked: BucketServer, attack: str) -> None:
    upload = "/upload/storage/v1/b/line/o?uploadType=media&name=planted"
    servers = [
        (cloud.buckets, cloud.vertex.access, cloud.vertex.endpoint, {"Host": "storage.googleapis.com"}),
        (locked, locked.access, locked.endpoint, {}),
    ]
    for buckets, access, endpoint, host in servers:
        headers, status = attack_with(attack, access)
        headers, port = host | headers, port_of(endpoint)
        assert ask(port, "POST", upload, headers, b"bytes") == status
        assert ask(port, "GET", "/storage/v1/b/line/o", headers) == status
        assert ask(port, "PUT", "/line/planted", headers, b"bytes") == status
        assert buckets.objects.find("line", "planted") is None
        assert {entry.status for entry in buckets.access_log.entries()} <= {401, 403}
    assert locked.access_log.entries(method="PUT")


def grpc_code(cloud: LocalCloud, job: dict[str, Any], method: str, metadata: dict[str, str], authority: str) -> str:
    request = gapic.CreateCustomJobRequest(parent=PARENT, custom_job=job)
    options = [("grpc.default_authority", authority)]
    with grpc.insecure_channel(f"127.0.0.1:{cloud.vertex.grpc_port}", options=options) as channel:
        call = channel.unary_unary(f"/google.cloud.aiplatform.v1.JobService/{method}")
        with pytest.raises(grpc.RpcError) as refused:
            call(gapic.CreateCustomJobRequest.serialize(request), metadata=tuple(metadata.items()), timeout=30)
    return str(refused.value.code().name)


def test_grpc_executes_nothing(cloud: LocalCloud, job: dict[str, Any]) -> None:
    token, own = {"authorization": f"Bearer {cloud.vertex.access.token}"}, "127.0.0.1"
    google = "us-central1-aiplatform.googleapis.com"
    found = [
        grpc_code(cloud, job, "CreateCustomJob", metadata, authority)
        for metadata, authority in (
            ({}, own),
            ({}, google),
            ({"authorization": "Bearer guessed"}, google),
            ({"authorization": f"Bearer {signed(cloud.vertex.access, stranger=True)}"}, google),
            (token, "evil.example"),
            ({**token, "origin": "https://evil.example"}, own),
        )
    ]
    assert found == [*["UNAUTHENTICATED"] * 4, *["PERMISSION_DENIED"] * 2]
    logged = [entry.status for entry in cloud.vertex.access_log.entries() if entry.transport == "grpc"]
    assert logged == found
    assert not list(cloud.store.list("projects/", gapic.CustomJob))


def test_grpc_refuses_before_it_reads_a_message(cloud: LocalCloud) -> None:
    """A stream of requests looks like one request on the wire: here none ever comes."""
    answered = threading.Event()
    with grpc.insecure_channel(f"127.0.0.1:{cloud.vertex.grpc_port}") as channel:
        call = channel.stream_unary("/google.cloud.aiplatform.v1.JobService/NoSuchMethod")
        with pytest.raises(grpc.RpcError) as refused:
            call((b"" for _ in range(1) if answered.wait()), timeout=30)
        answered.set()
    assert refused.value.code().name == "UNAUTHENTICATED"


def signed(access: Access, *, stranger: bool = False, **claims: Any) -> str:
    """Return a JWT as google-auth signs one, by the rehearsal's key or by one that a stranger made."""
    account = json.loads(access.key_file.read_text())
    key = account["private_key"]
    if stranger:
        from cryptography.hazmat.primitives.asymmetric import rsa
        from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

        made = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        key = made.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()
    now = int(time.time())
    payload = {"iss": account["client_email"], "sub": account["client_email"], "iat": now, "exp": now + 3600} | claims
    encoded: bytes = jwt.encode(crypt.RSASigner.from_string(key), payload)
    return encoded.decode()


def test_the_token_is_given_for_a_signature_of_our_key_alone(tmp_path: Path) -> None:
    access = Access(tmp_path / "own", project="acme")

    def exchange(assertion: str, grant: str = GRANT) -> Any:
        return access.exchange(f"grant_type={grant}&assertion={assertion}".encode())

    status, value = exchange(signed(access, aud=TOKEN_URI))
    assert (status, value["access_token"]) == (200, access.token)
    unsigned = jwt._helpers.unpadded_urlsafe_b64encode(b'{"alg":"none"}').decode() + ".e30."
    for assertion in (
        "",
        unsigned,
        signed(access, aud=TOKEN_URI, stranger=True),
        signed(access, aud="https://elsewhere.example/token"),
        signed(access, aud=TOKEN_URI, exp=1),
        signed(access, aud=TOKEN_URI, iss="another@acme.iam.gserviceaccount.com"),
        signed(access, aud=TOKEN_URI)[:-4] + "AAAA",
    ):
        assert exchange(assertion)[0] == 400, assertion
    assert exchange(signed(access, aud=TOKEN_URI), grant="password")[0] == 400
    assert access.exchange(b"")[0] == 400
    headers = {"host": "127.0.0.1:1"}
    access.check(headers | {"authorization": f"Bearer {access.token}"})
    access.check(headers | {"authorization": f"Bearer {signed(access, aud='https://aiplatform.googleapis.com/')}"})
    for credential in (signed(access, stranger=True), signed(access, exp=1), unsigned):
        with pytest.raises(ServiceError) as refused:
            access.check(headers | {"authorization": f"Bearer {credential}"})
        assert refused.value.code == "UNAUTHENTICATED"
    assert Access(tmp_path / "other", project="acme").token != access.token


def test_keys_are_this_users_alone(cloud: LocalCloud) -> None:
    private = cloud.vertex.access.key_file.parent
    assert stat.S_IMODE(private.stat().st_mode) == 0o700
    secrets = [path for path in private.rglob("*") if path.suffix in (".json", ".key")]
    assert len(secrets) == 2
    assert {stat.S_IMODE(path.stat().st_mode) for path in secrets} == {0o600}
    files = [path for path in cloud.folder.rglob("*") if path.is_file()]
    assert not [path for path in files if cloud.vertex.access.token.encode() in path.read_bytes()]


def test_only_loopback_is_listened_on(cloud: LocalCloud, locked: BucketServer) -> None:
    endpoints = (cloud.vertex.endpoint, locked.endpoint, cloud.vertex.proxy)
    for port in [cloud.vertex.grpc_port, cloud.vertex.tls_port, *map(port_of, endpoints)]:
        socket.create_connection(("127.0.0.1", port), timeout=30).close()
        # Whoever listens on all addresses listens on this one too.
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.2", port), timeout=30)


def test_a_bucket_server_is_locked_unless_it_is_asked_to_be_open(locked: BucketServer, tmp_path: Path) -> None:
    with BucketServer(tmp_path / "open", is_open=True) as is_open:
        assert ask(port_of(locked.endpoint), "GET", "/storage/v1/b", {}) == 401
        token = {"Authorization": f"Bearer {locked.access.token}"}
        assert ask(port_of(locked.endpoint), "GET", "/storage/v1/b", token) == 200
        assert ask(port_of(is_open.endpoint), "GET", "/storage/v1/b", {}) == 200
        # A page of the web is refused by an open server too.
        for headers in ({"Origin": "null"}, {"Host": "evil.example"}):
            assert ask(port_of(is_open.endpoint), "GET", "/storage/v1/b", headers) == 403
