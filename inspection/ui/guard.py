"""What every answer carries, and which requests get none.

The server has no login: whoever reaches it reads every run below the root. On a loopback address that is this machine,
and pages of other sites in its browsers are kept out by the Host header (DNS rebinding gives them another name) and by
never allowing another origin to read an answer.
"""

from __future__ import annotations

import re
from ipaddress import ip_address

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

METHODS = ("GET", "HEAD")
# Scripts and styles are files of the server; uPlot sets styles by CSSOM, which no policy forbids. Widths of bars are
# style attributes, whose values are numbers of ours: only these are allowed, no <style> element.
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; style-src-attr 'unsafe-inline'; img-src 'self' data:; "
    "connect-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'"
)
# Of a document that a run brings: nothing in it runs, asks for anything or shares our origin.
FOREIGN_POLICY = (
    "sandbox; default-src 'none'; style-src 'unsafe-inline'; img-src data:; frame-ancestors 'none'; base-uri 'none'; "
    "form-action 'none'"
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-store",
}
_LOCAL_NAMES = frozenset({"localhost", "127.0.0.1", "[::1]"})
_PORT = re.compile(r":\d+$")


def is_loopback(address: str) -> bool:
    """Whether an IP address is reached from this machine alone."""
    return ip_address(address.partition("%")[0]).is_loopback


class Guard:
    """The application behind its rules.

    Args:
        app: What answers.
        hosts: Names that the Host header may have, without port, IPv6 in brackets; None: every name.
    """

    def __init__(self, app: ASGIApp, hosts: frozenset[str] | None) -> None:
        self._app = app
        self._hosts = hosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            return

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        app = self._refusal(scope) or self._app
        await app(scope, receive, send_guarded)

    def _refusal(self, scope: Scope) -> ASGIApp | None:
        if self._hosts is not None:
            # Exactly one: of two, a proxy and we might each believe another.
            given = [_PORT.sub("", host.lower()) for host in Headers(scope=scope).getlist("host")]
            if len(given) != 1 or given[0] not in self._hosts:
                return PlainTextResponse("this server answers to its own address only\n", status_code=400)
        if scope["method"] not in METHODS:
            text = "this server only shows: GET and HEAD\n"
            return PlainTextResponse(text, status_code=405, headers={"Allow": ", ".join(METHODS)})
        return None


def allowed_hosts(host: str, address: str) -> frozenset[str] | None:
    """Return the names by which a server may be asked for; None: whoever reaches it may use any.

    Args:
        host: As the user gave it: a name or an address.
        address: What it resolved to, where the server listens.
    """
    if not is_loopback(address):
        return None
    return _LOCAL_NAMES | {f"[{name}]" if ":" in name else name for name in (host.lower(), address)}
