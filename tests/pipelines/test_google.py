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
from pipelines.google import QuotaExceeded, explained, find_quota_metrics, is_about_project

CASES: list[tuple[Any, type[ShardlineError], str]] = [
    (auth.DefaultCredentialsError("none found"), ConfigError, "gcloud auth application-default login"),
    (auth.RefreshError("invalid_grant: Bad Request"), ConfigError, "credentials do not work"),
    (auth.TransportError("connection refused"), TryAgain, "no answer"),
    (api.Unauthenticated("token expired"), ConfigError, "credentials do not work"),
    (
        api.PermissionDenied("Permission 'aiplatform.pipelineJobs.create' denied"),
        ConfigError,
        "aiplatform.pipelineJobs",
    ),
    (api.PermissionDenied("denied on resource (or it may not exist)."), ConfigError, "no such project"),
    (
        api.PermissionDenied(
            "Vertex AI API has not been used in project 1 before or it is disabled: aiplatform.googleapis.com"
        ),
        ConfigError,
        "gcloud services enable aiplatform.googleapis.com --project=p",
    ),
    (api.NotFound("Project 'p' was not found"), ConfigError, "project p is unknown"),
    (api.NotFound("Schedule 7 is not found."), ConfigError, "not found"),
    (
        api.ResourceExhausted("quota metrics exceed: aiplatform.googleapis.com/custom_model_training_cpus"),
        QuotaExceeded,
        "the quota of aiplatform.googleapis.com/custom_model_training_cpus is used up",
    ),
    (api.ServiceUnavailable("try later"), TryAgain, "no answer"),
    (api.DeadlineExceeded("60 s"), TryAgain, "no answer"),
    (api.RetryError("gave up", cause=None), TryAgain, "no answer"),
    (api.AlreadyExists("it is there"), ConfigError, "it is there"),
    (requests.ConnectionError("refused"), TryAgain, "no answer"),
    (api.GoogleAPICallError("odd"), ShardlineError, "odd"),
]


@pytest.mark.parametrize(("error", "kind", "text"), CASES, ids=lambda value: getattr(type(value), "__name__", ""))
def test_each_failure_has_its_kind_and_says_what_to_do(error: Any, kind: type[ShardlineError], text: str) -> None:
    with pytest.raises(ShardlineError) as raised, explained("submitting", project="p"):
        raise error
    assert type(raised.value) is kind
    assert text in str(raised.value) and str(raised.value).startswith("submitting: ")


def test_exit_codes() -> None:
    assert (QuotaExceeded("x").exit_code, TryAgain("x").exit_code, ConfigError("x", allowed="", todo="").exit_code) == (
        75,
        75,
        2,
    )


def test_the_field_that_is_wrong_is_named_by_both_doors() -> None:
    from google.rpc import error_details_pb2

    field = "pipeline_job.runtime_config.gcs_output_directory"
    over_grpc = error_details_pb2.BadRequest()
    over_grpc.field_violations.add(field=field, description="is required")
    over_rest = {"@type": "type.googleapis.com/google.rpc.BadRequest", "fieldViolations": [{"field": field}]}
    for detail in (over_grpc, over_rest):
        with pytest.raises(ConfigError, match=field), explained("submitting"):
            raise api.InvalidArgument("List of found errors", details=[detail])


def test_an_http_answer_of_the_registry_has_the_same_kinds() -> None:
    for status, kind in ((403, ConfigError), (404, ConfigError), (429, QuotaExceeded), (503, TryAgain)):
        response = requests.Response()
        response.status_code, response._content = status, b"no"
        response.request = requests.Request("GET", "https://us-kfp.pkg.dev/p/r").prepare()
        with pytest.raises(ShardlineError) as raised, explained("the repository"):
            response.raise_for_status()
        assert type(raised.value) is kind


def test_metrics_are_found_in_messages() -> None:
    text = "exceeded: aiplatform.googleapis.com/custom_model_training_nvidia_t4_gpus, Quota 'NVIDIA_L4_GPUS' exceeded"
    assert find_quota_metrics(text) == [
        "aiplatform.googleapis.com/custom_model_training_nvidia_t4_gpus",
        "NVIDIA_L4_GPUS",
    ]


@pytest.mark.parametrize(
    ("text", "about"),
    [
        ("Project 'p' was not found or deleted", True),
        ("The PipelineJob does not exist.", False),
        ("There is no resource projects/1/locations/r/pipelineJobs/x", False),
        ("Resource projects/1/locations/r/schedules/2 not found", False),
    ],
)
def test_not_found_is_of_a_project_or_of_what_is_in_it(text: str, about: bool) -> None:
    assert is_about_project(api.NotFound(text)) is about
