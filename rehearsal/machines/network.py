"""The machines of a rehearsal: processes beside each other on the loopback, each with a metadata server of its own.

Variables lead their clients: GCE_METADATA_HOST, and the doors' own.

    with Network(refuse=print) as network:
        machine = network.add("trainer-0", identity)
        tree = machine.start(["python", "-m", "trainer.task"], environment=..., folder=..., on_line=print)

Custom jobs, Dataflow jobs and tasks of pipelines run on such machines.
"""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable, Coroutine, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from rehearsal.machines.metadata import LOOPBACK, Identity, Metadata
from rehearsal.machines.processes import ProcessTree


class Network:
    """Machines on the loopback: a context manager.

    Args:
        refuse: Told of each request that a metadata server refuses; called in a thread.
    """

    def __init__(self, *, refuse: Callable[[str], None]) -> None:
        self._refuse = refuse
        self._hosts: dict[str, Host] = {}
        self._lock = threading.Lock()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="metadata servers", daemon=True)
        self._thread.start()

    def add(self, name: str, identity: Identity) -> Host:
        """Make a machine.

        Args:
            name: Host name, unlike that of every other machine that is there.
            identity: What its metadata server says.
        """
        with self._lock:
            if name in self._hosts:
                raise ValueError(f"there is a machine {name} already")
            host = self._hosts[name] = Host(self, name)
        try:
            host._open(identity)
        except BaseException:
            self._forget(name)
            raise
        return host

    def close(self) -> None:
        """End all machines and their servers."""
        if self._loop.is_closed():
            return
        for host in list(self._hosts.values()):
            host.close()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        """Do something in the loop of the servers, and return its result."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def _forget(self, name: str) -> None:
        with self._lock:
            self._hosts.pop(name, None)


class Host:
    """One machine of a network: made by `Network.add`."""

    def __init__(self, network: Network, name: str) -> None:
        self._network, self.name = network, name
        self.environment: dict[str, str] = {}
        """Variables that its commands need to find its metadata server."""
        self._trees: list[ProcessTree] = []
        self._servers: list[asyncio.AbstractServer] = []
        self._connections: set[asyncio.Task[None]] = set()
        self._is_closed = False

    def start(
        self,
        command: Sequence[str],
        *,
        environment: Mapping[str, str],
        folder: Path,
        on_line: Callable[[str], None],
        cores: Sequence[int] = (),
    ) -> ProcessTree:
        """Run a command on this machine.

        Args:
            command: Its words.
            environment: All of its variables but the machine's own.
            folder: Working directory.
            on_line: Called with each line that it prints, in a thread.
            cores: Those that it may use; none given: all of this process's.
        """
        tree = ProcessTree(
            command, environment={**environment, **self.environment}, folder=folder, on_line=on_line, cores=cores
        )
        self._trees = [*(one for one in self._trees if one.returncode is None), tree]
        return tree

    def give_notice(self) -> None:
        """Let the metadata server say that the machine is taken away; signals are the caller's to send."""

        async def preempt() -> None:
            self._metadata.preempt()

        self._network.run(preempt())

    def close(self) -> None:
        """Kill what runs on it, and end its metadata server."""
        for tree in self._trees:
            tree.kill()
        self._network.run(self._stop())
        self._network._forget(self.name)

    def _open(self, identity: Identity) -> None:
        web = socket.create_server((LOOPBACK, 0))
        # google-auth asks the second whether there is such a server at all.
        address = f"{LOOPBACK}:{web.getsockname()[1]}"
        self.environment = {"GCE_METADATA_HOST": address, "GCE_METADATA_IP": address}
        self._network.run(self._serve(identity, web))

    async def _serve(self, identity: Identity, web: socket.socket) -> None:
        self._metadata = Metadata(self.name, identity, self._network._refuse)

        def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            if self._is_closed:
                writer.close()
                return
            task = asyncio.get_running_loop().create_task(self._metadata.serve(reader, writer))
            self._connections.add(task)
            task.add_done_callback(self._connections.discard)

        self._servers.append(await asyncio.start_server(accept, sock=web))

    async def _stop(self) -> None:
        self._is_closed = True
        for server in self._servers:
            server.close()
        self._servers = []
        for task in (tasks := list(self._connections)):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
