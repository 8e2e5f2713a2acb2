"""Several machines: torch's c10d rendezvous between their launchers, in a store that the first machine's serves.

Keys of that store, beside the rendezvous' own:

    job            what must be equal on all machines
    token          name of a file in the training folder, by which a machine sees that it shares the output
    begun          set once ranks have started: what is wrong on one machine then ends no job
    alive/NODE     a number that grows each second
    ended          ErrorDocument that ends the job on all machines
    told           how often a machine was told to stop: such a start is not counted
    left/NODE      set by a launcher that has read it, or is finished
    and per round  end/NODE: how its last start ended;  start: the first machine's answer

A machine that is lost leaves the others' ranks failing in a collective; all launchers meet again, and wait for it up to
`resources.setup_timeout_s`. When the first one is lost, the others connect to the store of its successor.
"""

from __future__ import annotations

import json
import os
import socket
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import Any

import torch.distributed as dist
from torch.distributed.elastic.rendezvous import (
    RendezvousClosedError,
    RendezvousConnectionError,
    RendezvousTimeoutError,
)
from torch.distributed.elastic.rendezvous.c10d_rendezvous_backend import C10dRendezvousBackend
from torch.distributed.elastic.rendezvous.dynamic_rendezvous import DynamicRendezvousHandler, RendezvousTimeout

from contracts import storage
from contracts.errors import ConfigError, ErrorDocument, Preempted, ShardlineError, ToldError, TryAgain
from trainer.checkpoint import has_checkpoint
from trainer.launch.assignment import has_stopped, weight_of
from trainer.launch.attempts import StartCounter
from trainer.launch.launcher import STOP_SLACK_S, Launcher, StoreAddress, raise_final
from trainer.launch.nodes import find_interface

TOKEN_PREFIX = ".launch-"
# One call of the store; what takes longer has lost the first machine.
_STORE_TIMEOUT = timedelta(seconds=10)
_BEAT_S = 1.0
# A machine whose beats have not come for so long is gone: its cable is out, or its kernel hangs.
LOST_S = 20.0
# For a mounted folder to show a file of another machine.
OUTPUT_TIMEOUT_S = 30.0
# For the others to read why the job is over, before the store ends with the first machine's launcher.
_FAREWELL_S = 10.0
# For a port that a launcher which was told to stop, or killed a moment ago, may still hold.
_PORT_TIMEOUT_S = 10.0
_RETRY_S, _POLL_S = 0.5, 0.05
_RUN_ID = "ranks"
# All machines get the same fresh store for each round; without this they would dial the addresses of dead ranks
# (_create_tcp_store_server in torch/distributed/elastic/rendezvous/dynamic_rendezvous.py of 2.13).
_OWN_STORE_VARIABLE = "TORCH_DISABLE_SHARE_RDZV_TCP_STORE"


class FirstMachineLost(Exception):
    """The first machine's store does not answer."""


def run_together(launcher: Launcher) -> None:
    """Run the ranks of this machine with those of the others; raises as `run.run_ranks`."""
    os.environ[_OWN_STORE_VARIABLE] = "1"
    counter = launcher.counter() if launcher.nodes.is_primary else None
    end: ErrorDocument | None = None
    deadline = time.monotonic() + launcher.resources.setup_timeout_s
    while True:
        launcher.record.require_open()
        rendezvous = Rendezvous(launcher, counter)
        try:
            with rendezvous.joined():
                while True:
                    address, attempt = rendezvous.next_start(end)
                    end = launcher.run_start(attempt, address, must_stop=rendezvous.must_stop)
                    if end is None:
                        rendezvous.leave()
                        return
                    raise_final(end, counter)
                    launcher.say(f"the ranks start again: {end.message}")
        except FirstMachineLost as lost:
            if launcher.is_finished():
                return
            if counter is not None:
                raise TryAgain(f"the store of this machine's launcher does not answer: {lost}") from None
            if rendezvous.never_met and time.monotonic() > deadline:
                # What answers there is no launcher.
                raise _no_answer(launcher, lost) from None
            if not rendezvous.never_met:
                deadline = time.monotonic() + launcher.resources.setup_timeout_s
            launcher.say(f"the first machine is gone ({lost}); waiting for it to come back")
        except ToldError as error:
            rendezvous.end_job(error.document)
            raise
        except Preempted:
            rendezvous.tell_preemption()
            raise


class Rendezvous:
    """This launcher's connection to the others; `counter` counts starts, on the first machine."""

    def __init__(self, launcher: Launcher, counter: StartCounter | None) -> None:
        self._launcher, self._nodes, self._counter = launcher, launcher.nodes, counter
        self._timeout_s = launcher.resources.setup_timeout_s
        self._store: Any = None
        self._handler: DynamicRendezvousHandler | None = None
        # torch's handler is for one thread at a time.
        self._handler_lock = threading.Lock()
        self._lost: FirstMachineLost | None = None
        self._peer_left = False
        self._told = 0
        self._last_answer = time.monotonic()
        self._left = threading.Event()
        self.never_met = True

    @contextmanager
    def joined(self) -> Iterator[None]:
        """Connect to the store in the block, check that this machine belongs here, and show that it is alive."""
        with self._translating_errors():
            store = self._store = self._serve() if self._nodes.is_primary else self._connect()
            self._handler = DynamicRendezvousHandler.from_backend(
                run_id=_RUN_ID,
                store=store,
                backend=C10dRendezvousBackend(store, _RUN_ID),
                min_nodes=self._nodes.nodes,
                max_nodes=self._nodes.nodes,
                local_addr=self._local_address(),
                timeout=RendezvousTimeout(join=timedelta(seconds=self._timeout_s)),
            )
            with self._shared_output():
                threading.Thread(target=self._watch, name="rendezvous", daemon=True).start()
                try:
                    yield
                finally:
                    self._left.set()

    def next_start(self, end: ErrorDocument | None) -> tuple[StoreAddress, str]:
        """Wait for all machines; return where the ranks' store is, and the first machine's attempt.

        Raises:
            ToldError: The job is over, and why.
            TryAgain: A machine did not come in time.
            Preempted: This machine was told to stop.
        """
        if self._lost is not None or not self._handler_lock.acquire(timeout=LOST_S):
            raise self._lost or FirstMachineLost("its store does not answer")
        try:
            with self._launcher.stop.interrupting():
                while True:
                    round_store = self._meet()
                    round_store.set(f"end/{self._nodes.node_rank}", "" if end is None else end.model_dump_json())
                    self._peer_left = False
                    listener = self._answer(round_store, end) if self._counter is not None else None
                    if (content := self._wait_for(round_store, "start")) is not None:
                        break
        finally:
            self._handler_lock.release()
        self._last_answer, self.never_met = time.monotonic(), False
        start = json.loads(content)
        if start is None:
            raise self._ending()
        host = "localhost" if self._nodes.is_primary else self._nodes.host
        address = StoreAddress(host, start["port"], listener, find_interface(self._local_address()))
        return address, start["attempt"]

    def _meet(self) -> Any:
        """Join the next round, and return its store."""
        assert self._handler is not None
        try:
            return self._handler.next_rendezvous().store
        except RendezvousClosedError:
            raise self._ending() from None
        except RendezvousTimeoutError:
            raise TryAgain(
                f"not all {self._nodes.nodes} machines came within {self._timeout_s:.0f} s "
                f"(resources.setup_timeout_s){self._missing()}; the same command continues when all are there"
            ) from None

    def _wait_for(self, store: Any, key: str) -> bytes | None:
        """Return a value that another launcher sets; None: it left this round meanwhile."""
        assert self._handler is not None
        deadline = time.monotonic() + self._timeout_s
        while not store.check([key]):
            if self._handler.num_nodes_waiting():
                return None
            if time.monotonic() > deadline:
                raise TryAgain(f"another machine did not answer within {self._timeout_s:.0f} s ({key})")
            time.sleep(_POLL_S)
        value: bytes = store.get(key)
        return value

    def must_stop(self) -> bool:
        """Return whether another machine has left the start that runs."""
        if self._lost is None and time.monotonic() - self._last_answer > LOST_S:
            self._lost = FirstMachineLost(f"its store has not answered for {LOST_S:.0f} s")
        return self._peer_left or self._lost is not None

    def end_job(self, document: ErrorDocument) -> None:
        """End the job on all machines."""
        if self._handler is not None and self._lost is None:
            with suppress(RuntimeError, RendezvousConnectionError):
                self._store.compare_set("ended", "", document.model_dump_json())
                self._handler.set_closed()
            self.leave()

    def tell_preemption(self) -> None:
        """Let the first machine not count the start that ends with this machine's."""
        if self._handler is not None and self._lost is None:
            with suppress(RuntimeError):
                self._store.add("told", 1)

    def leave(self) -> None:
        """Leave for good; the first machine serves the store until the others have left too, for a moment."""
        with suppress(RuntimeError):
            self._store.set(f"left/{self._nodes.node_rank}", "")
            others, deadline = [f"left/{node}" for node in range(1, self._nodes.nodes)], time.monotonic() + _FAREWELL_S
            while self._counter is not None and not self._store.check(others) and time.monotonic() < deadline:
                time.sleep(_POLL_S)

    # --- the store ----------------------------------------------------------------------------------------------------

    def _serve(self) -> Any:
        resources = self._launcher.resources
        deadline = time.monotonic() + resources.stop_budget_s + STOP_SLACK_S + _PORT_TIMEOUT_S
        while True:
            self._launcher.stop.check()
            try:
                store = _make_store("localhost", self._nodes.port, is_master=True)
                break
            except RuntimeError as error:
                if time.monotonic() > deadline:
                    raise ConfigError(
                        f"port {self._nodes.port} of this machine, on which launchers meet, cannot be used "
                        f"({str(error).splitlines()[0]})",
                        allowed="a port that no other process has",
                        todo="set resources.port to another one, the same on all machines",
                    ) from None
            time.sleep(_RETRY_S)
        if has_checkpoint(self._launcher.assignment.folder):
            store.set("begun", "1")
        return store

    def _connect(self) -> Any:
        host, port = self._nodes.host, self._nodes.port
        deadline, announced = time.monotonic() + self._timeout_s, False
        while True:
            self._launcher.stop.check()
            try:
                # Its errors are in one line; those of a store that cannot connect are not.
                socket.create_connection((host, port), timeout=_STORE_TIMEOUT.total_seconds()).close()
                break
            except OSError as error:
                if self._launcher.is_finished():
                    raise FirstMachineLost(str(error)) from None
                if time.monotonic() > deadline:
                    raise _no_answer(self._launcher, error) from None
            if not announced:
                announced = True
                self._launcher.say(f"waiting for the first machine, {host}:{port}, for up to {self._timeout_s:.0f} s")
            time.sleep(_RETRY_S)
        store = _make_store(host, port, is_master=False)
        job = store.get("job").decode()
        if job != self._job():
            raise ConfigError(
                f"this launcher is machine {self._nodes.node_rank} of {self._job()}, the first machine serves {job}",
                allowed="the same configuration, inputs and number of ranks on all machines",
                todo="start all machines with the same command; set resources.port where two jobs share a machine",
            )
        return store

    def _job(self) -> str:
        assignment = self._launcher.assignment
        # The name of the job comes first: it is what a person knows.
        name = self._nodes.job_id or "a job without an id"
        return f"{name} (training {assignment.fingerprint}, {assignment.nodes} machines of {assignment.ranks} ranks)"

    @contextmanager
    def _shared_output(self) -> Iterator[None]:
        """On the first machine leave a file in the training folder for the block; on the others look for it."""
        folder, store = self._launcher.assignment.folder, self._store
        if self._nodes.is_primary:
            token = f"{TOKEN_PREFIX}{uuid.uuid4().hex}"
            place = storage.join(folder, token)
            if storage.is_local(folder):
                for left_over in storage.list_names(folder):
                    if left_over.startswith(TOKEN_PREFIX):
                        storage.delete(storage.join(folder, left_over))
                storage.replace(place, b"")
            store.set("token", token if storage.is_local(folder) else folder)
            store.set("job", self._job())
            try:
                yield
            finally:
                with suppress(OSError, ShardlineError):
                    storage.delete(place)
            return
        token = store.get("token").decode()
        with self._launcher.stop.interrupting():
            is_shared = _sees(folder, token)
        if not is_shared:
            error = ConfigError(
                f"machine {self._nodes.node_rank} does not share its output with the first machine: what that wrote to "
                f"{storage.display(folder)} is not in the folder that this machine has by that name",
                allowed="an output in a bucket, or in a folder that is mounted on all machines under the same path",
                todo="set run.root, or --output, to such a folder on all machines",
            )
            if store.check(["begun"]):
                # A mount that is missing on one machine ends no job: the others wait for its next attempt.
                raise TryAgain(str(error))
            raise ToldError(ErrorDocument.of(error))
        yield

    # --- one round ----------------------------------------------------------------------------------------------------

    def _answer(self, round_store: Any, end: ErrorDocument | None) -> socket.socket | None:
        """On the first machine: count the start, and tell all where the ranks' store will be; None: there is none."""
        assert self._counter is not None
        documents = [self._wait_for(round_store, f"end/{node}") for node in range(self._nodes.nodes)]
        if None in documents:
            return None
        ends = [ErrorDocument.model_validate_json(document) for document in documents if document]
        told = self._store.add("told", 0)
        if told > self._told and not (end is not None and has_stopped(end)):
            self._counter.told_to_stop()
        self._told = told
        refusal = self._counter.begin(max(ends, key=weight_of, default=None))
        if refusal is not None:
            self._store.compare_set("ended", "", refusal.model_dump_json())
            round_store.set("start", "null")
            return None
        self._store.set("begun", "1")
        listener = _listen()
        start = {"port": listener.getsockname()[1], "attempt": self._launcher.assignment.attempt}
        round_store.set("start", json.dumps(start))
        return listener

    def _ending(self) -> ShardlineError:
        """Return why the job is over."""
        if self._store.check(["ended"]):
            return ToldError(ErrorDocument.model_validate_json(self._store.get("ended")))
        return TryAgain("another machine has ended the job and did not say why")

    def _missing(self) -> str:
        with suppress(RuntimeError):
            missing = [node for node in range(self._nodes.nodes) if not self._store.add(f"alive/{node}", 0)]
            return f": machine {', '.join(map(str, missing))} was never seen" if missing else ""
        return ""

    def _watch(self) -> None:
        """Show that this machine is alive, and see whether others are; the thread ends with the connection."""
        assert self._handler is not None
        beats: dict[int, tuple[int, float]] = {}
        while not self._left.wait(_BEAT_S):
            try:
                self._store.add(f"alive/{self._nodes.node_rank}", 1)
                if self._handler_lock.acquire(blocking=False):
                    try:
                        self._peer_left |= bool(self._handler.num_nodes_waiting() or self._handler.is_closed())
                    finally:
                        self._handler_lock.release()
                if self._counter is not None:
                    self._find_silent(beats)
            except (RuntimeError, RendezvousConnectionError) as error:
                self._lost = FirstMachineLost(str(error.__cause__ or error).splitlines()[0])
                return
            self._last_answer = time.monotonic()

    def _find_silent(self, beats: dict[int, tuple[int, float]]) -> None:
        now = time.monotonic()
        for node in range(1, self._nodes.nodes):
            beat = self._store.add(f"alive/{node}", 0)
            if beat != beats.get(node, (0, 0.0))[0]:
                beats[node] = (beat, now)
            elif beat and now - beats[node][1] > LOST_S:
                self._launcher.say(f"machine {node} is gone: nothing was heard of it for {LOST_S:.0f} s")
                self._peer_left = True
                # Said once; it counts as new when it is back.
                beats[node] = (beat, float("inf"))

    @contextmanager
    def _translating_errors(self) -> Iterator[None]:
        """Raise FirstMachineLost for errors of the store."""
        try:
            yield
        except (dist.DistError, RendezvousConnectionError) as error:
            raise FirstMachineLost(str(error.__cause__ or error).splitlines()[0]) from None

    def _local_address(self) -> str:
        """Return the address by which this machine reaches the others."""
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe, suppress(OSError):
            # Of a datagram socket this sends nothing; it chooses the way.
            probe.connect((self._nodes.host, self._nodes.port))
            return str(probe.getsockname()[0])
        return "localhost"


def _no_answer(launcher: Launcher, error: Exception) -> TryAgain:
    nodes, limit_s = launcher.nodes, launcher.resources.setup_timeout_s
    return TryAgain(
        f"the first machine ({nodes.host}:{nodes.port}) did not answer within {limit_s:.0f} s "
        f"(resources.setup_timeout_s): {error}"
    )


def _make_store(host: str, port: int, *, is_master: bool) -> Any:
    return dist.TCPStore(host, port, is_master=is_master, timeout=_STORE_TIMEOUT, wait_for_workers=False)  # type: ignore[attr-defined]


def _listen() -> socket.socket:
    """Listen on a free port of all addresses of this machine."""
    if socket.has_dualstack_ipv6():
        with suppress(OSError):
            return socket.create_server(("", 0), family=socket.AF_INET6, dualstack_ipv6=True)
    return socket.create_server(("", 0))


def _sees(folder: str, token: str) -> bool:
    if not token.startswith(TOKEN_PREFIX) or not storage.is_local(folder):
        return token == folder
    deadline = time.monotonic() + OUTPUT_TIMEOUT_S
    while time.monotonic() < deadline:
        # A mounted folder may show it late, or not answer for a while.
        with suppress(OSError):
            if storage.exists(storage.join(folder, token)):
                return True
        time.sleep(_RETRY_S)
    return False
