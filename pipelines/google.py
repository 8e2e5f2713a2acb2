"""The clients of Google Cloud's services that the commands use, and the services' failures in our terms.

Every call has a timeout, every read a retry; what creates or changes is not repeated by the client. Credentials are the
environment's (application default credentials). Importing this module imports nothing of Google's.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from typing import Any

from contracts.errors import ConfigError, ShardlineError, TryAgain

CALL_TIMEOUT_S = 60.0
# How long a read is repeated, with growing pauses, before it counts as no answer.
RETRY_DEADLINE_S = 180.0
_MESSAGE_LIMIT = 1000
_NAMED_PERMISSION = re.compile(
    r"[Pp]ermission '?(?P<denied>[a-zA-Z]+\.[a-zA-Z.]+[a-zA-Z])'?|"
    r"does not have (?P<lacked>(?:\w+\.){2,}\w+) (?:access|permission)"
)


class QuotaExceeded(TryAgain):
    """A quota is used up: wait until other jobs end, or ask for more."""


def pipeline_client(region: str) -> Any:
    """Return the gapic PipelineServiceClient of a region."""
    return _regional("pipeline_service", "PipelineServiceClient", region)


def schedule_client(region: str) -> Any:
    """Return the gapic ScheduleServiceClient of a region."""
    return _regional("schedule_service", "ScheduleServiceClient", region)


def job_client(region: str) -> Any:
    """Return the gapic JobServiceClient of a region."""
    return _regional("job_service", "JobServiceClient", region)


def logging_client() -> Any:
    """Return the client of Cloud Logging that reads."""
    with explained("Cloud Logging"):
        from google.cloud.logging_v2.services.logging_service_v2 import LoggingServiceV2Client

        return LoggingServiceV2Client()


def dataflow_client() -> Any:
    """Return the client of Dataflow's jobs."""
    with explained("Dataflow"):
        from google.cloud.dataflow_v1beta3 import JobsV1Beta3Client

        return JobsV1Beta3Client()


def read_options() -> dict[str, Any]:
    """Return timeout and retry of a call that only reads."""
    from google.api_core import exceptions as api
    from google.api_core.retry import Retry, if_exception_type

    kinds = (api.ServiceUnavailable, api.GatewayTimeout, api.InternalServerError, api.BadGateway)
    retry = Retry(
        predicate=if_exception_type(*kinds), initial=1.0, maximum=20.0, multiplier=2.0, timeout=RETRY_DEADLINE_S
    )
    return {"timeout": CALL_TIMEOUT_S, "retry": retry}


def write_options() -> dict[str, Any]:
    """Return the timeout of a call that creates or changes: whoever calls decides whether it may be repeated."""
    return {"timeout": CALL_TIMEOUT_S, "retry": None}


@contextlib.contextmanager
def explained(what: str, *, project: str = "") -> Iterator[None]:
    """Turn the failures of a service into ours.

    Args:
        what: What was asked for, for the message.
        project: The project it was asked of.

    Raises:
        ConfigError: It can never work so: credentials, project, API, permission, a field (exit code 2).
        QuotaExceeded: A quota is used up (75).
        TryAgain: No answer (75).
        ShardlineError: Anything else (70).
    """
    try:
        from google.api_core import exceptions as api
        from google.auth import exceptions as auth
        from requests import exceptions as http  # type: ignore[import-untyped]
    except ImportError as error:
        raise ConfigError(
            f"{what} needs Google's libraries, and {error.name} is not installed",
            allowed="an installation with the extra gcp",
            todo='pip install "shardline[gcp]"',
        ) from None
    try:
        yield
    except auth.DefaultCredentialsError as error:
        raise _no_credentials(what, error) from None
    except (auth.TransportError, api.RetryError, http.ConnectionError, http.Timeout) as error:
        raise TryAgain(f"{what}: no answer ({first_line(error)})\n  to do: {_SAME_AGAIN}") from error
    except auth.GoogleAuthError as error:
        if getattr(error, "retryable", False):
            raise TryAgain(f"{what}: no token ({first_line(error)})\n  to do: {_SAME_AGAIN}") from error
        raise _bad_credentials(what, error) from None
    except api.GoogleAPICallError as error:
        raise to_ours(error, what, project=project) from error
    except http.HTTPError as error:
        raise to_ours(_from_http(error), what, project=project) from error


_SAME_AGAIN = "check the network and run the same command again; nothing was committed by halves"


def to_ours(error: Any, what: str, *, project: str = "") -> ShardlineError:
    """Return our error for one of google.api_core: by its status, and by what its text says where that decides."""
    from google.api_core import exceptions as api

    text = first_line(error)
    if isinstance(error, api.Unauthorized):
        return _bad_credentials(what, error)
    if isinstance(error, api.Forbidden | api.NotFound) and is_about_project(error):
        return ConfigError(
            f"{what}: project {project or 'of the request'} is unknown, or you may not see it ({text})",
            allowed="the id of a project that your account can use",
            todo="correct cloud.project, or run `gcloud projects list`",
        )
    if isinstance(error, api.Forbidden):
        return _forbidden(what, error, text, project)
    if isinstance(error, api.NotFound):
        todo = "check the name"
        if "serviceAccounts/" in text or "repositories/" in text:
            todo += "; deploy/terraform/project makes what a project needs"
        return ConfigError(f"{what}: not found ({text})", allowed="something that exists", todo=todo)
    if isinstance(error, api.TooManyRequests):
        metrics = find_quota_metrics(text)
        named = f" of {', '.join(metrics)}" if metrics else ""
        return QuotaExceeded(
            f"{what}: the quota{named} is used up ({text})\n  to do: wait until other jobs end, or ask for more at "
            f"https://console.cloud.google.com/iam-admin/quotas{f'?project={project}' if project else ''}"
        )
    if isinstance(error, api.BadRequest):
        fields = _fields(error)
        return ConfigError(
            f"{what}: refused{f' because of {fields}' if fields else ''} ({text})",
            allowed="what the service takes; `shardline plan` knows its rules",
            todo="correct the configuration that sets the field named",
        )
    if isinstance(error, api.ServerError):
        return TryAgain(f"{what}: no answer ({text})\n  to do: {_SAME_AGAIN}")
    if isinstance(error, api.Conflict):
        return ConfigError(f"{what}: {text}", allowed="a name that is free", todo="see what is there, or take another")
    return ShardlineError(f"{what}: {type(error).__name__}: {text}")


def find_quota_metrics(text: str) -> list[str]:
    """Return the names of quota metrics in a message, e.g. custom_model_training_nvidia_l4_gpus."""
    found = re.findall(r"\b[a-z]+\.googleapis\.com/[a-z0-9_/]+\b|\bcustom_model_training_[a-z0-9_]+\b", text)
    found += re.findall(r"[Qq]uota '([A-Z0-9_]+)'", text)
    return list(dict.fromkeys(found))


def is_about_project(error: Any) -> bool:
    """Whether an error says that there is no such project, rather than nothing of that name in it."""
    text = first_line(error)
    if getattr(error, "reason", None) in ("CONSUMER_INVALID", "USER_PROJECT_DENIED", "RESOURCE_PROJECT_INVALID"):
        return True
    if "(or it may not exist)" in text:
        # Of a permission: the project is named somewhere before it as a part of an address or a path.
        return False
    return bool(re.search(r"[Pp]roject\W.*(not found|does not exist|not exist|was not found|is invalid)", text)) or (
        "Unknown project" in text
    )


def first_line(error: BaseException) -> str:
    """Return what an error says, in one line that is not too long."""
    text = " ".join(str(getattr(error, "message", "") or error).split()) or type(error).__name__
    return text if len(text) <= _MESSAGE_LIMIT else text[:_MESSAGE_LIMIT] + "..."


def _regional(module: str, kind: str, region: str) -> Any:
    with explained(f"Vertex AI in {region}"):
        import importlib

        services = importlib.import_module(f"google.cloud.aiplatform_v1.services.{module}")
        return getattr(services, kind)(client_options={"api_endpoint": f"{region}-aiplatform.googleapis.com"})


def _no_credentials(what: str, error: BaseException) -> ConfigError:
    return ConfigError(
        f"{what}: no credentials ({first_line(error)})",
        allowed="application default credentials",
        todo="run `gcloud auth application-default login`, or set GOOGLE_APPLICATION_CREDENTIALS",
    )


def _bad_credentials(what: str, error: BaseException) -> ConfigError:
    return ConfigError(
        f"{what}: the credentials do not work ({first_line(error)})",
        allowed="application default credentials that are valid",
        todo="run `gcloud auth application-default login`",
    )


def _forbidden(what: str, error: Any, text: str, project: str) -> ConfigError:
    if getattr(error, "reason", None) == "SERVICE_DISABLED" or "has not been used in project" in text:
        service = (re.findall(r"[a-z]+\.googleapis\.com", text) or ["aiplatform.googleapis.com"])[0]
        return ConfigError(
            f"{what}: the API is not enabled ({text})",
            allowed="a project in which the APIs of docs/vertex.md are enabled",
            todo=f"gcloud services enable {service}{f' --project={project}' if project else ''}",
        )
    permission = find_permission(text)
    if "may not exist" in text:
        return ConfigError(
            f"{what}: no permission, or no such project ({text})",
            allowed="a project that exists, and an account with the roles of docs/vertex.md",
            todo=f"check the name{f' {project}' if project else ''}, then the roles of the account that runs this",
        )
    named = f" {permission}" if permission else ""
    return ConfigError(
        f"{what}: permission{named} is missing ({text})",
        allowed="an account with the roles of docs/vertex.md",
        todo="grant the role to the account that runs this, or use other credentials",
    )


def find_permission(text: str) -> str:
    """Return the first permission that a service's refusal names; empty: it names none."""
    if (found := _NAMED_PERMISSION.search(text)) is not None:
        return found["denied"] or found["lacked"]
    return "iam.serviceAccounts.actAs" if re.search(r"permission to act as", text, re.IGNORECASE) else ""


def _fields(error: Any) -> str:
    """Return the paths of the fields that the service complains about (google.rpc.BadRequest)."""
    paths: list[str] = []
    for detail in getattr(error, "details", None) or []:
        if isinstance(detail, dict):
            violations = detail.get("fieldViolations", [])
            paths += [str(violation.get("field", "")) for violation in violations]
        else:
            paths += [violation.field for violation in getattr(detail, "field_violations", [])]
    return ", ".join(dict.fromkeys(path for path in paths if path))


def _from_http(error: Any) -> Any:
    """Return google.api_core's error for one of requests, which the registry's client raises."""
    from google.api_core import exceptions as api

    if error.response is None:
        return api.ServiceUnavailable(str(error))  # type: ignore[no-untyped-call]
    return api.from_http_response(error.response)  # type: ignore[no-untyped-call]
