"""The routes of the server.

Waiting for a run or a list that is read holds no thread (`inspection.ui.shared`); what is made of it is made in
threads, and files are read in some of their own, so that a slow bucket keeps no page from being answered.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from importlib import resources
from typing import Any, TypeVar

import anyio
from anyio import to_thread
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp

from contracts import storage
from contracts.errors import ShardlineError
from inspection.page import STYLE
from inspection.page.chart_data import chart_data
from inspection.profile_page import make_profile_page
from inspection.run.door import first_line, plain
from inspection.run.history import History
from inspection.run.summary import RunLine
from inspection.run.view import AttemptView
from inspection.ui import compare_page, run_page
from inspection.ui.addresses import NotFoundError, RunKey
from inspection.ui.downloads import to_csv
from inspection.ui.files import Piece, plain_text, read_piece
from inspection.ui.guard import Guard, Hosts
from inspection.ui.history_page import find_history, history_page
from inspection.ui.live import News
from inspection.ui.run_list import RowBook, list_page
from inspection.ui.shell import failure
from inspection.ui.store import RunStore, Shown
from pages.profile import POLICY

_TYPES = {".js": "text/javascript", ".css": "text/css"}
_STATIC = (
    ("inspection.ui", ("ask.js", "clocks.js", "list.js", "place.js", "live.js", "charts.js")),
    ("pages", ("uPlot.iife.min.js", "uPlot.min.css", "draw.js")),
)
_OWN_STYLE = "ui.css"
# Of a file that has more bytes than this no machine knows.
_DIGITS = 19
# Answers from that many bytes on are compressed; the level costs a quarter of what the best one does.
_LEAST_PACKED, _PACKING = 500, 5
# Files that are read at a time.
_FILES = 8
_HOW_TO_COMPARE = f"a comparison is of 2 to {compare_page.MOST_RUNS} runs: /compare?run=LINE/ID&run=LINE/ID"
T = TypeVar("T")


def build_app(store: RunStore, *, hosts: Hosts) -> ASGIApp:
    """Return the application.

    Args:
        store: The runs.
        hosts: What requests may be for.
    """
    handlers = _Handlers(store)
    run = "/run/{line}/{id}"
    routes = [
        Route("/", handlers.list_page),
        Route(run, handlers.run_page),
        Route(f"{run}/profile", handlers.profile_page),
        Route(f"{run}/log/{{stage}}/{{attempt}}", handlers.log_page),
        Route(f"{run}/log/{{stage}}/{{attempt}}/text", handlers.log_text),
        Route("/line/{line}", handlers.history_page),
        Route("/compare", handlers.compare_page),
        Route("/api/runs", handlers.runs),
        Route("/api/runs.csv", handlers.runs_csv),
        Route("/api/rows", handlers.rows),
        Route("/api/run/{line}/{id}", handlers.run),
        Route("/api/curves/{line}/{id}", handlers.curves),
        Route("/api/line/{line}", handlers.history),
        Route("/api/compare", handlers.compare),
        Route("/static/{name}", handlers.static),
    ]
    errors: Mapping[Any, Callable[[Request, Any], Response]] = {
        HTTPException: _http_error,
        NotFoundError: _not_found,
        ShardlineError: _unreadable,
        OSError: _unreadable,
        Exception: _fault,
    }
    app = Starlette(routes=routes, exception_handlers=errors)
    return Guard(GZipMiddleware(app, minimum_size=_LEAST_PACKED, compresslevel=_PACKING), hosts)


class _Handlers:
    """What answers each route."""

    def __init__(self, store: RunStore) -> None:
        self._store = store
        self._rows = RowBook()
        self._static = _read_static()
        self._file_threads = anyio.CapacityLimiter(_FILES)

    async def list_page(self, request: Request) -> Response:
        problem = await self._refresh()
        return await _made(
            lambda: HTMLResponse(list_page(storage.display(self._store.root), self._rows.since(""), problem))
        )

    async def rows(self, request: Request) -> Response:
        problem = await self._refresh()
        since = request.query_params.get("since", "")
        return await _made(lambda: _json({**self._rows.since(since), "problem": problem}))

    async def runs(self, request: Request) -> Response:
        listing = await self._store.listing()
        return await _made(
            lambda: _json(
                {
                    "root": self._store.root,
                    "runs": [
                        {**_finite(line), "address": f"/run/{key.path}"}
                        for key, line in zip(listing.keys, listing.lines, strict=True)
                    ],
                }
            )
        )

    async def runs_csv(self, request: Request) -> Response:
        listing = await self._store.listing()
        headers = {"Content-Disposition": 'attachment; filename="runs.csv"'}
        return await _made(
            lambda: Response(to_csv(listing).encode(errors="replace"), media_type="text/csv", headers=headers)
        )

    async def run_page(self, request: Request) -> Response:
        shown = await self._show(request)
        return await _made(lambda: HTMLResponse(run_page.run_page(shown)))

    async def run(self, request: Request) -> Response:
        shown = await self._show(request)
        return await _made(lambda: _news(request, run_page.news_of(shown)))

    async def curves(self, request: Request) -> Response:
        view = (await self._show(request)).view
        return await _made(lambda: _json(chart_data(view)))

    async def log_page(self, request: Request) -> Response:
        shown, stage, attempt, piece = await self._piece(request)
        return await _made(lambda: HTMLResponse(run_page.log_page(shown, stage, attempt, piece)))

    async def log_text(self, request: Request) -> Response:
        _, _, _, piece = await self._piece(request)
        place = f"bytes {piece.start}-{piece.end}/{piece.size}"
        return PlainTextResponse(plain_text(piece), headers={"Shardline-Piece": place})

    async def profile_page(self, request: Request) -> Response:
        view = (await self._show(request)).view
        report, stage = view.profile, view.stage("profile")
        if report is None or stage is None or (uri := stage.uri) is None:
            raise NotFoundError("this run has no page of a profiling run")
        content = await self._file(lambda: make_profile_page(report, uri))
        return HTMLResponse(content, headers={"Content-Security-Policy": f"{POLICY}; frame-ancestors 'none'"})

    async def history_page(self, request: Request) -> Response:
        name, found = await self._history(request)
        return await _made(lambda: HTMLResponse(history_page(name, found)))

    async def history(self, request: Request) -> Response:
        _, found = await self._history(request)
        return await _made(lambda: _json(_finite(found)))

    async def compare_page(self, request: Request) -> Response:
        runs, news = await self._compare(request)
        return HTMLResponse(compare_page.compare_page(runs, news))

    async def compare(self, request: Request) -> Response:
        _, news = await self._compare(request)
        return _news(request, news)

    async def static(self, request: Request) -> Response:
        try:
            content, media_type = self._static[request.path_params["name"]]
        except KeyError:
            raise HTTPException(404) from None
        return Response(content, media_type=media_type)

    async def _history(self, request: Request) -> tuple[str, History]:
        name, listing = request.path_params["line"], await self._store.listing()
        return name, await self._file(lambda: find_history(name, listing))

    async def _compare(self, request: Request) -> tuple[list[Shown], News]:
        keys = [_key(text) for text in request.query_params.getlist("run")]
        if not 2 <= len(keys) <= compare_page.MOST_RUNS:
            raise NotFoundError(_HOW_TO_COMPARE)
        runs = [await self._store.show(key) for key in keys]
        lines = [await self._store.line(key) for key in keys]
        return runs, await _made(lambda: compare_page.compare(runs, lines))

    async def _show(self, request: Request) -> Shown:
        return await self._store.show(RunKey(request.path_params["line"], request.path_params["id"]))

    async def _piece(self, request: Request) -> tuple[Shown, str, AttemptView, Piece]:
        shown = await self._show(request)
        stage = request.path_params["stage"]
        attempt = run_page.find_attempt(shown.view, stage, request.path_params["attempt"])
        start, end = (_place(request, name) for name in ("start", "end"))
        piece = await self._file(lambda: read_piece(self._store.root, attempt.log or "", start=start, end=end))
        return shown, stage, attempt, piece

    async def _file(self, read: Callable[[], T]) -> T:
        return await to_thread.run_sync(read, limiter=self._file_threads)

    async def _refresh(self) -> str:
        """Take in what the runs are now; return why that cannot be known, or nothing."""
        try:
            listing = await self._store.listing()
        except (ShardlineError, OSError) as error:
            return first_line(error)
        await _made(lambda: self._rows.update(listing))
        return ""


async def _made(make: Callable[[], T]) -> T:
    """Return what is made of what was read: in a thread, since it may be large."""
    return await to_thread.run_sync(make)


def _news(request: Request, news: News) -> Response:
    return _json(news.since(request.query_params.get("known", "")))


def _key(text: str) -> RunKey:
    line, slash, run_id = text.rpartition("/")
    if not slash:
        raise NotFoundError(_HOW_TO_COMPARE)
    return RunKey(line, run_id)


def _place(request: Request, name: str) -> int | None:
    text = request.query_params.get(name, "")
    return int(text) if text.isascii() and text.isdigit() and len(text) < _DIGITS else None


def _finite(line: RunLine | History) -> dict[str, Any]:
    """Return a document as JSON knows it: what is no number is null."""
    found: dict[str, Any] = plain(line.model_dump(mode="python"))
    return found


def _json(value: Any) -> Response:
    # What is half of a surrogate pair in a name has no UTF-8: escaped, it passes.
    return Response(json.dumps(value, allow_nan=False, separators=(",", ":")), media_type="application/json")


def _read_static() -> dict[str, tuple[bytes, str]]:
    files = {
        name: ((resources.files(package) / "static" / name).read_bytes(), _TYPES[name[name.rindex(".") :]])
        for package, names in _STATIC
        for name in names
    }
    style = STYLE + (resources.files("inspection.ui") / "static" / _OWN_STYLE).read_text()
    return files | {"style.css": (style.encode(), _TYPES[".css"])}


def _say(request: Request, status: int, title: str, reason: str) -> Response:
    if request.url.path.startswith("/api/"):
        answer = _json({"problem": reason})
        answer.status_code = status
        return answer
    return HTMLResponse(failure(title, reason), status_code=status)


def _http_error(request: Request, error: HTTPException) -> Response:
    return _say(request, error.status_code, "Not here", f"There is no page {request.url.path}.")


def _not_found(request: Request, error: NotFoundError) -> Response:
    return _say(request, 404, "Not here", str(error))


def _unreadable(request: Request, error: Exception) -> Response:
    return _say(request, 503, "Cannot be read", first_line(error))


def _fault(request: Request, error: Exception) -> Response:
    return _say(request, 500, "A fault of ours", f"{type(error).__name__}; where the server runs it says more.")
