"""Refuse connections of this Python process to any other machine. Python imports this file at its start by its name.

Proxy variables lead what honours them to the local cloud; what opens a socket by itself would pass them by. In a
process whose PYTHONPATH begins with this folder it gets a ConnectionRefusedError that says so. Sockets of C libraries
(gRPC's among them, which honours the proxy) are not seen.
"""

import socket
import sys

_LOOPBACK = ("127.", "::1", "localhost", "0.0.0.0")


def _is_here(host: str) -> bool:
    """Whether an address is this machine's: gloo and torchrun meet at its own name."""
    if host.startswith(_LOOPBACK) or not host:
        return True
    try:
        families = {
            (family, address) for family, _, _, _, address in socket.getaddrinfo(host, 0, type=socket.SOCK_DGRAM)
        }
        for family, address in families:
            # Nothing but an address of this machine can be bound.
            with socket.socket(family, socket.SOCK_DGRAM) as probe:
                probe.bind(address)
    except OSError:
        return False
    return bool(families)


def _refuse(event: str, arguments: tuple[object, ...]) -> None:
    if event not in ("socket.connect", "socket.sendto"):
        return
    address = arguments[1]
    if isinstance(address, tuple) and not _is_here(str(address[0])):
        raise ConnectionRefusedError(f"{address[0]}:{address[1]} is outside this rehearsal: its guard refuses it")


sys.addaudithook(_refuse)
