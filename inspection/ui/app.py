"""The routes of the server. Reading happens in threads: a handler that is no coroutine runs in one."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Mapping
from importlib import resources
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp

from contracts import storage
from contracts.errors import ShardlineError, UserError
from inspection.page import STYLE
from inspection.run.view import RunLine
from inspection.ui import compare_page, run_page
from inspection.ui.addresses import NotFoundError, RunKey
from inspection.ui.chart_data import chart_data
from inspection.ui.files import read_page, read_piece
from inspection.ui.guard import FOREIGN_POLICY, Guard
from inspection.ui.run_list import RowBook, list_page
from inspection.ui.shell import failure
from inspection.ui.store import RunStore, Shown

_TYPES = {".js": "text/javascript", ".css": "text/css"}
_STATIC = ("list.js", "place.js", "live.js", "charts.js", "uPlot.iife.min.js", "uPlot.min.css")
_OWN_STYLE = "ui.css"
_DIGITS = 19


def build_app(store: RunStore, *, hosts: frozenset[str] | None = None) -> ASGIApp:
    """Return the application.

    Args:
        store: The runs.
        hosts: Names that requests may be for; None: all.
    """
    handlers = _Handlers(store)
    run = "/run/{line}/{id}"
    routes = [
        Route("/", handlers.list_page),
        Route(run, handlers.run_page),
        Route(f"{run}/profile", handlers.profile_page),
        Route(f"{run}/log/{{stage}}/{{attempt}}", handlers.log_page),
        Route(f"{run}/log/{{stage}}/{{attempt}}/text", handlers.log_text),
        Route("/compare", handlers.compare_page),
        Route("/api/runs", handlers.runs),
        Route("/api/rows", handlers.rows),
        Route("/api/run/{line}/{id}", handlers.run),
        Route("/api/curves/{line}/{id}", handlers.curves),
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
    return Guard(Starlette(routes=routes, exception_handlers=errors), hosts)


class _Handlers:
    """What answers each route."""

    def __init__(self, store: RunStore) -> None:
        self._store = store
        self._rows = RowBook()
        self._files = _read_static()

    def list_page(self, request: Request) -> Response:
        problem = self._refresh()
        return HTMLResponse(list_page(storage.display(self._store.root), self._rows.since(""), problem))

    def rows(self, request: Request) -> Response:
        problem = self._refresh()
        return _json({**self._rows.since(request.query_params.get("since", "")), "problem": problem})

    def runs(self, request: Request) -> Response:
        listing = self._store.listing()
        found = [
            {**_finite(line), "address": f"/run/{key.path}"}
            for key, line in zip(listing.keys, listing.lines, strict=True)
        ]
        return _json({"root": self._store.root, "runs": found})

    def run_page(self, request: Request) -> Response:
        return HTMLResponse(run_page.run_page(self._show(request)))

    def run(self, request: Request) -> Response:
        shown = self._show(request)
        return _live(request, shown.body, shown.digest, ended=shown.ended)

    def curves(self, request: Request) -> Response:
        return _json(chart_data(self._show(request).view))

    def log_page(self, request: Request) -> Response:
        shown = self._show(request)
        stage = request.path_params["stage"]
        attempt = run_page.find_attempt(shown.view, stage, request.path_params["attempt"])
        piece = read_piece(self._store.root, attempt.log or "", end=_end(request))
        return HTMLResponse(run_page.log_page(shown, stage, attempt, piece))

    def log_text(self, request: Request) -> Response:
        view = self._show(request).view
        attempt = run_page.find_attempt(view, request.path_params["stage"], request.path_params["attempt"])
        piece = read_piece(self._store.root, attempt.log or "", end=_end(request))
        place = f"bytes {piece.start}-{piece.end}/{piece.size}"
        return PlainTextResponse(run_page.plain_text(piece), headers={"Shardline-Piece": place})

    def profile_page(self, request: Request) -> Response:
        uri = self._show(request).view.profile_page
        if uri is None:
            raise NotFoundError("this run has no page of a profiling run")
        content = read_page(self._store.root, uri)
        return HTMLResponse(content, headers={"Content-Security-Policy": FOREIGN_POLICY})

    def compare_page(self, request: Request) -> Response:
        a, b, body, digest = self._compare(request)
        return HTMLResponse(compare_page.compare_page(a, b, body, digest))

    def compare(self, request: Request) -> Response:
        a, b, body, digest = self._compare(request)
        return _live(request, body, digest, ended=a.ended and b.ended)

    async def static(self, request: Request) -> Response:
        try:
            content, media_type = self._files[request.path_params["name"]]
        except KeyError:
            raise HTTPException(404) from None
        return Response(content, media_type=media_type)

    def _compare(self, request: Request) -> tuple[Shown, Shown, str, str]:
        a, b = (self._store.show(_key(request.query_params.get(name, ""))) for name in ("a", "b"))
        listing = self._store.listing()
        lines: dict[RunKey, RunLine] = dict(zip(listing.keys, listing.lines, strict=True))
        body = compare_page.compare_body(a, b, (lines.get(a.key), lines.get(b.key)))
        # The curves are fetched when this changes.
        digest = hashlib.sha256("".join((body, a.digest, b.digest)).encode()).hexdigest()[:16]
        return a, b, body, digest

    def _show(self, request: Request) -> Shown:
        return self._store.show(RunKey(request.path_params["line"], request.path_params["id"]))

    def _refresh(self) -> str:
        """Take in what the runs are now; return why that cannot be known, or nothing."""
        try:
            self._rows.update(self._store.listing())
        except (ShardlineError, OSError) as error:
            return _words(error)
        return ""


def _live(request: Request, body: str, digest: str, *, ended: bool) -> Response:
    known = request.query_params.get("known") == digest
    return _json({"digest": digest, "ended": ended, "body": None if known else body})


def _key(text: str) -> RunKey:
    line, slash, run_id = text.rpartition("/")
    if not slash:
        raise NotFoundError("a comparison is of two runs: /compare?a=LINE/ID&b=LINE/ID")
    return RunKey(line, run_id)


def _end(request: Request) -> int | None:
    text = request.query_params.get("end", "")
    return int(text) if text.isascii() and text.isdigit() and len(text) < _DIGITS else None


def _finite(line: RunLine) -> dict[str, Any]:
    """Return a line as JSON knows it: what is no number is null."""
    return {
        name: None if isinstance(value, float) and not math.isfinite(value) else value
        for name, value in line.model_dump(mode="json").items()
    }


def _json(value: Any) -> Response:
    # What is half of a surrogate pair in a name has no UTF-8: escaped, it passes.
    return Response(json.dumps(value, allow_nan=False, separators=(",", ":")), media_type="application/json")


def _read_static() -> dict[str, tuple[bytes, str]]:
    folder = resources.files("inspection.ui") / "static"
    files = {name: ((folder / name).read_bytes(), _TYPES[name[name.rindex(".") :]]) for name in _STATIC}
    style = STYLE + (folder / _OWN_STYLE).read_text()
    return files | {"style.css": (style.encode(), _TYPES[".css"])}


def _words(error: Exception) -> str:
    return error.given if isinstance(error, UserError) else str(error) or type(error).__name__


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
    return _say(request, 503, "Cannot be read", _words(error))


def _fault(request: Request, error: Exception) -> Response:
    return _say(request, 500, "A fault of ours", f"{type(error).__name__}; where the server runs it says more.")
