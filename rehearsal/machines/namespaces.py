"""Namespaces from outside: the steps of rehearsal/machines/inside.py, and the descriptors that keep what they made.

A namespace is there as long as somebody holds a descriptor of it, or runs in it: with this process all are gone.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# A step that has closed its end of the socket is as good as over.
_END_S = 1.0
_INSIDE = Path(__file__).with_name("inside.py")
# Where ip and tc are, also where a user's PATH does not say so.
_PLACES = os.pathsep.join(["/usr/sbin", "/sbin"])
# For a machine that is slow and busy: a step takes a tenth of a second.
_LIMIT_S = 30.0


class NamespacesRefused(OSError):
    """This machine does not let this user make network namespaces, or lacks ip or tc; the message says what."""


@dataclass(frozen=True)
class Inside:
    """Where a command runs: how `enter` gets into a machine."""

    user: int
    """Descriptors of the user and of the network namespace."""
    net: int
    name: str
    """Host name."""
    files: Mapping[str, str]
    """A file -> the file that it stands in for: hosts and the like."""

    def command(self, channel: int, cores: Sequence[int], words: Sequence[str]) -> list[str]:
        """Return the command that starts `words` in the machine; `channel` is told the process id of its first."""
        given = {"user": self.user, "net": self.net, "name": self.name, "files": self.files, "cores": list(cores)}
        return [*_step("enter", channel, given), *words]


def make_cloud(address: str, prefix: int) -> tuple[int, int, socket.socket]:
    """Make the namespaces that machines are below.

    Returns:
        Descriptors of the user and of the network namespace, and a socket that listens at port 443 of `address`.

    Raises:
        NamespacesRefused: They cannot be made here.
    """
    user, net, front = _run("cloud", {"address": address, "prefix": prefix}, (), 3)
    return user, net, socket.socket(fileno=front)


def make_machine(
    user: int, net: int, number: int, address: str, prefix: int
) -> tuple[int, socket.socket, socket.socket]:
    """Make the network namespace of a machine.

    Returns:
        Its descriptor, and the sockets at 169.254.169.254 for the metadata server and for names.
    """
    given = {"user": user, "net": net, "number": number, "address": address, "prefix": prefix}
    own, web, names = _run("machine", given, (user, net), 3)
    return own, socket.socket(fileno=web), socket.socket(fileno=names)


def limit_bandwidth(user: int, net: int, own: int, number: int, bits_per_s: int) -> None:
    """Limit what a machine sends and receives, each."""
    _run(
        "limit", {"user": user, "net": net, "own": own, "number": number, "bits_per_s": bits_per_s}, (user, net, own), 0
    )


def _run(name: str, given: Mapping[str, Any], descriptors: Sequence[int], expected: int) -> list[int]:
    """Run one step; return the descriptors that it sends."""
    if not sys.platform.startswith("linux"):
        raise NamespacesRefused("network namespaces are Linux's")
    programs = {tool: shutil.which(tool) or shutil.which(tool, path=_PLACES) for tool in ("ip", "tc")}
    if missing := [tool for tool, path in programs.items() if path is None]:
        raise NamespacesRefused(f"the programs {' and '.join(missing)} (iproute2) are not installed")
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.settimeout(_LIMIT_S)
        # Whatever some library has made the default of this process (socket.setdefaulttimeout): the step waits on it.
        theirs.setblocking(True)
        process = subprocess.Popen(
            _step(name, theirs.fileno(), {**given, **programs}),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            pass_fds=(theirs.fileno(), *descriptors),
        )
        theirs.close()
        found: list[int] = []
        failure = ""
        try:
            answer, found, *_ = socket.recv_fds(ours, 1, expected)
            if answer == b"?":
                _map_ids(process.pid)
                ours.send(b"+")
                answer, found, *_ = socket.recv_fds(ours, 1, expected)
        except OSError as error:
            # Time to say why it ends, where it does.
            with contextlib.suppress(subprocess.TimeoutExpired):
                failure = f"{error} (the step ended with {process.wait(_END_S)})"
            failure = failure or str(error)
            process.kill()
        finally:
            said = process.communicate()[1].decode(errors="replace").strip()
    if failure:
        raise NamespacesRefused(said or f"{name}: {failure}")
    if answer != b"+" or len(found) != expected:
        for descriptor in found:
            os.close(descriptor)
        raise NamespacesRefused(said or f"{name}: no answer")
    return found


def _step(name: str, channel: int, given: Mapping[str, Any]) -> list[str]:
    return [sys.executable, "-I", "-S", str(_INSIDE), name, str(channel), str(os.getpid()), json.dumps(given)]


def _map_ids(pid: int) -> None:
    """Give a new user namespace its ids: all of this process's where it may, else this user as root.

    In the second case files of others are denied even to its root: https://man7.org/linux/man-pages/man7/user_namespaces.7.html
    """
    folder = Path("/proc", str(pid))
    for kind, own in (("uid", os.geteuid()), ("gid", os.getegid())):
        target = folder / f"{kind}_map"
        if os.geteuid() == 0:
            ranges = [line.split() for line in Path(f"/proc/self/{kind}_map").read_text().splitlines()]
            with contextlib.suppress(OSError):
                target.write_text("".join(f"{first} {first} {count}\n" for first, _, count in ranges))
                continue
        if kind == "gid":
            (folder / "setgroups").write_text("deny")
        target.write_text(f"0 {own} 1\n")
