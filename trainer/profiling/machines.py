"""Several machines that measure together: the first one asks all ranks, the others start and kill theirs as told.

Each rank of another machine has a connection to the first one, by which it is asked as one of its own is by a pipe
(`RemoteRank`). What only its own machine can do is an order to the stage there (`follow`): start ranks, kill them, say
how one ended. What makes one machine leave ends the stage on all, as a rank that is lost is an answer, and a machine
that is lost is none.

Who comes with another key is of another job. It keeps no secret, as the ranks' own store keeps none: the network of a
job is its own. What is said is JSON of known kinds (messages.py), and else refused.
"""

from __future__ import annotations

import os
import socket
import struct
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from multiprocessing import AuthenticationError
from multiprocessing.connection import Connection, answer_challenge, deliver_challenge
from pathlib import Path
from types import NoneType, TracebackType
from typing import Self

from contracts import storage
from contracts.config.resources import ResourcesSection
from contracts.errors import ConfigError, ErrorDocument, TryAgain
from trainer.launch import Assignment
from trainer.launch.nodes import PLATFORM_VARIABLES, Nodes, find_interface, find_nodes
from trainer.profiling.measure import Failed
from trainer.profiling.messages import Kind, Order, Place, receive, send
from trainer.profiling.network import keep_alive, listen_patiently, store_port
from trainer.profiling.rank_process import Group, RankProcess, RemoteRank

# What a machine that has met the others may take to answer an order, or to have its ranks connected.
ANSWER_S = 60.0
# What a connection may take to say who it is: others may come to this port.
_HANDSHAKE_S = 10
_RETRY_S = 0.5


def find_place(environment: Mapping[str, str], resources: ResourcesSection) -> Nodes:
    """Return this machine among those that measure together; alone where the environment names no others.

    Raises:
        ConfigError: The environment contradicts itself or the configuration.
    """
    if any(environment.get(name) for name in PLATFORM_VARIABLES):
        return find_nodes(environment, resources)
    return Nodes(0, 1, "", resources.port, "local", "")


class Machines:
    """The other machines, as the first one orders them.

    Args:
        nodes: The place of this machine, the first.
        key: Of the job; the same on all machines.
        resources: The configuration's section.
        say: Tells the user.

    Raises:
        ConfigError: The port is another process's.
        TryAgain: On entering: a machine did not come in time. Later: one is gone.
    """

    def __init__(self, nodes: Nodes, *, key: str, resources: ResourcesSection, say: Callable[[str], None]) -> None:
        self.nodes, self._key, self._resources, self._say = nodes, key.encode(), resources, say
        self._followers: dict[int, Connection] = {}

    def __enter__(self) -> Self:
        self._listener = listen_patiently(self.nodes.port)
        try:
            self._meet()
        except BaseException as error:
            self._leave(error)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._leave(error)

    def group(self, assignment: Assignment) -> Group:
        """Return where the ranks of a start meet."""
        interface = None
        with suppress(OSError):
            interface = find_interface(socket.gethostbyname(self.nodes.host))
        return _group(self.nodes, assignment, interface)

    def start(self, assignment: Assignment) -> list[RemoteRank]:
        """Have the others start their ranks, and return them in order.

        Raises:
            TryAgain: A machine is gone.
        """
        for node_rank in self._followers:
            self._order(node_rank, Order(order="start", assignment=assignment))
        found: dict[int, RemoteRank] = {}
        deadline, wanted = time.monotonic() + ANSWER_S, assignment.world_size - assignment.ranks
        while len(found) < wanted:
            if (came := self._accept(deadline)) is None:
                raise TryAgain(f"{wanted - len(found)} ranks of other machines did not come within {ANSWER_S:g} s")
            place, connection = came
            if place.generation != assignment.generation:
                # Of a start that was given up meanwhile.
                connection.close()
                continue
            rank = place.node_rank * assignment.ranks + place.local_rank
            found[rank] = RemoteRank(rank, connection, partial(self._why, place.node_rank, place.local_rank))
        return [found[rank] for rank in sorted(found)]

    def kill(self) -> None:
        """Have the others kill their ranks, and wait until they have."""
        for node_rank in self._followers:
            self._order(node_rank, Order(order="kill"))
        for node_rank in self._followers:
            self._hear(node_rank, NoneType)

    def _why(self, node_rank: int, local_rank: int) -> Failed:
        self._order(node_rank, Order(order="why", local_rank=local_rank))
        return self._hear(node_rank, Failed)

    def _order(self, node_rank: int, order: Order) -> None:
        try:
            send(self._followers[node_rank], order)
        except OSError as error:
            raise _gone(node_rank, error) from None

    def _hear(self, node_rank: int, kind: type[Kind]) -> Kind:
        connection = self._followers[node_rank]
        try:
            if connection.poll(ANSWER_S):
                return receive(connection, kind)
        except (EOFError, OSError) as error:
            raise _gone(node_rank, error) from None
        raise _gone(node_rank, f"no answer within {ANSWER_S:g} s")

    def _meet(self) -> None:
        nodes, limit_s = self.nodes.nodes, self._resources.setup_timeout_s
        deadline = time.monotonic() + limit_s
        self._say(f"waiting for {nodes - 1} more machines, for up to {limit_s:g} s (resources.setup_timeout_s)")
        while len(self._followers) < nodes - 1:
            if (came := self._accept(deadline)) is None:
                missing = ", ".join(str(each) for each in range(1, nodes) if each not in self._followers)
                raise TryAgain(
                    f"machine {missing} of {nodes} did not come within {limit_s:g} s (resources.setup_timeout_s); "
                    "the same command begins anew"
                )
            place, connection = came
            # One that was started again meanwhile takes the place of what it was.
            if (before := self._followers.pop(place.node_rank, None)) is not None:
                before.close()
            self._followers[place.node_rank] = connection

    def _accept(self, deadline: float) -> tuple[Place, Connection] | None:
        """Return who comes next; None: nobody did in time."""
        while (left_s := deadline - time.monotonic()) > 0:
            self._listener.settimeout(left_s)
            try:
                stream, address = self._listener.accept()
            except TimeoutError:
                continue
            connection = _connection(stream)
            try:
                deliver_challenge(connection, self._key)
                answer_challenge(connection, self._key)
                came = receive(connection, Place)
            except (AuthenticationError, AssertionError, EOFError, OSError):
                connection.close()
                self._say(f"warning: {address[0]} came to port {self.nodes.port}, and is no machine of this job")
                continue
            _be_patient(connection)
            return came, connection
        return None

    def _leave(self, error: BaseException | None) -> None:
        document = None if error is None else ErrorDocument.of(error)
        for connection in self._followers.values():
            with suppress(OSError):
                send(connection, Order(order="end", document=document))
            connection.close()
        self._listener.close()


def follow(nodes: Nodes, *, key: str, resources: ResourcesSection, folder: Path, say: Callable[[str], None]) -> None:
    """Do as the first machine says, until it has what it measures.

    Args:
        nodes: The place of this machine.
        key: Of the job; the same on all machines.
        resources: The configuration's section.
        folder: For what ranks are told and say.
        say: Tells the user.

    Raises:
        ConfigError: The first machine is of another job.
        TryAgain: It did not answer in time, or is gone.
        ToldError: It has failed, and why.
    """
    control, interface = _reach(nodes, key, resources, say)
    ranks: list[RankProcess] = []
    try:
        while True:
            given = receive(control, Order)
            if given.order == "end":
                break
            if given.order == "start" and given.assignment is not None:
                assignment = given.assignment.model_copy(update={"node_rank": nodes.node_rank})
                ranks = _start(nodes, assignment, _group(nodes, assignment, interface), key, folder)
            elif given.order == "why":
                ended = ranks[given.local_rank]
                for line in ended.new_lines():
                    say(f"rank {ended.rank}: {line}")
                send(control, ended.why())
            else:
                _kill(ranks)
                send(control, None)
    except (EOFError, OSError) as error:
        raise TryAgain(f"the first machine is gone ({error or 'closed'}); the same command begins anew") from None
    finally:
        _kill(ranks)
        control.close()
    if (document := given.document) is not None:
        raise document.to_error()


def _start(nodes: Nodes, assignment: Assignment, group: Group, key: str, folder: Path) -> list[RankProcess]:
    path = folder / f"assignment-{assignment.generation}.json"
    storage.replace(storage.normalise(path), assignment.model_dump_json().encode())
    found = []
    for local_rank in range(assignment.ranks):
        connection = _connect(
            nodes, key, Place(node_rank=nodes.node_rank, generation=assignment.generation, local_rank=local_rank)
        )
        found.append(RankProcess(local_rank, assignment, path, group, folder, connection))
    return found


def _kill(ranks: list[RankProcess]) -> None:
    for process in ranks:
        process.kill()
    ranks.clear()


def _reach(
    nodes: Nodes, key: str, resources: ResourcesSection, say: Callable[[str], None]
) -> tuple[Connection, str | None]:
    """Connect to the first machine, whose name and process may take a while; with the interface that leads to it."""
    limit_s, said = resources.setup_timeout_s, False
    deadline = time.monotonic() + limit_s
    while True:
        try:
            control = _connect(nodes, key, Place(node_rank=nodes.node_rank))
        except AuthenticationError:
            raise ConfigError(
                f"the first machine ({nodes.host}:{nodes.port}) measures something else",
                allowed="the same configuration, inputs and hardware on all machines",
                todo="start all machines with the same command; set resources.port where two jobs share a machine",
            ) from None
        except (EOFError, OSError) as error:
            if time.monotonic() > deadline:
                raise TryAgain(
                    f"the first machine ({nodes.host}:{nodes.port}) did not answer within {limit_s:g} s "
                    f"(resources.setup_timeout_s): {error}"
                ) from None
            if not said:
                said = True
                say(f"waiting for the first machine, {nodes.host}:{nodes.port}, for up to {limit_s:g} s")
            time.sleep(_RETRY_S)
            continue
        with socket.socket(fileno=os.dup(control.fileno())) as stream:
            address: str = stream.getsockname()[0]
        return control, find_interface(address.removeprefix("::ffff:"))


def _connect(nodes: Nodes, key: str, who: Place) -> Connection:
    connection = _connection(socket.create_connection((nodes.host, nodes.port), timeout=_HANDSHAKE_S))
    try:
        answer_challenge(connection, key.encode())
        deliver_challenge(connection, key.encode())
        send(connection, who)
    except AssertionError:
        # What answers there speaks of something else.
        connection.close()
        raise AuthenticationError from None
    except BaseException:
        connection.close()
        raise
    _be_patient(connection)
    return connection


def _connection(stream: socket.socket) -> Connection:
    """Return a connection of messages, which for now waits for no more than a handshake may take."""
    keep_alive(stream)
    stream.settimeout(None)
    stream.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", _HANDSHAKE_S, 0))
    return Connection(stream.detach())


def _be_patient(connection: Connection) -> None:
    with socket.socket(fileno=os.dup(connection.fileno())) as stream:
        stream.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", 0, 0))


def _group(nodes: Nodes, assignment: Assignment, interface: str | None) -> Group:
    more: dict[str, str] = {}
    if interface is not None:
        # gloo asks for this machine's own name otherwise, which in a container may be anything.
        more["GLOO_SOCKET_IFNAME"] = os.environ.get("GLOO_SOCKET_IFNAME", interface)
    return Group(nodes.host, store_port(nodes, assignment.generation), assignment.world_size, more)


def _gone(node_rank: int, why: object) -> TryAgain:
    return TryAgain(f"machine {node_rank} is gone ({why}); the same command begins anew")
