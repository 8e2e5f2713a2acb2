"""The runs below a root: found by listing, read by one thread at a time, the newest read remembered within a bound."""

from __future__ import annotations

import hashlib
import threading
from collections import OrderedDict
from dataclasses import dataclass

from contracts import storage
from contracts.config import STAGES
from contracts.result import RUNS_FOLDER
from inspection.page import navigation, render_body, render_header
from inspection.run.find import RunPlace, list_places
from inspection.run.read import read_run
from inspection.run.summary import RunLister
from inspection.run.view import RunLine, RunView
from inspection.ui.addresses import NotFoundError, RunKey, key_of, links_of
from inspection.ui.shared import Shared
from pages.markup import join

# Of all runs that are remembered: their pages and views, as text.
CACHE_BYTES = 64 << 20
# A run that has ended changes when somebody verifies or registers its export.
ENDED_FRESH_S = 60.0
_ENDED = ("succeeded", "failed", "stopped")


@dataclass(frozen=True)
class Shown:
    """A run as it was read, and its page."""

    key: RunKey
    view: RunView
    body: str
    digest: str
    """Of the page: another one means that something has changed."""

    @property
    def ended(self) -> bool:
        """Whether the run goes on no more."""
        return self.view.state in _ENDED


@dataclass(frozen=True)
class Listing:
    """All runs, the newest first."""

    lines: list[RunLine]
    keys: list[RunKey]
    """Of each line."""


class RunStore:
    """What the server knows of the runs below a root; safe for many threads.

    Args:
        root: Path or URI.
        cache_bytes: How much it remembers at most, but at least the run that was read last.
    """

    def __init__(self, root: str, *, cache_bytes: int = CACHE_BYTES) -> None:
        self.root = storage.normalise(root)
        self._cache_bytes = cache_bytes
        self._lister = RunLister(root)
        self._listing = Shared(self._list, lambda _, took_s: max(1.0, 3 * took_s))
        self._places = Shared(self._find, lambda _, took_s: max(1.0, took_s))
        self._known: dict[RunKey, RunPlace] = {}
        self._runs: OrderedDict[RunKey, _Remembered] = OrderedDict()
        self._lock = threading.Lock()

    def listing(self) -> Listing:
        """Return all runs."""
        return self._listing.get()

    def show(self, key: RunKey) -> Shown:
        """Return a run and its page.

        Raises:
            NotFoundError: No listing has named it.
        """
        place = self._place(key)
        with self._lock:
            remembered = self._runs.setdefault(key, _Remembered(key, place))
            self._runs.move_to_end(key)
        shown = remembered.shared.get()
        with self._lock:
            remembered.bytes = len(shown.body) * 2
            self._forget()
        return shown

    def _forget(self) -> None:
        """Drop what was asked for longest ago until the rest is within the bound."""
        total = sum(remembered.bytes for remembered in self._runs.values())
        while total > self._cache_bytes and len(self._runs) > 1:
            _, dropped = self._runs.popitem(last=False)
            total -= dropped.bytes

    def _place(self, key: RunKey) -> RunPlace:
        # A run that was found once is looked for again only when it cannot be read.
        if key not in self._known:
            self._known = self._places.get()
        try:
            return self._known[key]
        except KeyError:
            raise NotFoundError(f"no run {key.line}/{RUNS_FOLDER}/{key.id} below {self.root}") from None

    def _find(self) -> dict[RunKey, RunPlace]:
        return {key_of(place.line, place.run_id): place for place in list_places(self.root)}

    def _list(self) -> Listing:
        lines = self._lister.read()
        keys = [key_of(line.line, line.id) for line in lines]
        # A row's link works at once.
        self._known = {**self._known, **{k: RunPlace(line.line, line.id) for k, line in zip(keys, lines, strict=True)}}
        return Listing(lines, keys)


class _Remembered:
    """A run and what was last read of it."""

    def __init__(self, key: RunKey, place: RunPlace) -> None:
        self.key = key
        self.place = place
        self.bytes = 0
        self.shared = Shared(self._read, _fresh_s)
        self._last: Shown | None = None

    def _read(self) -> Shown:
        last = self._last
        # Pictures are decoded out of shards: once, as long as the stages that they come from are what they were.
        view = read_run(self.place, pictures=last is None or not last.view.pictures)
        if last is not None and last.view.pictures:
            if _sources(view) == _sources(last.view):
                view = view.model_copy(update={"pictures": last.view.pictures, "worst": last.view.worst})
            else:
                view = read_run(self.place)
        main = render_body(view, href=links_of(self.key, view))
        # Not of the header: it says when this was read.
        digest = hashlib.sha256(f"{view.state} {main}".encode()).hexdigest()[:16]
        self._last = Shown(self.key, view, join([render_header(view), navigation(), main]), digest)
        return self._last


def _fresh_s(shown: Shown, took_s: float) -> float:
    # A run that goes on is read a quarter of the time at most, however much there is to read.
    return ENDED_FRESH_S if shown.ended else max(1.0, 3 * took_s)


def _sources(view: RunView) -> list[str | None]:
    return [stage.manifest_sha256 for name in STAGES if (stage := view.stage(name)) is not None]
