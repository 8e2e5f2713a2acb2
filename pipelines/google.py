"""Failures of Google Cloud's services in our terms, and the eight causes that most of them have.

The wording was gathered from Google's documentation and from issues, not from runs of ours. Importing this module
imports nothing of Google's.
"""

from __future__ import annotations

import contextlib
import logging
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
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
_SAME_AGAIN = "check the network and run the same command again; nothing was partly written"
_LOG_IN = "run `gcloud auth application-default login`, or set GOOGLE_APPLICATION_CREDENTIALS"


@dataclass(frozen=True)
class Cause:
    """A likely cause of a failure.

    Attributes:
        kind: A short name.
        wording: What a service says in that case.
        cause: The cause in words.
        todo: What to do.
        exit_code: 2 where somebody has to change something, 75 where the same again may succeed.
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
    """Return the likely cause of a failure by what services said, with the names that they gave; None: unknown.

    Args:
        texts: Messages of tasks, jobs and services.
    """
    found = [text for text in texts if text]
    for known in _CAUSES:
        for text in found:
            if known.wording.search(text):
                return _named(known, text)
    return None


def _named(known: Cause, text: str) -> Cause:
    """Return a cause with the names that a text gives: metric, permission, account, API."""
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
    cause, todo = (part.format_map(names) for part in (known.cause, known.todo))
    return Cause(known.kind, known.wording, cause, todo, known.exit_code)


def find_quota_metrics(text: str) -> list[str]:
    """Return the names of quota metrics in a message, e.g. custom_model_training_nvidia_l4_gpus."""
    return list(dict.fromkeys(_QUOTA_METRIC.findall(text)))


def first_line(error: BaseException) -> str:
    """Return what an error says, in one line that is not too long."""
    text = " ".join(str(getattr(error, "message", "") or error).split()) or type(error).__name__
    return text if len(text) <= _MESSAGE_LIMIT else text[:_MESSAGE_LIMIT] + "..."


def import_sdk() -> Any:
    """Return google.cloud.aiplatform, which tells of errors alone, on stderr: stdout is for answers."""
    logger = logging.getLogger("google.cloud.aiplatform")
    # Where it finds a handler when it is imported, it adds none of its own.
    if not logger.handlers and logging.lastResort is not None:
        logger.addHandler(logging.lastResort)
    from google.cloud import aiplatform

    # It looks for the run's bucket in its own way, and tells with a traceback where it may not.
    logging.getLogger("google.cloud.aiplatform.pipeline_jobs").setLevel(logging.CRITICAL)
    return aiplatform


@contextlib.contextmanager
def explained(what: str) -> Iterator[None]:
    """Turn the failures of a service into ours.

    Args:
        what: What was asked for, for the message.

    Raises:
        ConfigError: It can never work so: credentials, project, API, permission, a field.
        TryAgain: No answer, or a quota that is used up now.
        ShardlineError: Anything else that a client raises.
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
    except http.HTTPError as error:
        raise to_error(what, api.from_http_response(error.response)) from error  # type: ignore[no-untyped-call]
    except (auth.TransportError, api.RetryError, http.RequestException) as error:
        raise TryAgain(f"{what}: no answer ({first_line(error)})\n  to do: {_SAME_AGAIN}") from error
    except auth.GoogleAuthError as error:
        if getattr(error, "retryable", False):
            raise TryAgain(f"{what}: no token ({first_line(error)})\n  to do: {_SAME_AGAIN}") from error
        raise _no_credentials(what, error) from None
    except api.GoogleAPICallError as error:
        raise to_error(what, error) from error


def to_error(what: str, error: Any) -> ShardlineError:
    """Return our error for one of google.api_core: by the cause that its text names, else by its status."""
    from google.api_core import exceptions as api

    text = first_line(error)
    if isinstance(error, api.Unauthorized):
        return _no_credentials(what, error)
    if (found := find_cause([text, _status_name(error)])) is not None:
        # What is refused before it begins (FAILED_PRECONDITION, INVALID_ARGUMENT) does not pass by itself.
        if found.exit_code == EXIT_TRY_AGAIN and not isinstance(error, api.BadRequest):
            return TryAgain(f"{what}: {found.cause} ({text})\n  to do: {found.todo}")
        return ConfigError(
            f"{what}: {found.cause} ({text})", allowed="a project with quota, roles and APIs", todo=found.todo
        )
    if isinstance(error, api.ServerError):
        return TryAgain(f"{what}: no answer ({text})\n  to do: {_SAME_AGAIN}")
    if isinstance(error, api.ClientError):
        return ConfigError(
            f"{what}: refused ({text}){_fields(error)}",
            allowed="what the service takes; `shardline plan CONFIG` knows most of its rules",
            todo="correct the name or the field that the answer speaks of; deploy/terraform/project makes what a "
            "project needs",
        )
    return ShardlineError(f"{what}: {type(error).__name__}: {text}")


def _no_credentials(what: str, error: BaseException) -> ConfigError:
    return ConfigError(
        f"{what}: no valid credentials ({first_line(error)})",
        allowed="application default credentials",
        todo=_LOG_IN,
    )


def _status_name(error: Any) -> str:
    """Return the name of an answer's status: PERMISSION_DENIED of 403, RESOURCE_EXHAUSTED of 429, else nothing."""
    return {403: "PERMISSION_DENIED", 429: "RESOURCE_EXHAUSTED"}.get(int(error.code or 0), "")


def _fields(error: Any) -> str:
    """Return the paths of the fields that the service complains about (google.rpc.BadRequest), in words."""
    paths: list[str] = []
    for detail in getattr(error, "details", None) or []:
        violations = detail.get("fieldViolations", []) if isinstance(detail, dict) else detail.field_violations
        paths += [one.get("field", "") if isinstance(one, dict) else one.field for one in violations]
    named = ", ".join(dict.fromkeys(path for path in paths if path))
    return f" because of {named}" if named else ""
