"""Refuse connections of this Python process to any other machine. Python imports this file at its start by its name.

Proxy variables lead what honours them to the local cloud; what opens a socket by itself would pass them by. In a
process whose PYTHONPATH begins with this folder it gets an error that says so, at once: another machine's name is not
even looked up. Sockets of C libraries (gRPC's among them, which honours the proxy) are not seen.

Code that takes an OSError for "not there" would hide the refusal: each refused host is also a line of the file that
SHARDLINE_REHEARSAL_REFUSED names, which the local cloud reads.
"""

import contextlib
import ipaddress
import os
import socket
import sys

_FILE_VARIABLE = "SHARDLINE_REHEARSAL_REFUSED"


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
        # Nothing but an address of this machine can be bound.
        with socket.socket(socket.AF_INET if address.version == 4 else socket.AF_INET6, socket.SOCK_DGRAM) as probe:
            probe.bind((host, 0))
    except (OSError, ValueError):
        return False
    return True


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
    if event in ("socket.connect", "socket.sendto"):
        address = arguments[1]
        if isinstance(address, tuple) and not _is_here(str(address[0])):
            _note(str(address[0]))
            raise ConnectionRefusedError(f"{address[0]}:{address[1]} is outside this rehearsal: its guard refuses it")
    elif event == "socket.getaddrinfo" and arguments[0]:
        name = arguments[0].decode() if isinstance(arguments[0], bytes) else str(arguments[0])
        if _is_name(name) and not _is_here(name):
            _note(name)
            text = f"{name} is outside this rehearsal: its guard does not look it up"
            raise socket.gaierror(socket.EAI_NONAME, text)


sys.addaudithook(_refuse)
