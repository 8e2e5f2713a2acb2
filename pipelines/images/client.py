"""Client of Cloud Build by its discovery document; waits for an API that was enabled a moment ago."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

from contracts.errors import ShardlineError, TryAgain
from pipelines.google import explained, to_ours

_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.25, 15.0
_READ_RETRIES = 3
_HTTP_TOO_MANY = 429
_SCOPE = "https://www.googleapis.com/auth/cloud-platform"


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


@dataclass
class Client:
    """Cloud Build, by the credentials of the environment."""

    project: str
    limit_s: float
    """How long an API that is not enabled yet is waited for."""
    say: Callable[[str], None] = lambda _: None
    """Told what is waited for."""
    _service: Any = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._service is not None:
            self._service.close()

    def call(self, method: str, *, write: bool = False, **arguments: Any) -> dict[str, Any]:
        """Call a method of projects.locations.builds, and return its answer.

        Raises:
            Refused: The API said no.
            ShardlineError: No credentials (2) or no answer (75).
        """
        what = f"cloudbuild.projects.locations.builds.{method}"
        with explained(what, project=self.project):
            from googleapiclient.errors import HttpError
            from httplib2 import HttpLib2Error  # type: ignore[import-untyped]

            builds = self._open().projects().locations().builds()
            try:
                answer = getattr(builds, method)(**arguments).execute(num_retries=0 if write else _READ_RETRIES)
            except HttpError as error:
                raise _refused(error, what, self.project) from error
            except (OSError, HttpLib2Error) as error:
                raise TryAgain(f"{what}: no answer ({error})\n  to do: run the same command again") from error
            return dict(answer)

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
                if not (error.is_disabled or error.status == _HTTP_TOO_MANY):
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

    def _open(self) -> Any:
        if self._service is None:
            import google.auth
            from googleapiclient.discovery import build

            credentials, _ = google.auth.default(scopes=[_SCOPE])
            self._service = build(
                "cloudbuild", "v1", credentials=credentials, static_discovery=True, cache_discovery=False
            )
        return self._service


def _refused(error: Any, what: str, project: str) -> Refused:
    from google.api_core import exceptions as api
    from google.rpc.error_details_pb2 import ErrorInfo

    details = error.error_details if isinstance(error.error_details, list) else []
    infos = [item for item in details if str(item.get("@type", "")).endswith("google.rpc.ErrorInfo")]
    info = ErrorInfo(reason=infos[0].get("reason", ""), domain=infos[0].get("domain", "")) if infos else None
    status, text = int(error.status_code), str(error.reason)
    found = api.from_http_status(status, text, details=details, error_info=info)  # type: ignore[no-untyped-call]
    return Refused(status, infos[0].get("reason", "") if infos else "", text, to_ours(found, what, project=project))
