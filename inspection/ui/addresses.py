"""The addresses that runs and their files have on this server."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from urllib.parse import quote

from contracts import storage
from inspection.page.links import console
from inspection.run.view import RunView


class NotFoundError(LookupError):
    """Nothing of that name is below the root."""


@dataclass(frozen=True, order=True)
class RunKey:
    """A run's names in addresses: of its line's folder, and its id."""

    line: str
    id: str

    @property
    def path(self) -> str:
        """As a part of an address."""
        return f"{_quoted(self.line)}/{_quoted(self.id)}"

    def log_address(self, stage: str, attempt: str) -> str:
        """Return the address of an attempt's log."""
        return f"/run/{self.path}/log/{_quoted(stage)}/{_quoted(attempt)}"


def key_of(line: str, run_id: str) -> RunKey:
    """Return the names of a run.

    Args:
        line: URI of its line's folder.
        run_id: Its id.
    """
    name = storage.local_path(line).name if storage.is_local(line) else line.rpartition("/")[2]
    return RunKey(name, run_id)


def links_of(key: RunKey, view: RunView) -> Callable[[str], str | None]:
    """Return the address of a URI: of logs and the profile's page here, of objects in Google's console.

    Other files have none: the server does not hand them on.
    """
    served = {
        attempt.log: key.log_address(stage.name, attempt.name)
        for stage in view.stages
        for attempt in stage.attempts
        if attempt.log is not None
    }
    if view.profile_page is not None:
        served[view.profile_page] = f"/run/{key.path}/profile"
    return lambda uri: served.get(uri) or console(uri)


def _quoted(name: str) -> str:
    return quote(name, safe="")
