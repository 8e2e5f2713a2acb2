"""The services' failures in our terms, made from the client libraries' own errors."""

import warnings
from typing import Any

import pytest

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import requests
    from google.api_core import exceptions as api
    from google.auth import exceptions as auth

from contracts.errors import ConfigError, ShardlineError, TryAgain
from pipelines.google import explained, find_cause

ERRORS: list[tuple[Any, type[ShardlineError], str]] = [
    (auth.DefaultCredentialsError("none found"), ConfigError, "gcloud auth application-default login"),
    (auth.TransportError("connection refused"), TryAgain, "no answer"),
    (api.PermissionDenied("denied on resource (or it may not exist)."), ConfigError, "correct cloud.project"),
    (api.NotFound("Schedule 7 is not found."), ConfigError, "Schedule 7 is not found"),
    (api.InvalidArgument("odd", details=[{"fieldViolations": [{"field": "a.b"}]}]), ConfigError, "because of a.b"),
    (api.ResourceExhausted("too many"), TryAgain, "a quota of the project is used up"),
    (api.ServiceUnavailable("try later"), TryAgain, "no answer"),
    (requests.ConnectionError("refused"), TryAgain, "no answer"),
    (
        api.FailedPrecondition("These quota metrics exceed quota limits: x.googleapis.com/y"),
        ConfigError,
        "googleapis.com/y",
    ),
    (api.GoogleAPICallError("odd"), ShardlineError, "odd"),
]


@pytest.mark.parametrize(("error", "kind", "text"), ERRORS, ids=lambda value: getattr(type(value), "__name__", ""))
def test_each_failure_has_its_kind_and_says_what_to_do(error: Any, kind: type[ShardlineError], text: str) -> None:
    with pytest.raises(ShardlineError) as raised, explained("submitting"):
        raise error
    assert type(raised.value) is kind
    assert text in str(raised.value) and str(raised.value).startswith("submitting: ")


CAUSES = {
    "stockout": [
        "Resources are insufficient in region: us-central1. Please try a different region or use another accelerator.",
        "The required resource is currently unavailable in us-central1-b.",
        "ZONE_RESOURCE_POOL_EXHAUSTED_WITH_DETAILS",
    ],
    "quota": [
        "These quota metrics exceed quota limits: aiplatform.googleapis.com/custom_model_training_nvidia_a100_gpus",
        "RESOURCE_EXHAUSTED: Quota 'NVIDIA_L4_GPUS' exceeded. Limit: 0.0 in region us-east4.",
    ],
    "missing role": [
        "Permission 'aiplatform.customJobs.create' denied on resource '//aiplatform.googleapis.com/projects/p'",
        "runner@p.iam.gserviceaccount.com does not have storage.objects.get access to the Google Cloud Storage object.",
        "You do not have permission to act as service_account: runner@p.iam.gserviceaccount.com",
    ],
    "api disabled": ["403 Dataflow API has not been used in project 123456 before or it is disabled."],
    "image not found": [
        'Failed to pull image "us-docker.pkg.dev/p/r/gpu@sha256:12": denied',
        "Permission 'artifactregistry.repositories.downloadArtifacts' denied on resource",
    ],
    "preempted": ["The job was preempted more often than it may be restarted."],
    "timeout": [
        "The job timed out: it exceeded the timeout of 3600s.",
    ],
    "region mismatch": ["The bucket gs://b must be in the same region as the job, us-central1."],
}
# What a program may print or be called: no service said it.
NO_CAUSE = ["The replica workerpool0-0 exited with a non-zero status of 1.", "quota.py: line 429", "", "image 12 of 40"]


@pytest.mark.parametrize(("kind", "text"), [(kind, text) for kind, texts in CAUSES.items() for text in texts])
def test_each_failure_has_its_cause(kind: str, text: str) -> None:
    found = find_cause(["The DAG failed because some tasks failed. The failed tasks are: [train].", text])
    assert found is not None and found.kind == kind
    assert found.todo and "{" not in found.cause + found.todo


def test_a_cause_names_what_the_service_named() -> None:
    def cause(kind: str, number: int) -> str:
        found = find_cause([CAUSES[kind][number]])
        assert found is not None
        return found.cause

    assert "custom_model_training_nvidia_a100_gpus" in cause("quota", 0) and "NVIDIA_L4_GPUS" in cause("quota", 1)
    assert cause("missing role", 0) == "the account that asked lacks aiplatform.customJobs.create"
    assert cause("missing role", 1) == "runner@p.iam.gserviceaccount.com lacks storage.objects.get"
    assert cause("missing role", 2) == "the account that submits lacks iam.serviceAccounts.actAs"
    assert all(find_cause([text]) is None for text in NO_CAUSE)
