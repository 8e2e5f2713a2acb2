"""Network guard of Python processes: refuses DNS look-ups and packets to other machines. Python imports it at start.

Clients that honour proxy variables reach the local cloud; others would open sockets to the outside. In a process whose
PYTHONPATH begins with this folder, those fail at once with an error, for TCP and UDP. Not covered: sockets of C
libraries (gRPC's honours the proxy), and Python started with -I, -E or -S.

Code may swallow the OSError, so each refused host is also appended to the file SHARDLINE_REHEARSAL_REFUSED, which the
local cloud reads. A sitecustomize of the user runs after this one.
"""

import contextlib
import importlib.machinery
import importlib.util
import ipaddress
import os
import socket
import sys

_FILE_VARIABLE = "SHARDLINE_REHEARSAL_REFUSED"
# Audit events with an address, and with a name: https://docs.python.org/3/library/audit_events.html
_SENDS = ("socket.connect", "socket.sendto", "socket.sendmsg")
_LOOK_UPS = ("socket.getaddrinfo", "socket.gethostbyname")
# Not pathlib, which would be imported into every process.
_FOLDER = os.path.realpath(os.path.dirname(__file__))  # noqa: PTH120
_REVERSE_LOOK_UPS = ("socket.gethostbyaddr", "socket.getnameinfo")


class _Probe(socket.socket):
    """The guard's own UDP socket; its connect sends nothing."""


def _is_own_name(name: str) -> bool:
    """Return whether a name is this machine's, with or without a domain: gloo and torchrun use it."""
    if name.lower() in ("localhost", socket.gethostname().lower()):
        return True
    label = name.split(".")[0].lower()
    return label != "localhost" and label == socket.gethostname().split(".")[0].lower()


def _is_here(host: str) -> bool:
    """Return whether an address or a name is this machine's."""
    if not host or _is_own_name(host):
        return True
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
        if address.is_loopback or address.is_unspecified:
            return True
        family = socket.AF_INET if address.version == 4 else socket.AF_INET6
        with _Probe(family, socket.SOCK_DGRAM) as probe:
            # The source address of a packet to an own address is that address. Binding would accept multicast, too.
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
        # A single write per line: lines of several processes do not mix.
        with contextlib.suppress(OSError), open(path, "ab", buffering=0) as stream:
            stream.write(host.encode(errors="replace").replace(b"\n", b" ") + b"\n")


def _refuse(event: str, arguments: tuple[object, ...]) -> None:
    if event in _SENDS:
        address = arguments[1]
        if isinstance(address, tuple) and not isinstance(arguments[0], _Probe) and not _is_here(str(address[0])):
            _note(str(address[0]))
            raise ConnectionRefusedError(f"{address[0]}:{address[1]} is outside this rehearsal: its guard refuses it")
    elif event in _LOOK_UPS or event in _REVERSE_LOOK_UPS:
        host = arguments[0][0] if isinstance(arguments[0], tuple) else arguments[0]
        name = host.decode() if isinstance(host, bytes | bytearray) else str(host or "")
        # Looking up an address sends nothing, except in reverse look-ups.
        if (event in _REVERSE_LOOK_UPS or _is_name(name)) and not _is_here(name):
            _note(name)
            text = f"{name} is outside this rehearsal: its guard does not look it up"
            raise socket.gaierror(socket.EAI_NONAME, text)


def _run_users_own() -> None:
    """Run the sitecustomize that this file shadows, if there is one; it replaces this module in sys.modules."""
    hidden = [path for path in sys.path if os.path.realpath(path) != _FOLDER]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", hidden)
    if spec is not None and spec.loader is not None:
        module = importlib.util.module_from_spec(spec)
        sys.modules[spec.name] = module
        spec.loader.exec_module(module)


sys.addaudithook(_refuse)
_run_users_own()
