"""Errors of Google Cloud's services: eight known causes, and conversion to contracts.errors.

The patterns come from Google's documentation and issue trackers, not from runs of ours. Importing this module imports
none of Google's libraries.
"""

from __future__ import annotations

import contextlib
import logging
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from contracts.errors import EXIT_TRY_AGAIN, EXIT_USER_ERROR, ConfigError, ShardlineError, TryAgain

CALL_TIMEOUT_S = 60.0
_MESSAGE_LIMIT = 1000
_QUOTA_METRIC = re.compile(
    r"\b[a-z]+\.googleapis\.com/[a-z0-9_/]+\b|\bcustom_model_training_[a-z0-9_]+\b|(?<=[Qq]uota ')[A-Z0-9_]+(?=')"
)
_PERMISSION = re.compile(r"[Pp]ermission '?([a-zA-Z]+\.[a-zA-Z.]+[a-zA-Z])'?|does not have \W*((?:\w+\.){2,}\w+)")
_ACCOUNT = re.compile(r"[\w.-]+@[\w.-]+\.gserviceaccount\.com")
_SERVICE = re.compile(r"\b[a-z]+\.googleapis\.com\b")
_QUOTAS_PAGE = "https://console.cloud.google.com/iam-admin/quotas"
_RETRY_TODO = "check the network and run the same command again; nothing was partly written"
_LOG_IN = "run `gcloud auth application-default login`, or set GOOGLE_APPLICATION_CREDENTIALS"


@dataclass(frozen=True)
class Cause:
    """A likely cause of a failure.

    Attributes:
        kind: Short name.
        wording: Pattern of the service's error message.
        cause: Description.
        todo: What the user should do.
        exit_code: 2 if the user must change something, 75 if a retry may succeed.
    """

    kind: str
    wording: re.Pattern[str]
    cause: str
    todo: str
    exit_code: int


def _cause(kind: str, wording: str, cause: str, todo: str, exit_code: int) -> Cause:
    return Cause(kind, re.compile(wording, re.IGNORECASE), cause, todo, exit_code)


_CAUSES = (
    _cause(
        "stockout",
        r"\bSTOCKOUT\b|RESOURCE_POOL_EXHAUSTED|resources are insufficient in region|insufficient capacity in|"
        r"does not have enough resources available|machine type temporarily unavailable|"
        r"required resources? (?:is|are) (?:currently |temporarily )?(?:un|not )available",
        "the region has no such machines left now",
        "set resources.regions and submit with --wait, take resources.strategy=FLEX_START, or submit again later",
        EXIT_TRY_AGAIN,
    ),
    _cause(
        "preempted",
        r"\b(?:was|were|been) preempted\b|compute\.instances\.preempted",
        "spot machines were taken away more often than Vertex AI restarts a job",
        "submit again: training goes on from its last checkpoint; or set resources.strategy=FLEX_START or STANDARD",
        EXIT_TRY_AGAIN,
    ),
    _cause(
        "api disabled",
        r"has not been used in project \S+ before or it is disabled|\bSERVICE_DISABLED\b",
        "an API is not enabled in the project, or was enabled minutes ago",
        "gcloud services enable {service}, wait some minutes, and submit again",
        EXIT_USER_ERROR,
    ),
    _cause(
        "region mismatch",
        r"(?:bucket|key|tensorboard|resource|location)\b.{0,80}\b(?:must be|is not) in the same (?:region|location)|"
        r"location \S+ does not match|not available in (?:region|location)",
        "something that the job uses is in another region",
        "set cloud.region to the region of the bucket, the key and the TensorBoard",
        EXIT_USER_ERROR,
    ),
    _cause(
        "image not found",
        r"\bmanifest (?:unknown|for \S+ not found)|\bimage \S+ (?:was |is )?(?:not found|does not exist)|"
        r"\bImagePullBackOff\b|\bErrImagePull\b|failed to pull image|artifactregistry\.repositories\.downloadArtifacts",
        "a container image is not there, or cannot be pulled",
        "run `shardline images build CONFIG`; the service agents of Vertex AI and Dataflow need the role Artifact "
        "Registry Reader on the repository",
        EXIT_USER_ERROR,
    ),
    _cause(
        "quota",
        r"quota metrics? exceed|exceeds? quota|quota exceeded|quota '[A-Z0-9_]+' exceeded|quotas are exceeded|"
        r"\bRESOURCE_EXHAUSTED\b|"
        r"due to insufficient quota|waiting for quota",
        "a quota of the project is used up{metrics}",
        f"wait until other jobs end, or ask for more at {_QUOTAS_PAGE}",
        EXIT_TRY_AGAIN,
    ),
    _cause(
        "missing role",
        r"permission '?[a-z]+\.[a-z.]+'? (?:denied|was denied)|permission to act as|\bPERMISSION_DENIED\b|"
        r"does not have \W*(?:\w+\.){2,}\w+.{0,200} (?:access|permission)|the caller does not have permission",
        "{account} lacks {permission}",
        "grant it a role that has it (deploy/terraform/project lists the roles of a line), or correct cloud.project",
        EXIT_USER_ERROR,
    ),
    _cause(
        "timeout",
        r"\bjob timed out\b|exceeded the timeout of|\btimeout (?:was )?(?:exceeded|reached)\b|\bDEADLINE_EXCEEDED\b",
        "a job ran into its time-out",
        "submit again: training goes on from its last checkpoint; set resources.timeout_hours (or "
        "resources.max_cost_usd) higher",
        EXIT_TRY_AGAIN,
    ),
)


def find_cause(texts: Iterable[str]) -> Cause | None:
    """Return the likely cause of a failure, with names from the error messages filled in; None: unknown.

    Args:
        texts: Messages of tasks, jobs and services.
    """
    messages = [text for text in texts if text]
    for template in _CAUSES:
        for text in messages:
            if template.wording.search(text):
                return _fill_names(template, text)
    return None


def _fill_names(template: Cause, text: str) -> Cause:
    """Fill the names in an error message into a cause: metric, permission, account, API."""
    metrics = ", ".join(find_quota_metrics(text))
    permission = _PERMISSION.search(text)
    account = _ACCOUNT.search(text)
    service = _SERVICE.search(text)
    names = {
        "metrics": f": {metrics}" if metrics else "",
        "permission": "a permission" if permission is None else permission[1] or permission[2],
        "account": "the account that asked" if account is None else account[0],
        "service": "aiplatform.googleapis.com" if service is None else service[0],
    }
    if re.search("permission to act as", text, re.IGNORECASE):
        names |= {"account": "the account that submits", "permission": "iam.serviceAccounts.actAs"}
    return replace(template, cause=template.cause.format_map(names), todo=template.todo.format_map(names))


def find_quota_metrics(text: str) -> list[str]:
    """Return the names of quota metrics in a message, e.g. custom_model_training_nvidia_l4_gpus."""
    return list(dict.fromkeys(_QUOTA_METRIC.findall(text)))


def first_line(error: BaseException) -> str:
    """Return an error's message as one line, truncated."""
    text = " ".join(str(getattr(error, "message", "") or error).split()) or type(error).__name__
    return text if len(text) <= _MESSAGE_LIMIT else text[:_MESSAGE_LIMIT] + "..."


def import_sdk() -> Any:
    """Return google.cloud.aiplatform, set up to log only errors, to stderr: stdout is for results."""
    logger = logging.getLogger("google.cloud.aiplatform")
    # If its logger has a handler at import, the SDK adds none.
    if not logger.handlers and logging.lastResort is not None:
        logger.addHandler(logging.lastResort)
    from google.cloud import aiplatform

    # The SDK logs a traceback if it may not read the run's bucket.
    logging.getLogger("google.cloud.aiplatform.pipeline_jobs").setLevel(logging.CRITICAL)
    return aiplatform


@contextlib.contextmanager
def explained(action: str) -> Iterator[None]:
    """Convert errors of Google's clients to contracts.errors.

    Args:
        action: The request, for the message.

    Raises:
        ConfigError: A permanent error: credentials, project, API, permission, a field.
        TryAgain: No answer, or an exhausted quota.
        ShardlineError: Any other client error.
    """
    try:
        from google.api_core import exceptions as api
        from google.auth import exceptions as auth
        from requests import exceptions as http  # type: ignore[import-untyped]
    except ImportError as error:
        raise ConfigError(
            f"{action} needs Google's libraries, and {error.name} is not installed",
            allowed="an installation with the extra gcp",
            todo='pip install "shardline[gcp]"',
        ) from None
    try:
        yield
    except http.HTTPError as error:
        raise to_error(action, api.from_http_response(error.response)) from error  # type: ignore[no-untyped-call]
    except (auth.TransportError, api.RetryError, http.RequestException) as error:
        raise TryAgain(f"{action}: no answer ({first_line(error)})\n  to do: {_RETRY_TODO}") from error
    except auth.GoogleAuthError as error:
        if getattr(error, "retryable", False):
            raise TryAgain(f"{action}: no token ({first_line(error)})\n  to do: {_RETRY_TODO}") from error
        raise _no_credentials(action, error) from None
    except api.GoogleAPICallError as error:
        raise to_error(action, error) from error


def to_error(action: str, error: Any) -> ShardlineError:
    """Convert a google.api_core error, by the known cause that its message matches, else by its status."""
    from google.api_core import exceptions as api

    text = first_line(error)
    if isinstance(error, api.Unauthorized):
        return _no_credentials(action, error)
    if (cause := find_cause([text, _status_name(error)])) is not None:
        # Retries do not help after FAILED_PRECONDITION or INVALID_ARGUMENT.
        if cause.exit_code == EXIT_TRY_AGAIN and not isinstance(error, api.BadRequest):
            return TryAgain(f"{action}: {cause.cause} ({text})\n  to do: {cause.todo}")
        return ConfigError(
            f"{action}: {cause.cause} ({text})", allowed="a project with quota, roles and APIs", todo=cause.todo
        )
    if isinstance(error, api.ServerError):
        return TryAgain(f"{action}: no answer ({text})\n  to do: {_RETRY_TODO}")
    if isinstance(error, api.ClientError):
        return ConfigError(
            f"{action}: refused ({text}){_fields(error)}",
            allowed="a valid request; `shardline plan CONFIG` checks most of the service's rules",
            todo="correct the name or the field in the message; deploy/terraform/project sets up a project",
        )
    return ShardlineError(f"{action}: {type(error).__name__}: {text}")


def _no_credentials(action: str, error: BaseException) -> ConfigError:
    return ConfigError(
        f"{action}: no valid credentials ({first_line(error)})",
        allowed="application default credentials",
        todo=_LOG_IN,
    )


def _status_name(error: Any) -> str:
    return {403: "PERMISSION_DENIED", 429: "RESOURCE_EXHAUSTED"}.get(int(error.code or 0), "")


def _fields(error: Any) -> str:
    """Return the paths of the invalid fields (google.rpc.BadRequest) as the end of a message."""
    paths: list[str] = []
    for detail in getattr(error, "details", None) or []:
        violations = detail.get("fieldViolations", []) if isinstance(detail, dict) else detail.field_violations
        paths += [item.get("field", "") if isinstance(item, dict) else item.field for item in violations]
    joined = ", ".join(dict.fromkeys(path for path in paths if path))
    return f" because of {joined}" if joined else ""
