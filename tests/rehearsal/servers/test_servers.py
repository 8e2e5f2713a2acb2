"""The servers: REST by its address, gRPC and REST as Google's own hosts through proxy and certificate, and no other."""

import json
import socket
import ssl
from collections.abc import Callable
from typing import Any

import grpc
import pytest
from google.api_core import exceptions
from google.cloud import aiplatform_v1 as gapic

from ..vertex.conftest import JOB, NUMBER, PARENT, Cloud, pipeline_job, rest

LAUNCHER = "google-cloud-pipeline-components"


def token(cloud: Cloud) -> dict[str, str]:
    """Return the header that lets a request in."""
    return {"Authorization": f"Bearer {cloud.server.access.token}"}


def jobs(cloud: Cloud) -> gapic.JobServiceClient:
    client: gapic.JobServiceClient = rest(cloud, gapic.JobServiceClient)
    return client


def test_rest_creates_shows_lists_and_cancels(cloud: Cloud) -> None:
    client = jobs(cloud)
    made = client.create_custom_job(parent=PARENT, custom_job=JOB)
    assert made.name.startswith(f"projects/{NUMBER}/locations/us-central1/customJobs/")
    other = client.create_custom_job(parent=PARENT, custom_job=JOB | {"display_name": "another"})
    assert [job.name for job in client.list_custom_jobs(parent=PARENT)] == [other.name, made.name]
    request = {"parent": PARENT, "filter": 'display_name="another"'}
    assert [job.name for job in client.list_custom_jobs(request)] == [other.name]
    assert len(list(client.list_custom_jobs({"parent": PARENT, "page_size": 1}))) == 2
    client.cancel_custom_job(name=made.name)
    assert client.get_custom_job(name=made.name).state == gapic.JobState.JOB_STATE_CANCELLED
    with pytest.raises(exceptions.NotFound):
        client.get_custom_job(name=f"{made.name}0")
    with pytest.raises(exceptions.Forbidden, match="may not exist"):
        client.create_custom_job(parent="projects/nobodys/locations/us-central1", custom_job=JOB)
    logged = [entry.status for entry in cloud.server.access_log.entries("JobService.CreateCustomJob")]
    assert logged == ["OK", "OK", "PERMISSION_DENIED"]


def test_the_certificate_is_for_googles_hosts_and_its_authority_alone_is_trusted(cloud: Cloud) -> None:
    port = int(cloud.server.proxy.rsplit(":", 1)[1])

    def greet(context: ssl.SSLContext, host: str) -> str | None:
        with socket.create_connection(("127.0.0.1", port)) as plain:
            plain.sendall(b"CONNECT us-central1-aiplatform.googleapis.com:443 HTTP/1.1\r\n\r\n")
            assert plain.recv(1000).startswith(b"HTTP/1.1 200")
            with context.wrap_socket(plain, server_hostname=host) as secure:
                return secure.selected_alpn_protocol()

    ours = ssl.create_default_context(cafile=cloud.server.environment["SSL_CERT_FILE"])
    for protocol in ("h2", "http/1.1"):
        ours.set_alpn_protocols([protocol])
        assert greet(ours, "us-central1-aiplatform.googleapis.com") == protocol
    with pytest.raises(ssl.SSLCertVerificationError):
        greet(ours, "example.com")
    with pytest.raises(ssl.SSLCertVerificationError):
        greet(ssl.create_default_context(), "us-central1-aiplatform.googleapis.com")


def test_held_polls_of_many_jobs_block_no_other_call(cloud: Cloud) -> None:
    job = jobs(cloud).create_custom_job(parent=PARENT, custom_job=JOB)
    metadata = (*((key.lower(), value) for key, value in token(cloud).items()), ("x-goog-api-client", LAUNCHER))
    with grpc.insecure_channel(f"127.0.0.1:{cloud.server.grpc_port}") as channel:

        def call(method: str, request: Any) -> grpc.Future:
            path = f"/google.cloud.aiplatform.v1.JobService/{method}"
            return channel.unary_unary(path).future(type(request).serialize(request), timeout=60, metadata=metadata)

        polls = [call("GetCustomJob", gapic.GetCustomJobRequest(name=job.name)) for _ in range(100)]
        other = call("ListCustomJobs", gapic.ListCustomJobsRequest(parent=PARENT)).result()
        assert len(gapic.ListCustomJobsResponse.deserialize(other).custom_jobs) == 1
        assert not any(poll.done() for poll in polls)
        cloud.jobs.go.set()
        states = {gapic.CustomJob.deserialize(poll.result()).state for poll in polls}
    assert states == {gapic.JobState.JOB_STATE_SUCCEEDED}


def test_a_cancelled_pipeline_takes_its_custom_jobs_along(cloud: Cloud) -> None:
    pipelines = rest(cloud, gapic.PipelineServiceClient)
    job = pipelines.create_pipeline_job(parent=PARENT, pipeline_job=pipeline_job(), pipeline_job_id="run-1")
    label = "vertex-ai-pipelines-run-billing-id"
    mine = jobs(cloud).create_custom_job(parent=PARENT, custom_job=JOB | {"labels": {label: job.labels[label]}})
    other = jobs(cloud).create_custom_job(parent=PARENT, custom_job=JOB)
    with pytest.raises(exceptions.Conflict):
        pipelines.create_pipeline_job(parent=PARENT, pipeline_job=pipeline_job(), pipeline_job_id="run-1")
    pipelines.cancel_pipeline_job(name=job.name)
    assert pipelines.get_pipeline_job(name=job.name).state == gapic.PipelineState.PIPELINE_STATE_CANCELLED
    assert jobs(cloud).get_custom_job(name=mine.name).state == gapic.JobState.JOB_STATE_CANCELLED
    assert jobs(cloud).get_custom_job(name=other.name).state != gapic.JobState.JOB_STATE_CANCELLED


_CHILD = """
import json, socket, sys
import requests
from google.cloud import aiplatform_v1 as gapic

parent, found = sys.argv[1], {}
client = gapic.JobServiceClient(client_options={"api_endpoint": "us-central1-aiplatform.googleapis.com"})
found["transport"] = type(client.transport).__name__
job = client.create_custom_job(parent=parent, custom_job=json.loads(sys.argv[2]))
found["states"] = [job.state.name for job in client.list_custom_jobs(parent=parent)]
try:
    client.get_custom_job(name=parent + "/customJobs/1")
except Exception as error:
    found["missing"] = type(error).__name__
try:
    client.get_hyperparameter_tuning_job(name=parent + "/hyperparameterTuningJobs/1")
except Exception as error:
    found["unknown"] = type(error).__name__
def ask(host, path, **more):
    answer = requests.get(f"https://{host}.googleapis.com/{path}", timeout=60, **more)
    return answer.json()["displayName"] if answer.ok else [answer.status_code, answer.json()["error"]["status"]]
import google.auth
from google.auth.transport.requests import Request
credentials, _ = google.auth.default(scopes=["https://www.googleapis.com/auth/cloud-platform"])
credentials.refresh(Request())
token = {"headers": {"Authorization": f"Bearer {credentials.token}"}}
wrong = {"headers": {"Authorization": "Bearer x"}}
found["rest"] = ask("us-central1-aiplatform", f"v1/{job.name}", **token)
found["no token"] = [ask("us-central1-aiplatform", f"v1/{job.name}")]
found["no token"].append(ask("artifactregistry", f"v1/{parent}/x", **wrong))
found["elsewhere"] = [ask(host, f"v1/{job.name}", **token) for host in ("europe-west4-aiplatform", "dataflow")]
for host, name in (("europe-west4-aiplatform", "other region"), ("dataflow", "other service")):
    other = gapic.JobServiceClient(client_options={"api_endpoint": host + ".googleapis.com"})
    try:
        other.list_custom_jobs(parent=parent)
    except Exception as error:
        found[name] = type(error).__name__
import grpc
with open(sys.argv[3], "rb") as authority:
    secure = grpc.ssl_channel_credentials(authority.read())
with grpc.secure_channel("us-central1-aiplatform.googleapis.com:443", secure) as channel:
    call = channel.unary_unary("/google.cloud.aiplatform.v1.JobService/ListCustomJobs")
    try:
        call(gapic.ListCustomJobsRequest.serialize(gapic.ListCustomJobsRequest(parent=parent)), timeout=60)
    except grpc.RpcError as error:
        found["no token by grpc"] = error.code().name
refused = []
for url in ("https://example.com/", "https://pypi.org/simple", "https://storage.googleapis.com.example.com/"):
    try:
        requests.get(url, timeout=60)
    except requests.exceptions.ProxyError as error:
        refused.append("403" in str(error))
found["refused"] = refused
found["plain"] = requests.get("http://example.com/", timeout=60).status_code
for host in ("192.0.2.1", "localhost.evil.example", "127.0.0.2", "localhost"):
    try:
        socket.create_connection((host, 1), timeout=60)
    except OSError as error:
        found[host] = "outside this rehearsal" in str(error)
print(json.dumps(found))
"""


def test_grpc_and_rest_as_googles_hosts_and_no_other_host(make_cloud: Callable[..., Cloud]) -> None:
    cloud = make_cloud()
    done = cloud.child(_CHILD, PARENT, json.dumps(JOB), cloud.server.environment["SSL_CERT_FILE"])
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["transport"] == "JobServiceGrpcTransport"
    assert len(found["states"]) == 1
    assert found["missing"] == "NotFound" and found["unknown"] == "MethodNotImplemented"
    assert found["rest"] == "a job"
    assert found["no token"] == [[401, "UNAUTHENTICATED"]] * 2 and found["no token by grpc"] == "UNAUTHENTICATED"
    assert found["elsewhere"] == [[400, "INVALID_ARGUMENT"], [404, "NOT_FOUND"]]
    assert (found["other region"], found["other service"]) == ("InvalidArgument", "NotFound")
    assert found["refused"] == [True, True, True]
    refused = [entry.resource for entry in cloud.server.access_log.entries() if entry.status == "403"]
    assert refused == [
        "example.com:443",
        "pypi.org:443",
        "storage.googleapis.com.example.com:443",
        "http://example.com/",
    ]
    assert found["plain"] == 403
    # What goes past the proxy is refused in the process itself; the machine's own addresses are not.
    hosts = ("192.0.2.1", "localhost.evil.example", "127.0.0.2", "localhost")
    assert [found[host] for host in hosts] == [True, True, False, False]
    # Once each, also what a client has swallowed.
    names = ["example.com", "pypi.org", "storage.googleapis.com.example.com"]
    assert cloud.server.refused == [*names, "192.0.2.1", "localhost.evil.example"]
    assert {entry.transport for entry in cloud.server.access_log.entries()} == {"grpc", "rest", "proxy"}
