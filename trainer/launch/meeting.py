"""How launchers of a job agree on generations: the first machine's serves, all of them, itself included, attend.

A generation begins when every machine is there and none runs ranks. It ends when the ranks of one machine end, or its
launcher is gone: the others are told to stop theirs, and all meet again. So no machine ever runs ranks of a generation
that another one has left, and nobody waits for one: what begins anew begins everywhere.

The agreement is held in no file: when the first machine is lost, the launcher that comes back there learns from the
others which generations have been.
"""

from __future__ import annotations

import select
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from contracts import storage
from contracts.errors import EXIT_USER_ERROR, ConfigError, ErrorDocument, TryAgain
from trainer.launch.assignment import is_preemption, weight_of
from trainer.launch.messages import Connection, ConnectionLost, Message, listen

_POLL_S = 0.2
# For the last message to arrive everywhere before the server's process ends.
_FAREWELL_S = 5.0
# For a mounted folder to show what another machine has written.
_OUTPUT_PATIENCE_S = 30.0
# A launcher that was killed a moment ago may still hold the port.
_PORT_PATIENCE_S = 15.0


@dataclass
class _Attendant:
    connection: Connection
    generation: int
    running: bool = False
    told_to_stop: bool = False


class Meeting:
    """Serves the launchers of a job, in a thread, until training is over or this process ends.

    Args:
        port: Where to listen.
        nodes: Number of machines.
        job: What must be equal on all machines.
        attempt: The first machine's attempt, for all.
        timeout_s: How long a machine that is missing is waited for.
        begin: Counts an attempt; returns its generation, or what ends the job. Called in the thread.
        is_finished: Whether training is finished. Called in the thread.
        is_shared: Whether the machine that says hello is seen to write to the first machine's output. Called in the
            thread, again and again for a while.
        say: Tells the user. Called in the thread.
        newest: The job's newest generation that is known; -1: none.

    Raises:
        ConfigError: The port is another process's.
    """

    def __init__(
        self,
        port: int,
        *,
        nodes: int,
        job: str,
        attempt: str,
        timeout_s: float,
        begin: Callable[[ErrorDocument | None, int], int | ErrorDocument],
        is_finished: Callable[[], bool],
        is_shared: Callable[[Message], bool],
        say: Callable[[str], None],
        newest: int = -1,
    ) -> None:
        self._listener = listen_patiently(port)
        self._nodes, self._job, self._attempt, self._timeout_s = nodes, job, attempt, timeout_s
        self._begin, self._is_finished, self._is_shared, self._say = begin, is_finished, is_shared, say
        self._waiting_room: list[Connection] = []
        # Those of the waiting room whose output was not seen yet, and until when it is looked for.
        self._unseen: dict[Connection, tuple[Message, float]] = {}
        self._attendants: dict[int, _Attendant] = {}
        self._last_end: ErrorDocument | None = None
        self._refusal: ErrorDocument | None = None
        self._newest = newest
        self._may_be_finished = True
        self._has_ended = False
        self._is_over = threading.Event()
        self._complete_at = time.monotonic()
        self._thread = threading.Thread(target=self._serve, name="meeting of launchers", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop serving; when training is over, let everybody hear it first."""
        self._is_over.set()
        self._thread.join(2 * _FAREWELL_S)

    # --- the thread ---------------------------------------------------------------------------------------------------

    def _serve(self) -> None:
        try:
            while not self._is_over.is_set():
                self._listen_to_all()
                self._look_for_outputs()
                self._decide()
            farewell = time.monotonic() + (_FAREWELL_S if self._has_ended else 0)
            while self._attendants and time.monotonic() < farewell:
                self._listen_to_all()
        except Exception as error:  # noqa: BLE001 - the entry of a thread: without it all would wait in vain
            self._end_by(ErrorDocument.of(error))
        finally:
            for connection in [*self._waiting_room, *(one.connection for one in self._attendants.values())]:
                connection.close()
            self._listener.close()

    def _listen_to_all(self) -> None:
        connections = [*self._waiting_room, *(one.connection for one in self._attendants.values())]
        sources: list[socket.socket | Connection] = [self._listener, *connections]
        readable = set(select.select(sources, [], [], _POLL_S)[0])
        if self._listener in readable:
            # Who has hung up again before is nobody.
            with suppress(ConnectionError):
                self._waiting_room.append(Connection(self._listener.accept()[0]))
        for connection in connections:
            if connection in readable:
                try:
                    while (message := connection.receive(0)) is not None:
                        self._hear(connection, message)
                except ConnectionLost as lost:
                    self._lose(connection, str(lost))

    def _hear(self, connection: Connection, message: Message) -> None:
        if message.kind == "hello":
            self._admit(connection, message)
            return
        one = next((one for one in self._attendants.values() if one.connection is connection), None)
        if message.kind != "ended" or one is None:
            raise ConnectionLost("it speaks out of turn")
        if message.generation != one.generation:
            return
        one.running = one.told_to_stop = False
        self._may_be_finished = True
        self._last_end = _more_telling(self._last_end, message.document)
        if message.document is not None and is_preemption(message.document):
            raise ConnectionLost("it was told to stop")

    def _admit(self, connection: Connection, hello: Message) -> None:
        if hello.job != self._job or not 0 <= hello.node_rank < self._nodes:
            error = ConfigError(
                f"this launcher is machine {hello.node_rank} of {hello.job}, the first machine serves {self._nodes} "
                f"machines of {self._job}",
                allowed="the same configuration, inputs and number of ranks on all machines",
                todo="start all machines with the same command; set resources.port where two jobs share a machine",
            )
            connection.send(Message(kind="over", document=ErrorDocument.of(error)))
            raise ConnectionLost("it is of another job")
        if hello.document is not None:
            self._refuse_output(connection, hello, hello.document)
        elif hello.node_rank == 0:
            self._take_in(connection, hello)
        else:
            self._unseen[connection] = (hello, time.monotonic() + _OUTPUT_PATIENCE_S)

    def _take_in(self, connection: Connection, hello: Message) -> None:
        self._waiting_room = [other for other in self._waiting_room if other is not connection]
        if (before := self._attendants.pop(hello.node_rank, None)) is not None:
            # Its machine went without a word, and is back.
            before.connection.close()
        self._attendants[hello.node_rank] = _Attendant(connection, hello.generation)
        self._newest = max(self._newest, hello.generation)
        if len(self._attendants) == self._nodes:
            self._complete_at = time.monotonic()

    def _look_for_outputs(self) -> None:
        for connection, (hello, until) in list(self._unseen.items()):
            if self._is_shared(hello):
                del self._unseen[connection]
                self._take_in(connection, hello)
            elif time.monotonic() > until:
                error = ConfigError(
                    f"machine {hello.node_rank} does not share its output with the first machine: what it wrote to "
                    f"{storage.display(hello.output)} is not in the folder that the first machine has by that name",
                    allowed="an output in a bucket, or in a folder that is mounted on all machines under the same path",
                    todo="set run.root, or --output, to such a folder on all machines",
                )
                self._refuse_output(connection, hello, ErrorDocument.of(error))

    def _refuse_output(self, connection: Connection, hello: Message, document: ErrorDocument) -> None:
        if document.exit_code == EXIT_USER_ERROR:
            if max(self._newest, hello.generation) < 0:
                # Nothing has begun, and nothing can.
                self._refusal = document
            else:
                # A mount that is missing or slow on one machine ends no job: the others wait for its next attempt.
                document = ErrorDocument.of(TryAgain(document.message))
        with suppress(ConnectionLost):
            connection.send(Message(kind="over", document=document))
        self._say(f"machine {hello.node_rank} cannot take part: {document.message}")
        self._lose(connection, "its output is its own")

    def _lose(self, connection: Connection, reason: str) -> None:
        connection.close()
        self._waiting_room = [other for other in self._waiting_room if other is not connection]
        self._unseen.pop(connection, None)
        for node_rank, one in list(self._attendants.items()):
            if one.connection is connection:
                del self._attendants[node_rank]
                self._may_be_finished = True
                self._complete_at = time.monotonic()
                if not self._is_over.is_set():
                    self._say(f"machine {node_rank} is gone: {reason}")

    def _decide(self) -> None:
        running = [one for one in self._attendants.values() if one.running]
        if running:
            if len(running) < self._nodes:
                self._tell_to_stop(running)
            return
        if self._last_end is not None and self._last_end.exit_code == EXIT_USER_ERROR:
            self._end_by(self._last_end)
            return
        if self._refusal is not None and 0 in self._attendants:
            # The first machine's own launcher is there to hear it.
            self._end_by(self._refusal)
            return
        if self._attendants and self._may_be_finished:
            # Asked once after each change: in a bucket it is a request.
            self._may_be_finished = False
            if self._is_finished():
                self._end(Message(kind="finished"))
                return
        if len(self._attendants) == self._nodes:
            self._start()
        elif not self._unseen and time.monotonic() > self._complete_at + self._timeout_s:
            missing = sorted(set(range(self._nodes)) - set(self._attendants))
            names = ", ".join(map(str, missing))
            self._end_by(
                ErrorDocument.of(
                    TryAgain(
                        f"machine {names} of {self._nodes} did not come within {self._timeout_s:.0f} s "
                        "(resources.setup_timeout_s); the same command continues when all are there"
                    )
                )
            )

    def _tell_to_stop(self, running: list[_Attendant]) -> None:
        for one in running:
            if not one.told_to_stop:
                one.told_to_stop = True
                self._send(one, Message(kind="stop", generation=one.generation))

    def _start(self) -> None:
        generation = self._begin(self._last_end, self._newest)
        if isinstance(generation, ErrorDocument):
            self._end_by(generation)
            return
        self._newest, self._last_end = generation, None
        for one in self._attendants.values():
            one.generation, one.running, one.told_to_stop = generation, True, False
        self._broadcast(Message(kind="start", generation=generation, attempt=self._attempt))

    def _end_by(self, document: ErrorDocument) -> None:
        self._end(Message(kind="over", document=document))

    def _end(self, last_word: Message) -> None:
        self._has_ended = True
        self._broadcast(last_word)
        for connection in self._unseen:
            with suppress(ConnectionLost):
                connection.send(last_word)
        self._is_over.set()

    def _broadcast(self, message: Message) -> None:
        for one in list(self._attendants.values()):
            self._send(one, message)

    def _send(self, one: _Attendant, message: Message) -> None:
        try:
            one.connection.send(message)
        except ConnectionLost as lost:
            self._lose(one.connection, str(lost))


def _more_telling(known: ErrorDocument | None, new: ErrorDocument | None) -> ErrorDocument | None:
    """Of two machines' ends of a generation, keep the one that explains more, or else the first."""
    if known is None or (new is not None and weight_of(new) > weight_of(known)):
        return new
    return known


def listen_patiently(port: int) -> socket.socket:
    """Listen on a port that a process which was killed a moment ago may still hold.

    Raises:
        ConfigError: It is another process's.
    """
    deadline = time.monotonic() + _PORT_PATIENCE_S
    while True:
        try:
            return listen(port)
        except OSError as error:
            if time.monotonic() > deadline:
                raise ConfigError(
                    f"port {port} of this machine, on which launchers meet, cannot be used ({error.strerror})",
                    allowed="a port that no other process has",
                    todo="set resources.port to another one, the same on all machines",
                ) from None
        time.sleep(_POLL_S)
