"""The network of a rehearsal's machines: names, addresses, metadata servers, and the commands that run on them.

Where this user may make namespaces, each machine is a network namespace with a hosts file, an address, and a metadata
and name server of its own at 169.254.169.254; Google's names lead to the doors at port 443, and there is no route to
anywhere else. Elsewhere machines are processes beside each other: they share the loopback and its ports, and variables
(GCE_METADATA_HOST, and the doors' own) lead their clients.

    with Network(folder, refuse=print) as network:
        machine = network.add("trainer-0", identity)
        tree = machine.start(["python", "-m", "trainer.task"], environment=..., folder=..., on_line=print)

Custom jobs, Dataflow jobs and tasks of pipelines run on such machines; pods and instances could.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import socket
import threading
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self, cast, get_args

from rehearsal.machines import metadata, names
from rehearsal.machines.metadata import Identity, Metadata
from rehearsal.machines.namespaces import Inside, NamespacesRefused, limit_bandwidth, make_cloud, make_machine
from rehearsal.machines.processes import ProcessTree

Mode = Literal["auto", "namespaces", "loopback"]
MODES: tuple[Mode, ...] = get_args(Mode)
LOOPBACK = "127.0.0.1"
_NETWORK, _PREFIX = "10.128", 16
_FRONT = f"{_NETWORK}.0.1"
# Machines of this process, and of each that has a share.
_OWN, _SHARED = 1024, 512
_MOST = (1 << (32 - _PREFIX)) - 4


@dataclass(frozen=True)
class Share:
    """A part of a network for machines that another process makes: it must inherit the two descriptors."""

    user: int
    net: int
    first: int
    """Number of its first machine."""


class Network:
    """Machines that reach each other and the doors: a context manager.

    Args:
        folder: For hosts files.
        refuse: Told of each name outside that a machine asks for; called in a thread.
        mode: "namespaces" or "loopback"; "auto": the first where it is possible.
        share: Of another process's network, whose machines these reach; None: a network of its own.

    Raises:
        NamespacesRefused: Namespaces are asked for, and this machine does not permit them.
    """

    def __init__(
        self, folder: Path, *, refuse: Callable[[str], None], mode: Mode = "auto", share: Share | None = None
    ) -> None:
        self._folder, self._refuse = folder, refuse
        numbers = range(2, _OWN) if share is None else range(share.first, share.first + _SHARED)
        # In turn: the kernel takes its time to remove the interface of a machine that is gone.
        self._numbers = itertools.cycle(numbers)
        self._shares = itertools.cycle(range(_OWN, _MOST - _SHARED, _SHARED))
        self._hosts: dict[str, Host] = {}
        self._lock = threading.Lock()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="metadata servers", daemon=True)
        self.front: socket.socket | None = None
        """Listens at port 443 of the address that Google's names have; None without namespaces."""
        self.refused = ""
        """Why there are no namespaces; "": there are."""
        self._user = self._net = -1
        folder.mkdir(parents=True, exist_ok=True)
        self._thread.start()
        if share is not None:
            self._user, self._net = share.user, share.net
            return
        try:
            if mode == "loopback":
                raise NamespacesRefused("they were not asked for")
            self._user, self._net, self.front = make_cloud(_FRONT, _PREFIX)
            self._try_out()
        except NamespacesRefused as error:
            self._close_cloud()
            self.refused = str(error)
            if mode == "namespaces":
                self.close()
                raise

    @property
    def has_namespaces(self) -> bool:
        """Whether each machine has a network of its own."""
        return not self.refused

    def share(self) -> Share | None:
        """Return a part for another process; None: there are no namespaces to share."""
        return Share(self._user, self._net, next(self._shares)) if self.has_namespaces else None

    def _try_out(self) -> None:
        """Run a command on a machine: what a container of a machine needs may be refused where namespaces are not."""
        identity = Identity("none", "0", "none-a", "none", "none", lambda: "")
        lines: list[str] = []
        host = self.add("trial", identity)
        try:
            code = host.start(["true"], environment={}, folder=self._folder, on_line=lines.append).wait()
        finally:
            host.close()
        if code != 0:
            raise NamespacesRefused("; ".join(lines) or f"a command on a machine ended with {code}")

    def add(self, name: str, identity: Identity) -> Host:
        """Make a machine.

        Args:
            name: Host name, unlike that of every other machine that is there.
            identity: What its metadata server says.
        """
        with self._lock:
            if name in self._hosts:
                raise ValueError(f"there is a machine {name} already")
            used = {host.number for host in self._hosts.values()}
            number = next(number for number in self._numbers if number not in used)
            host = self._hosts[name] = Host(self, name, number)
        try:
            host._open(identity)
        except BaseException:
            self._forget(name)
            raise
        return host

    def close(self) -> None:
        """End all machines and their servers; namespaces are gone with them."""
        if self._loop.is_closed():
            return
        for host in list(self._hosts.values()):
            host.close()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
        self._close_cloud()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def find(self, name: str) -> str | None:
        """Return the address of a name as machines see it; None: there is none, and it is noted as refused."""
        short = name.partition(".")[0]
        with self._lock:
            known = self._hosts.get(name) or (self._hosts.get(short) if name.endswith(".internal") else None)
        if known is not None:
            return known.address
        if names.GOOGLES.fullmatch(name):
            return _FRONT
        if name == metadata.NAME:
            return metadata.ADDRESS
        return None

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        """Do something in the loop of the servers, and return its result."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def _forget(self, name: str) -> None:
        with self._lock:
            self._hosts.pop(name, None)

    def _close_cloud(self) -> None:
        for descriptor in (self._user, self._net):
            if descriptor >= 0:
                os.close(descriptor)
        self._user = self._net = -1
        if self.front is not None:
            self.front.close()
            self.front = None


class Host:
    """One machine of a network: made by `Network.add`."""

    def __init__(self, network: Network, name: str, number: int) -> None:
        self._network, self.name, self.number = network, name, number
        within = number + 1
        self.address = f"{_NETWORK}.{within >> 8}.{within & 255}" if network.has_namespaces else LOOPBACK
        """Where other machines reach it."""
        self.environment: dict[str, str] = {}
        """Variables that its commands need to find its metadata server; none in a namespace."""
        self._own = -1
        self._inside: Inside | None = None
        self._trees: list[ProcessTree] = []
        self._servers: list[asyncio.AbstractServer | asyncio.DatagramTransport] = []
        self._connections: set[asyncio.Task[None]] = set()
        self._is_closed = False
        self._files: list[Path] = []

    def start(
        self,
        command: Sequence[str],
        *,
        environment: Mapping[str, str],
        folder: Path,
        on_line: Callable[[str], None],
        pass_fds: Sequence[int] = (),
        cores: Sequence[int] = (),
    ) -> ProcessTree:
        """Run a command on this machine, as process 1 of a container where there are namespaces.

        Args:
            command: Its words.
            environment: All of its variables but the machine's own.
            folder: Working directory.
            on_line: Called with each line that it prints, in a thread.
            pass_fds: Descriptors that it inherits.
            cores: Those that it may use; none given: all of this process's.
        """
        tree = ProcessTree(
            command,
            environment={**environment, **self.environment},
            folder=folder,
            on_line=on_line,
            pass_fds=pass_fds,
            cores=cores,
            inside=self._inside,
        )
        self._trees = [*(one for one in self._trees if one.returncode is None), tree]
        return tree

    def give_notice(self) -> None:
        """Let the metadata server say that the machine is taken away; signals are the caller's to send."""

        async def preempt() -> None:
            self._metadata.preempt()

        self._network.run(preempt())

    def limit_bandwidth(self, bits_per_s: int) -> None:
        """Limit what it sends and what it receives, each (`tc tbf`); without namespaces nothing is limited."""
        if self._inside is not None:
            limit_bandwidth(self._inside.user, self._network._net, self._own, self.number, bits_per_s)

    def close(self) -> None:
        """Kill what runs on it, and take it off the network."""
        for tree in self._trees:
            tree.kill()
        self._network.run(self._stop())
        for file in self._files:
            file.unlink(missing_ok=True)
        if self._own >= 0:
            os.close(self._own)
            self._own = -1
        self._network._forget(self.name)

    def _open(self, identity: Identity) -> None:
        if not self._network.has_namespaces:
            web = socket.create_server((LOOPBACK, 0))
            # google-auth asks the second whether there is such a server at all.
            address = f"{LOOPBACK}:{web.getsockname()[1]}"
            self.environment = {"GCE_METADATA_HOST": address, "GCE_METADATA_IP": address}
            self._network.run(self._serve(identity, web, None))
            return
        user, net = self._network._user, self._network._net
        self._own, web, questions = make_machine(user, net, self.number, self.address, _PREFIX)
        self._inside = Inside(user, self._own, self.name, self._write_files(identity))
        self._network.run(self._serve(identity, web, questions))

    def _write_files(self, identity: Identity) -> dict[str, str]:
        full = f"{self.name}.c.{identity.project}.internal"
        # Without its own name gloo would bind to the loopback, where its peers are not.
        hosts = (
            f"127.0.0.1 localhost\n::1 localhost ip6-localhost\n{self.address} {full} {self.name}\n"
            f"{metadata.ADDRESS} {metadata.NAME} metadata\n"
        )
        found = {}
        for name, text in (("hosts", hosts), ("resolv.conf", f"nameserver {metadata.ADDRESS}\noptions timeout:5\n")):
            path = self._network._folder / f"{self.name}-{name}"
            path.write_text(text)
            self._files.append(path)
            found[str(path.absolute())] = f"/etc/{name}"
        return found

    async def _serve(self, identity: Identity, web: socket.socket, questions: socket.socket | None) -> None:
        self._metadata = Metadata(self.name, identity, self._network._refuse)

        def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            if self._is_closed:
                writer.close()
                return
            task = asyncio.get_running_loop().create_task(self._metadata.serve(reader, writer))
            self._connections.add(task)
            task.add_done_callback(self._connections.discard)

        self._servers.append(await asyncio.start_server(accept, sock=web))
        if questions is not None:
            questions.setblocking(False)
            loop = asyncio.get_running_loop()
            transport, _ = await loop.create_datagram_endpoint(lambda: _NameServer(self._network), sock=questions)
            self._servers.append(transport)

    async def _stop(self) -> None:
        self._is_closed = True
        for server in self._servers:
            server.close()
        self._servers = []
        for task in (tasks := list(self._connections)):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


class _NameServer(asyncio.DatagramProtocol):
    def __init__(self, network: Network) -> None:
        self._network = network

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # asyncio's own is no DatagramTransport by type.
        self._transport = cast("asyncio.DatagramTransport", transport)

    def datagram_received(self, data: bytes, addr: Any) -> None:
        with contextlib.suppress(ValueError):
            name, kind = names.read_question(data)
            address = self._network.find(name)
            # A name of one label is a machine's that has not come yet, or is gone: no host outside has such a name.
            if address is None and names.is_lookup(kind) and "." in name:
                self._network._refuse(name)
            self._transport.sendto(names.answer_question(data, address), addr)
