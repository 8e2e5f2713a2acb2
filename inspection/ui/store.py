"""The runs below a root: found by listing, read by one thread at a time, the newest read remembered within a bound."""

from __future__ import annotations

import hashlib
import threading
import time
from collections import OrderedDict
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass

from contracts import storage
from contracts.config import STAGES
from contracts.result import RUNS_FOLDER
from inspection.page import render_header, render_sections
from inspection.run.documents import Documents
from inspection.run.find import RunPlace, list_places
from inspection.run.read import CONTACT_SHEET, OF_TASK, TASK_PICTURES, read_run
from inspection.run.summary import RunLine, RunLister, read_line
from inspection.run.view import RunView
from inspection.ui.addresses import NotFoundError, RunKey, key_of, links_of
from inspection.ui.compare import count_data
from inspection.ui.files import read_tail
from inspection.ui.shared import Shared
from inspection.ui.weight import weigh
from pages.markup import Html
from pages.rendering import render
from pages.ui.shell import LogTail

# Of all runs that are remembered: their pages, and what routes take of their views, as Python holds them.
CACHE_BYTES = 64 << 20
# A run that has ended changes when somebody verifies or registers its export.
ENDED_FRESH_S = 60.0
# What was read is good for that long, however quickly it was read.
_LEAST_FRESH_S = 1.0
# In a bucket: events are copied there every 30 s, and each listing costs money.
_BUCKET_FRESH_S = 10.0
# Runs that are read at a time; one that hangs takes one of them.
_READERS = 8
# Who has a list already gets that one when a bucket takes longer than this.
_PATIENCE_S = 0.5
_ENDED = ("succeeded", "failed", "interrupted", "stopped", "unknown", "nothing to do")
# A stage in one of these states has its last words on the page.
_TALKING = ("running", "failed", "interrupted", "stopped")
# Parts with images, which are read once.
_PICTURED = ("pictures", "task_pictures", "task_parts")


@dataclass(frozen=True)
class Shown:
    """A run as it was read, and its page."""

    key: RunKey
    view: RunView
    """Without the documents that the page alone is made of."""
    parts: dict[str, Html]
    """Of the page: its header, and the sections by their ids. No clock is in them: see `clocks`."""
    data: list[tuple[str, int]]
    """Samples of each split and class, and what else is counted of the data."""
    curves_digest: str
    """Of curves and marks: another one means that the charts have changed."""
    bytes: int
    """What it takes to remember all this."""

    @property
    def ended(self) -> bool:
        """Whether the run goes on no more."""
        return self.view.state in _ENDED

    def clocks(self) -> dict[str, float]:
        """Return how long what runs has run by now, in seconds, by the names of its figures."""
        if self.view.state != "running":
            return {}
        running = {
            f"stages.{each.name}.wall_s": each.started_at for each in self.view.stages if each.state == "running"
        }
        started = {"overview.duration": self.view.started_at, **running}
        now = time.time()
        return {name: round(now - at, 1) for name, at in started.items() if at is not None}


@dataclass(frozen=True)
class Listing:
    """All runs, the newest first."""

    lines: list[RunLine]
    keys: list[RunKey]
    """Of each line."""


class RunStore:
    """What the server knows of the runs below a root.

    Args:
        root: Path or URI.
        cache_bytes: How much it remembers at most, but at least the run that was read last.
    """

    def __init__(self, root: str, *, cache_bytes: int = CACHE_BYTES) -> None:
        self.root = storage.normalise(root)
        self._cache_bytes = cache_bytes
        self._documents = Documents()
        self._lister = RunLister(root, documents=self._documents)
        # Of their own: a list is shown while all readers wait for a bucket.
        listers = ThreadPoolExecutor(2, thread_name_prefix="list")
        self._readers = ThreadPoolExecutor(_READERS, thread_name_prefix="read")
        self._least_fresh_s = _LEAST_FRESH_S if storage.is_local(self.root) else _BUCKET_FRESH_S
        self._listing = Shared(
            self._list, lambda _, took_s: max(self._least_fresh_s, 3 * took_s), listers, patience_s=_PATIENCE_S
        )
        self._places = Shared(self._find, lambda _, took_s: max(_LEAST_FRESH_S, took_s), listers)
        self._known: dict[RunKey, RunPlace] = {}
        self._runs: OrderedDict[RunKey, _Remembered] = OrderedDict()
        self._lock = threading.Lock()

    async def listing(self) -> Listing:
        """Return all runs: as they were last, where listing them anew takes longer than a moment."""
        return await self._listing.get()

    async def show(self, key: RunKey) -> Shown:
        """Return a run and its page.

        Raises:
            NotFoundError: There is none.
        """
        remembered = await self._remembered(key)
        try:
            shown = await remembered.shared.get()
        except NotFoundError:
            # It has been removed: looked for again when somebody asks again.
            with self._lock:
                self._runs.pop(key, None)
            self._known = {known: place for known, place in self._known.items() if known != key}
            raise
        with self._lock:
            remembered.bytes = shown.bytes
            self._forget()
        return shown

    async def line(self, key: RunKey) -> RunLine:
        """Return a run's line in the list, whatever the others are like; raises as `show`."""
        return await (await self._remembered(key)).line.get()

    async def _remembered(self, key: RunKey) -> _Remembered:
        place = await self._place(key)
        with self._lock:
            remembered = self._runs.setdefault(key, _Remembered(key, place, self._readers, self._documents, self.root))
            self._runs.move_to_end(key)
        return remembered

    def _forget(self) -> None:
        """Drop what was asked for longest ago until the rest is within the bound."""
        total = sum(remembered.bytes for remembered in self._runs.values())
        while total > self._cache_bytes and len(self._runs) > 1:
            _, dropped = self._runs.popitem(last=False)
            total -= dropped.bytes

    async def _place(self, key: RunKey) -> RunPlace:
        # A run that was found once is looked for again only when a listing lacks it or it cannot be read.
        known = self._known
        if key not in known:
            known = self._known = await self._places.get()
        try:
            return known[key]
        except KeyError:
            raise NotFoundError(f"no run {key.line}/{RUNS_FOLDER}/{key.id} below {self.root}") from None

    def _find(self) -> dict[RunKey, RunPlace]:
        return {key_of(place.line, place.run_id): place for place in list_places(self.root)}

    def _list(self) -> Listing:
        lines = self._lister.read()
        keys = [key_of(line.line, line.id) for line in lines]
        # A row's link works at once; what is in no row any more is looked for again.
        self._known = {key: RunPlace(line.line, line.id) for key, line in zip(keys, lines, strict=True)}
        return Listing(lines, keys)


class _Remembered:
    """A run and what was last read of it."""

    def __init__(self, key: RunKey, place: RunPlace, pool: Executor, documents: Documents, root: str) -> None:
        self._documents = documents
        self._root = root
        self.key = key
        self.place = place
        self.bytes = 0
        least_s = _LEAST_FRESH_S if storage.is_local(place.line) else _BUCKET_FRESH_S
        self.shared = Shared(self._read, lambda shown, took_s: _good_for_s(shown.view.state, took_s, least_s), pool)
        self.line = Shared(
            lambda: read_line(place, documents), lambda line, took_s: _good_for_s(line.state, took_s, least_s), pool
        )
        self._last: Shown | None = None

    def _read_run(self, *, pictures: bool = True, first_slot: bool = True) -> RunView:
        return read_run(self.place, pictures=pictures, first_slot=first_slot, cache=self._documents)

    def _read(self) -> Shown:
        if not storage.exists(self.place.start_uri):
            self._last = None
            raise NotFoundError(f"the run {self.key.line}/{RUNS_FOLDER}/{self.key.id} is there no more")
        last = self._last
        # Pictures are decoded out of shards: once, as long as the stages that they come from are what they were.
        seen = None if last is None else last.view.first_slot
        view = self._read_run(pictures=last is None or not last.view.pictures, first_slot=seen is None)
        view = view if seen is None else view.model_copy(update={"first_slot": seen})
        if last is not None and last.view.pictures:
            if _sources(view) == _sources(last.view):
                # Why one of them could not be read stays true with them.
                unread = [each for each in last.view.missing if each.what in (CONTACT_SHEET, OF_TASK, TASK_PICTURES)]
                kept = {name: getattr(last.view, name) for name in _PICTURED}
                kept["missing"] = [*view.missing, *unread]
                view = view.model_copy(update=kept)
            else:
                view = self._read_run()
        still = _without_clock(view)
        sections = render_sections(still, href=links_of(self.key, view))
        overview = {"overview": sections.pop("overview"), "tail": _tail(self.key, self._root, view)}
        parts = {"header": render_header(still, live=True), **overview, **sections}
        drawn = "".join(each.model_dump_json() for each in (view.curves, view.marks) if each is not None)
        data = count_data(view.data)
        view = _without_documents(view)
        taken = weigh(view) + weigh(parts) + weigh(data)
        self._last = Shown(self.key, view, parts, data, digest_of(drawn), taken)
        return self._last


def digest_of(text: str) -> str:
    """Return some letters that differ where the text does."""
    return hashlib.sha256(text.encode()).hexdigest()[:10]


def _without_clock(view: RunView) -> RunView:
    """Return a view in which what runs lasted until its last word: nothing changes unless something was written."""
    if view.state != "running":
        return view
    stages = []
    for stage in view.stages:
        ended = [attempt.ended_at for attempt in stage.attempts if attempt.ended_at is not None]
        if stage.state == "running" and stage.started_at is not None and ended:
            stage = stage.model_copy(update={"wall_s": round(max(ended) - stage.started_at, 3)})
        stages.append(stage)
    lasted = None
    if view.started_at is not None and view.last_word_at is not None:
        lasted = round(max(0.0, view.last_word_at - view.started_at), 3)
    return view.model_copy(update={"wall_s": lasted, "stages": stages})


def _tail(key: RunKey, root: str, view: RunView) -> Html:
    """Return what the stage that runs, or ended the run, printed last; hidden: there is none, or it said nothing.

    Of a stage whose log is not here its messages stand for it.
    """
    for stage in reversed(view.stages):
        if stage.state in _TALKING and stage.attempts:
            last = stage.attempts[-1]
            if last.log is None:
                return render(LogTail(stage.name, "", last.said))
            return render(LogTail(stage.name, key.log_address(stage.name, last.name), read_tail(root, last.log)))
    return render(LogTail())


def _without_documents(view: RunView) -> RunView:
    """Return what routes and the next reading take of a view: manifests may be large, and the page is made."""
    dropped = ("data", "goodput", "money", "checkpoint", "evaluation", "export", "registration")
    return view.model_copy(update={**dict.fromkeys(dropped), "verifications": []})


def _good_for_s(state: str, took_s: float, least_s: float) -> float:
    # A run that goes on is read a quarter of the time at most, however much there is to read.
    return ENDED_FRESH_S if state in _ENDED else max(least_s, 3 * took_s)


def _sources(view: RunView) -> list[str | None]:
    return [stage.manifest_sha256 for name in STAGES if (stage := view.stage(name)) is not None]
