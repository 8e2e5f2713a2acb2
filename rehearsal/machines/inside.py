"""Set-up and entry of network namespaces: a program of its own, `python -I -S inside.py`, without the project's code.

A process with threads cannot change its user namespace, so each step is a process:

    cloud      a user and a network namespace with a bridge, on which machines meet and the doors listen at port 443
    machine    a network namespace below it, joined to the bridge, with 169.254.169.254 on its loopback
    limit      the bandwidth of a machine, by tc
    enter      a command as process 1 of its own process, mount, host name and IPC namespace in a machine's network

cloud and machine send the descriptors that keep the namespaces alive, and sockets that listen in them, over a socket,
and end. enter stays as the command's parent and ends as it does. Each ends with the process that started it.

Namespaces: https://man7.org/linux/man-pages/man7/namespaces.7.html. Nothing here has a route to another machine.
"""

from __future__ import annotations

import array
import ctypes
import json
import os
import select
import signal
import socket
import subprocess
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_USER, _NET, _MOUNT, _PID, _UTS, _IPC = 0x10000000, 0x40000000, 0x00020000, 0x20000000, 0x04000000, 0x08000000
_MS_NOSUID, _MS_NODEV, _MS_NOEXEC, _MS_BIND, _MS_REC, _MS_PRIVATE = 2, 4, 8, 4096, 16384, 1 << 18
_PR_SET_PDEATHSIG = 1
_BRIDGE = "cloud"
_METADATA_ADDRESS = "169.254.169.254"
# As docker's: the container could not be made; the command is not executable; it was not found.
_CANNOT_ENTER, _CANNOT_EXECUTE, _NOT_FOUND = 125, 126, 127
_libc = ctypes.CDLL(None, use_errno=True)


def _check(result: int, what: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


def _mount(source: str, target: str, kind: str, flags: int, options: str = "") -> None:
    arguments = [text.encode() or None for text in (source, target, kind)]
    _check(_libc.mount(*arguments, ctypes.c_ulong(flags), options.encode() or None), f"mount {source} {target}")


def _join(descriptor: int, kind: int) -> None:
    _check(_libc.setns(descriptor, kind), "setns")


def _leave(kinds: int) -> None:
    _check(_libc.unshare(kinds), "unshare")


def _end_with(parent: int) -> None:
    """Ask the kernel to kill this process with its parent. A change of credentials forgets it: call it after that."""
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(_CANNOT_ENTER)


def _run(program: str, lines: list[str], *descriptors: int) -> None:
    """Run a batch of ip's or tc's commands."""
    subprocess.run(
        [program, "-batch", "-"],
        input="\n".join(lines).encode(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        pass_fds=descriptors,
        check=True,
    )


def _listen(address: str, port: int, kind: int = socket.SOCK_STREAM) -> int:
    made = socket.socket(socket.AF_INET, kind)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    made.bind((address, port))
    if kind == socket.SOCK_STREAM:
        made.listen(256)
    return made.detach()


def _send(channel: socket.socket, *descriptors: int) -> None:
    channel.sendmsg([b"+"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))])


def _own(name: str) -> int:
    return os.open(f"/proc/self/ns/{name}", os.O_RDONLY | os.O_CLOEXEC)


def _link_address(address: str) -> str:
    """Return a link address for the bridge: one not given is that of a machine, and changes as they come and go.

    A machine that knows the old one then loses what it sends until its kernel asks again, for up to a minute.
    """
    # As Compute Engine's: 42:01 and the IPv4 address.
    return ":".join(["42:01", *(f"{int(part):02x}" for part in address.split("."))])


def cloud(channel: socket.socket, parent: int, given: dict[str, Any]) -> None:
    """Make the user and network namespace that machines are below."""
    _leave(_USER | _NET)
    _end_with(parent)
    # Only a process outside may give the user namespace its ids.
    channel.send(b"?")
    if channel.recv(1) != b"+":
        os._exit(_CANNOT_ENTER)
    address = given["address"]
    _run(
        given["ip"],
        [
            "link set lo up",
            f"link add {_BRIDGE} address {_link_address(address)} type bridge",
            f"addr add {address}/{given['prefix']} dev {_BRIDGE}",
            f"link set {_BRIDGE} up",
        ],
    )
    _send(channel, _own("user"), _own("net"), _listen(address, 443))


def machine(channel: socket.socket, parent: int, given: dict[str, Any]) -> None:
    """Make the network namespace of a machine."""
    _join(given["user"], _USER)
    _leave(_NET)
    _end_with(parent)
    own, link = _own("net"), f"v{given['number']}"
    _join(given["net"], _NET)
    lines = [f"link add {link} type veth peer name eth0 netns /proc/self/fd/{own}", f"link set {link} master {_BRIDGE}"]
    _run(given["ip"], [*lines, f"link set {link} up"], own)
    _join(own, _NET)
    lines = [f"addr add {_METADATA_ADDRESS}/32 dev lo", f"addr add {given['address']}/{given['prefix']} dev eth0"]
    _run(given["ip"], ["link set lo up", *lines, "link set eth0 up"])
    web, names = _listen(_METADATA_ADDRESS, 80), _listen(_METADATA_ADDRESS, 53, socket.SOCK_DGRAM)
    _send(channel, own, web, names)


def limit(channel: socket.socket, parent: int, given: dict[str, Any]) -> None:
    """Limit what a machine sends and receives: https://man7.org/linux/man-pages/man8/tc-tbf.8.html."""
    _join(given["user"], _USER)
    _end_with(parent)
    # As tbf's page asks: a burst of at least the rate by the kernel's HZ, here that of a hundredth of a second.
    shape = f"root tbf rate {given['bits_per_s']}bit burst {max(16384, given['bits_per_s'] // 800)} latency 100ms"
    for descriptor, device in ((given["net"], f"v{given['number']}"), (given["own"], "eth0")):
        _join(descriptor, _NET)
        _run(given["tc"], [f"qdisc replace dev {device} {shape}"])
    channel.send(b"+")


def enter(channel: socket.socket, parent: int, given: dict[str, Any]) -> None:
    """Run a command as process 1 in a machine's network; `channel` is told its process id outside."""
    _join(given["user"], _USER)
    _join(given["net"], _NET)
    _leave(_MOUNT | _PID | _UTS | _IPC)
    _end_with(parent)
    socket.sethostname(given["name"])
    _mount("none", "/", "", _MS_REC | _MS_PRIVATE)
    for source, target in given["files"].items():
        _mount(source, target, "", _MS_BIND)
    _mount("tmpfs", "/dev/shm", "tmpfs", _MS_NOSUID | _MS_NODEV, "mode=1777")
    if given["cores"]:
        os.sched_setaffinity(0, given["cores"])
    is_alive, hold = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(hold)
        _become(given["command"], is_alive, [given["user"], given["net"], channel.fileno()])
    channel.send(b"%d" % child)
    channel.close()
    _, status = os.waitpid(child, 0)
    code = os.waitstatus_to_exitcode(status)
    if code < 0:
        # As it ended; the memory of this process is nothing to look at.
        import resource

        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        if -code != signal.SIGKILL:
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code)


def _become(command: list[str], parent_is_alive: int, ours: list[int]) -> None:
    try:
        _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        # Its parent has no number in this namespace; its end of the pipe is closed when it is gone.
        if select.select([parent_is_alive], [], [], 0)[0]:
            os._exit(_CANNOT_ENTER)
        _mount("proc", "/proc", "proc", _MS_NOSUID | _MS_NODEV | _MS_NOEXEC)
        for descriptor in (parent_is_alive, *ours):
            os.close(descriptor)
        # Python ignores it, and what it becomes would.
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
        os.execvp(command[0], command)
    except OSError as error:
        _say(f"{command[0]}: {error.strerror}")
        os._exit(_NOT_FOUND if isinstance(error, FileNotFoundError) else _CANNOT_EXECUTE)


def _say(text: str) -> None:
    os.write(2, f"{text}\n".encode())


def main() -> None:
    """Do one step: STEP DESCRIPTOR PARENT JSON [COMMAND...]."""
    name, descriptor, parent, text, *command = sys.argv[1:]
    channel = socket.socket(fileno=int(descriptor))
    steps = {"cloud": cloud, "machine": machine, "limit": limit, "enter": enter}
    try:
        steps[name](channel, int(parent), {**json.loads(text), "command": command})
    except subprocess.CalledProcessError as error:
        sys.exit(f"{name}: {error.cmd[0]}: {error.stderr.decode(errors='replace').strip()}")
    except OSError as error:
        _say(f"{name}: {error.strerror or error}")
        os._exit(_CANNOT_ENTER)


main()
