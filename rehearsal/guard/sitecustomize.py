"""Refuse look-ups and packets of this Python process to any other machine: imported by its name when Python starts.

Proxy variables lead what honours them to the local cloud; what opens a socket by itself would pass them by. In a
process whose PYTHONPATH begins with this folder it gets an error that says so, at once, by TCP or UDP: another
machine's name is not even looked up. Not seen: sockets of C libraries (gRPC's among them, which honours the proxy), and
Python started with -I, -E or -S.

Code that takes an OSError for "not there" would hide the refusal: each refused host is also a line of the file that
SHARDLINE_REHEARSAL_REFUSED names, which the local cloud reads. A sitecustomize of the user's own runs after this one.
"""

import contextlib
import importlib.machinery
import importlib.util
import ipaddress
import os
import socket
import sys

_FILE_VARIABLE = "SHARDLINE_REHEARSAL_REFUSED"
# Audit events with an address, and those with a name: https://docs.python.org/3/library/audit_events.html
_SENDS = ("socket.connect", "socket.sendto", "socket.sendmsg")
_LOOK_UPS = ("socket.getaddrinfo", "socket.gethostbyname")
# os.path: pathlib would be imported into every process for it.
_FOLDER = os.path.realpath(os.path.dirname(__file__))  # noqa: PTH120
_REVERSE_LOOK_UPS = ("socket.gethostbyaddr", "socket.getnameinfo")


class _Probe(socket.socket):
    """A socket of the guard's own; to connect it sends nothing."""


def _is_own_name(name: str) -> bool:
    """Whether a name is this machine's, with or without a domain: gloo and torchrun meet at it."""
    if name.lower() in ("localhost", socket.gethostname().lower()):
        return True
    label = name.split(".")[0].lower()
    return label != "localhost" and label == socket.gethostname().split(".")[0].lower()


def _is_here(host: str) -> bool:
    """Whether an address or a name is this machine's."""
    if not host or _is_own_name(host):
        return True
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
        if address.is_loopback or address.is_unspecified:
            return True
        family = socket.AF_INET if address.version == 4 else socket.AF_INET6
        with _Probe(family, socket.SOCK_DGRAM) as probe:
            # A packet to an own address leaves from that address; multicast and broadcast can be bound as well.
            probe.connect((host, 9))
            return bool(probe.getsockname()[0].partition("%")[0] == str(address))
    except (OSError, ValueError):
        return False


def _is_name(host: str) -> bool:
    try:
        ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return True
    return False


def _note(host: str) -> None:
    if path := os.environ.get(_FILE_VARIABLE):
        # One write of one line: lines of several processes do not mix.
        with contextlib.suppress(OSError), open(path, "ab", buffering=0) as stream:
            stream.write(host.encode(errors="replace").replace(b"\n", b" ") + b"\n")


def _refuse(event: str, arguments: tuple[object, ...]) -> None:
    if event in _SENDS:
        address = arguments[1]
        if isinstance(address, tuple) and not isinstance(arguments[0], _Probe) and not _is_here(str(address[0])):
            _note(str(address[0]))
            raise ConnectionRefusedError(f"{address[0]}:{address[1]} is outside this rehearsal: its guard refuses it")
    elif event in _LOOK_UPS or event in _REVERSE_LOOK_UPS:
        given = arguments[0][0] if isinstance(arguments[0], tuple) else arguments[0]
        name = given.decode() if isinstance(given, bytes | bytearray) else str(given or "")
        # An address is no question to anybody, unless it is its name that is wanted.
        if (event in _REVERSE_LOOK_UPS or _is_name(name)) and not _is_here(name):
            _note(name)
            text = f"{name} is outside this rehearsal: its guard does not look it up"
            raise socket.gaierror(socket.EAI_NONAME, text)


def _run_users_own() -> None:
    """Run the sitecustomize that this file hides, if there is one; it is the module of that name then."""
    hidden = [path for path in sys.path if os.path.realpath(path) != _FOLDER]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", hidden)
    if spec is not None and spec.loader is not None:
        module = importlib.util.module_from_spec(spec)
        sys.modules[spec.name] = module
        spec.loader.exec_module(module)


sys.addaudithook(_refuse)
_run_users_own()
