"""What every answer carries, and which requests get none.

The server has no login: whoever reaches it reads every run below the root. On a loopback address that is this machine,
and pages of other sites in its browsers are kept out by the Host header (DNS rebinding gives them another name) and by
never allowing another origin to read an answer. Elsewhere the same holds, but for addresses as numbers: a site of
somebody else has a name, which it can make mean our address, so that names have to be ours.
"""

from __future__ import annotations

import re
import socket
from dataclasses import dataclass
from ipaddress import ip_address

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from contracts.errors import ConfigError

METHODS = ("GET", "HEAD")
# Scripts and styles are files of the server; uPlot sets styles by CSSOM, which no policy forbids. Widths of bars are
# style attributes, whose values are numbers of ours: only these are allowed, no <style> element.
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; style-src-attr 'unsafe-inline'; img-src 'self' data:; "
    "connect-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'"
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
_NAME = re.compile(r"[a-z0-9_]([a-z0-9_.-]*[a-z0-9_])?")


@dataclass(frozen=True)
class Hosts:
    """What the Host header of a request may be."""

    names: frozenset[str]
    """In lower case, without port; IPv6 addresses in brackets."""
    numbers: bool = False
    """Any address as a number too."""

    def allow(self, host: str) -> bool:
        """Whether a header's value is one of them."""
        name = _PORT.sub("", host.lower())
        return name in self.names or (self.numbers and _is_number(name))


def is_loopback(address: str) -> bool:
    """Whether an IP address is reached from this machine alone."""
    return ip_address(address.partition("%")[0]).is_loopback


class Guard:
    """The application behind its rules.

    Args:
        app: What answers.
        hosts: What the Host header may be.
    """

    def __init__(self, app: ASGIApp, hosts: Hosts) -> None:
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
        # Exactly one: of two, a proxy and we might each believe another.
        given = Headers(scope=scope).getlist("host")
        if len(given) != 1 or not self._hosts.allow(given[0]):
            text = "this server answers to its own names only; another one: shardline ui --allow-host NAME\n"
            return PlainTextResponse(text, status_code=400)
        if scope["method"] not in METHODS:
            text = "this server only shows: GET and HEAD\n"
            return PlainTextResponse(text, status_code=405, headers={"Allow": ", ".join(METHODS)})
        return None


def allowed_hosts(host: str, address: str, more: tuple[str, ...] = ()) -> Hosts:
    """Return what a server may be asked for.

    Args:
        host: As the user gave it: a name or an address.
        address: What it resolved to, where the server listens.
        more: Names that the user allows, as of a proxy.

    Raises:
        ConfigError: One of them is no name.
    """
    names = _LOCAL_NAMES | {_bracketed(name.lower()) for name in (host, address)} | {_checked(name) for name in more}
    if is_loopback(address):
        return Hosts(frozenset(names))
    return Hosts(frozenset(names | {socket.gethostname().lower()}), numbers=True)


def _checked(name: str) -> str:
    found = _bracketed(name.lower())
    if not (_is_number(found) or _NAME.fullmatch(found)):
        raise ConfigError(
            f"--allow-host {name}: this is no name of a machine",
            allowed="a name or an address as browsers ask for it, without http:// and port",
            todo="give --allow-host box.example, once for each name",
        )
    return found


def _bracketed(name: str) -> str:
    return f"[{name}]" if ":" in name and not name.startswith("[") else name


def _is_number(name: str) -> bool:
    try:
        ip_address(name[1:-1] if name.startswith("[") and name.endswith("]") else name)
    except ValueError:
        return False
    return True
