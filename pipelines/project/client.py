"""Client of the APIs that set up a project: calls by the discovery documents, waits for what takes time to be known.

A new API answers 403 for a while, a new account is unknown to policies for a while, and changes are operations. All of
that is waited for, with one limit each.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

from contracts.errors import ShardlineError, TryAgain
from pipelines.google import explained, to_ours

# https://cloud.google.com/iam/docs/access-change-propagation: 2 minutes as a rule, 7 and more at times.
LIMIT_S = 600.0
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.25, 15.0
_READ_RETRIES = 3
_HTTP_TOO_MANY = 429
_SCOPE = "https://www.googleapis.com/auth/cloud-platform"
# Of the discovery documents that are asked by.
VERSIONS = {
    "serviceusage": "v1",
    "cloudresourcemanager": "v3",
    "iam": "v1",
    "storage": "v1",
    "artifactregistry": "v1",
    "cloudbuild": "v1",
    "compute": "v1",
    "cloudbilling": "v1",
    "billingbudgets": "v1",
    "aiplatform": "v1",
    "dataflow": "v1b3",
    "logging": "v2",
}


class Refused(Exception):
    """An API's no, for whoever can do something about it; `to_ours` is what a user is told.

    Attributes:
        status: HTTP status.
        reason: Of google.rpc.ErrorInfo, as SERVICE_DISABLED; "" where there is none.
        text: The message.
    """

    def __init__(self, status: int, reason: str, text: str, error: ShardlineError) -> None:
        super().__init__(text)
        self.status, self.reason, self.text, self.error = status, reason, text, error

    @property
    def is_disabled(self) -> bool:
        """Whether the API is not enabled, or not yet."""
        return self.status == 403 and (self.reason == "SERVICE_DISABLED" or "it is disabled" in self.text)

    @property
    def is_unknown_member(self) -> bool:
        """Whether a policy names an account that is not known, or not yet."""
        return self.status == 400 and "does not exist" in self.text


@dataclass
class Client:
    """The APIs, by the credentials of the environment."""

    project: str
    region: str
    limit_s: float = LIMIT_S
    """How long each thing is waited for."""
    say: Callable[[str], None] = lambda _: None
    """Told what is waited for."""
    _services: dict[str, Any] = field(default_factory=dict)
    _found_credentials: Any = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for service in self._services.values():
            service.close()
        self._services.clear()

    def call(self, api: str, method: str, *, write: bool = False, **arguments: Any) -> dict[str, Any]:
        """Call a method, as in ("compute", "networks.get"), and return its answer, {} where it has none.

        Raises:
            Refused: The API said no.
            ShardlineError: No credentials (2) or no answer (75).
        """
        found = self.read(api, method, write=write, **arguments)
        return dict(found) if isinstance(found, Mapping) else {}

    def read(self, api: str, method: str, *, write: bool = False, **arguments: Any) -> Any:
        """Call a method, and return its answer as it is: bytes of an object.

        Raises:
            Refused: The API said no.
            ShardlineError: No credentials (2) or no answer (75).
        """
        what = f"{api}.{method}"
        with explained(what, project=self.project):
            from googleapiclient.errors import HttpError
            from httplib2 import HttpLib2Error  # type: ignore[import-untyped]

            target = self._service(api)
            *collections, name = method.split(".")
            for collection in collections:
                target = getattr(target, collection)()
            try:
                return getattr(target, name)(**arguments).execute(num_retries=0 if write else _READ_RETRIES)
            except HttpError as error:
                raise _refused(error, what, self.project) from error
            except (OSError, HttpLib2Error) as error:
                raise TryAgain(f"{what}: no answer ({error})\n  to do: run the same command again") from error

    def wait(self, what: str, ask: Callable[[], Any]) -> Any:
        """Return the first answer that is neither None nor a passing refusal.

        Args:
            what: What is waited for, for messages.
            ask: Returns None while it is to be asked again.

        Raises:
            TryAgain: The limit is over.
        """
        deadline, pause, told, last = time.monotonic() + self.limit_s, _FIRST_PAUSE_S, False, ""
        while True:
            try:
                if (found := ask()) is not None:
                    return found
            except Refused as error:
                if not (error.is_disabled or error.is_unknown_member or error.status == _HTTP_TOO_MANY):
                    raise
                last = f" (the last answer: {error.text})"
            if time.monotonic() + pause > deadline:
                raise TryAgain(
                    f"{what} is not known after {self.limit_s:g} s{last}\n  to do: run the same command again in some "
                    "minutes: what is made stays, and it goes on from there"
                )
            if not told:
                self.say(f"waiting for {what}")
                told = True
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE_S)

    def finish(self, api: str, operation: Mapping[str, Any], what: str) -> None:
        """Wait until an operation is done.

        Raises:
            ShardlineError: It failed (70), or the limit is over (75).
        """

        def ask() -> Mapping[str, Any] | None:
            found = self._look_at(api, operation)
            return found if found.get("done") or found.get("status") == "DONE" else None

        found = operation if operation.get("done") or operation.get("status") == "DONE" else self.wait(what, ask)
        if failure := found.get("error"):
            raise ShardlineError(f"{what} failed: {failure}")

    def _look_at(self, api: str, operation: Mapping[str, Any]) -> dict[str, Any]:
        name = operation["name"]
        if api == "compute":
            region = str(operation.get("region", "")).rpartition("/")[2]
            if region:
                return self.call(api, "regionOperations.get", project=self.project, region=region, operation=name)
            return self.call(api, "globalOperations.get", project=self.project, operation=name)
        method = "operations.get" if api == "serviceusage" else "projects.locations.operations.get"
        return self.call(api, method, name=name)

    def _service(self, api: str) -> Any:
        if api not in self._services:
            from googleapiclient.discovery import build

            options = None
            if api == "aiplatform":
                from google.api_core.client_options import ClientOptions

                options = ClientOptions(api_endpoint=f"https://{self.region}-aiplatform.googleapis.com")
            self._services[api] = build(
                api,
                VERSIONS[api],
                credentials=self._credentials(),
                static_discovery=True,
                cache_discovery=False,
                client_options=options,
            )
        return self._services[api]

    def _credentials(self) -> Any:
        if self._found_credentials is None:
            import google.auth

            self._found_credentials, _ = google.auth.default(scopes=[_SCOPE])
        return self._found_credentials


def _refused(error: Any, what: str, project: str) -> Refused:
    from google.api_core import exceptions as api
    from google.rpc.error_details_pb2 import ErrorInfo

    details = error.error_details if isinstance(error.error_details, list) else []
    infos = [item for item in details if str(item.get("@type", "")).endswith("google.rpc.ErrorInfo")]
    info = ErrorInfo(reason=infos[0].get("reason", ""), domain=infos[0].get("domain", "")) if infos else None
    status, text = int(error.status_code), str(error.reason)
    found = api.from_http_status(status, text, details=details, error_info=info)  # type: ignore[no-untyped-call]
    return Refused(status, infos[0].get("reason", "") if infos else "", text, to_ours(found, what, project=project))
