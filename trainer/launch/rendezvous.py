"""Coordination of several machines: torch's c10d rendezvous of launchers, in a store served by the first machine.

Keys of the store, besides those of the rendezvous:

    job            description of the job, equal on all machines
    token          name of a file in the training folder, for checking that the output is shared
    begun          set once ranks have started; then problems of one machine do not end the job
    alive/NODE     heartbeat counter
    ended          ErrorDocument that ends the job on all machines
    preemptions    number of preempted machines, whose starts are not counted
    left/NODE      set by a launcher that has read `ended`, or is finished
    per round      end/NODE: how the last start ended;  start: the first machine's response

If a machine is lost, the ranks of the others fail in a collective. All launchers join the next round and wait for it up
to `resources.setup_timeout_s`. If the first machine is lost, the others connect to the store of its successor.
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
from contracts.errors import ConfigError, ErrorDocument, ForwardedError, Preempted, ShardlineError, TryAgain
from trainer.checkpoint import has_checkpoint
from trainer.launch.assignment import has_stopped, weight_of
from trainer.launch.attempts import StartCounter
from trainer.launch.launcher import STOP_SLACK_S, Launcher, StoreAddress, raise_final
from trainer.launch.nodes import find_interface

TOKEN_PREFIX = ".launch-"
# Time-out of a store call, after which the first machine is considered lost.
_STORE_TIMEOUT = timedelta(seconds=10)
_HEARTBEAT_S = 1.0
# A machine without a heartbeat for this time is considered lost.
LOST_S = 20.0
# For a file of another machine to appear in a mounted folder.
OUTPUT_TIMEOUT_S = 30.0
# For others to read the final error before the store ends with the first launcher.
_SHUTDOWN_GRACE_S = 10.0
# For a previous launcher to release the port.
_PORT_TIMEOUT_S = 10.0
_RETRY_S, _POLL_S = 0.5, 0.05
_RUN_ID = "ranks"
# Gives all machines the same new store per round; otherwise they would connect to addresses of dead ranks
# (_create_tcp_store_server in torch/distributed/elastic/rendezvous/dynamic_rendezvous.py of 2.13).
_NO_SHARED_STORE_VARIABLE = "TORCH_DISABLE_SHARE_RDZV_TCP_STORE"


class FirstMachineLost(Exception):
    """The first machine's store does not respond."""


def run_together(launcher: Launcher) -> None:
    """Run the ranks of this machine together with other machines; raises like `run_ranks`."""
    os.environ[_NO_SHARED_STORE_VARIABLE] = "1"
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
                    launcher.log(f"the ranks start again: {end.message}")
        except FirstMachineLost as error:
            if launcher.is_finished():
                return
            if counter is not None:
                raise TryAgain(f"the store of this machine's launcher does not answer: {error}") from None
            if rendezvous.never_met and time.monotonic() > deadline:
                # Another program listens on this port.
                raise _no_response(launcher, error) from None
            if not rendezvous.never_met:
                deadline = time.monotonic() + launcher.resources.setup_timeout_s
            launcher.log(f"the first machine is gone ({error}); waiting for it to come back")
        except ForwardedError as error:
            rendezvous.end_job(error.document)
            raise
        except Preempted:
            rendezvous.report_preemption()
            raise


class Rendezvous:
    """Connection of this launcher to the others; `counter` counts starts on the first machine."""

    def __init__(self, launcher: Launcher, counter: StartCounter | None) -> None:
        self._launcher, self._nodes, self._counter = launcher, launcher.nodes, counter
        self._timeout_s = launcher.resources.setup_timeout_s
        self._store: Any = None
        self._handler: DynamicRendezvousHandler | None = None
        # torch's handler is not thread-safe.
        self._handler_lock = threading.Lock()
        self._store_error: FirstMachineLost | None = None
        self._peer_left = False
        self._preemptions = 0
        self._last_response = time.monotonic()
        self._closed = threading.Event()
        self.never_met = True

    @contextmanager
    def joined(self) -> Iterator[None]:
        """Connect to the store, check job and output, and send heartbeats in the block."""
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
                    self._closed.set()

    def next_start(self, end: ErrorDocument | None) -> tuple[StoreAddress, str]:
        """Wait for all machines; return the address of the ranks' store and the first machine's attempt.

        Raises:
            ForwardedError: The job has ended, with its error.
            TryAgain: A machine did not join in time.
            Preempted: This machine received a stop signal.
        """
        if self._store_error is not None or not self._handler_lock.acquire(timeout=LOST_S):
            raise self._store_error or FirstMachineLost("its store does not answer")
        try:
            with self._launcher.stop.interrupting():
                while True:
                    round_store = self._meet()
                    round_store.set(f"end/{self._nodes.node_rank}", "" if end is None else end.model_dump_json())
                    self._peer_left = False
                    listener = self._publish_start(round_store, end) if self._counter is not None else None
                    if (content := self._wait_for(round_store, "start")) is not None:
                        break
        finally:
            self._handler_lock.release()
        self._last_response, self.never_met = time.monotonic(), False
        start = json.loads(content)
        if start is None:
            raise self._ending()
        host = "localhost" if self._nodes.is_primary else self._nodes.host
        address = StoreAddress(host, start["port"], listener, find_interface(self._local_address()))
        return address, start["attempt"]

    def _meet(self) -> Any:
        """Join the next round and return its store."""
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
        """Wait for a value of another launcher; None if that launcher left the round."""
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
        """Return whether another machine left the running start."""
        if self._store_error is None and time.monotonic() - self._last_response > LOST_S:
            self._store_error = FirstMachineLost(f"its store has not answered for {LOST_S:.0f} s")
        return self._peer_left or self._store_error is not None

    def end_job(self, document: ErrorDocument) -> None:
        """End the job on all machines."""
        if self._handler is not None and self._store_error is None:
            with suppress(RuntimeError, RendezvousConnectionError):
                self._store.compare_set("ended", "", document.model_dump_json())
                self._handler.set_closed()
            self.leave()

    def report_preemption(self) -> None:
        """Report a preemption, so that the first machine does not count this start."""
        if self._handler is not None and self._store_error is None:
            with suppress(RuntimeError):
                self._store.add("preemptions", 1)

    def leave(self) -> None:
        """Leave the job; the first machine waits up to `_SHUTDOWN_GRACE_S` for the others to leave."""
        with suppress(RuntimeError):
            self._store.set(f"left/{self._nodes.node_rank}", "")
            peer_keys, deadline = (
                [f"left/{node}" for node in range(1, self._nodes.nodes)],
                time.monotonic() + _SHUTDOWN_GRACE_S,
            )
            while self._counter is not None and not self._store.check(peer_keys) and time.monotonic() < deadline:
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
                # Probe first: socket errors are one line, unlike those of the store.
                socket.create_connection((host, port), timeout=_STORE_TIMEOUT.total_seconds()).close()
                break
            except OSError as error:
                if self._launcher.is_finished():
                    raise FirstMachineLost(str(error)) from None
                if time.monotonic() > deadline:
                    raise _no_response(self._launcher, error) from None
            if not announced:
                announced = True
                self._launcher.log(f"waiting for the first machine, {host}:{port}, for up to {self._timeout_s:.0f} s")
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
        # The job id first, for users.
        name = self._nodes.job_id or "a job without an id"
        return f"{name} (training {assignment.fingerprint}, {assignment.nodes} machines of {assignment.ranks} ranks)"

    @contextmanager
    def _shared_output(self) -> Iterator[None]:
        """Check that the output is shared: the first machine writes a file for the block, the others check for it."""
        folder, store = self._launcher.assignment.folder, self._store
        if self._nodes.is_primary:
            token = f"{TOKEN_PREFIX}{uuid.uuid4().hex}"
            token_uri = storage.join(folder, token)
            if storage.is_local(folder):
                for name in storage.list_names(folder):
                    if name.startswith(TOKEN_PREFIX):
                        storage.delete(storage.join(folder, name))
                storage.replace(token_uri, b"")
            store.set("token", token if storage.is_local(folder) else folder)
            store.set("job", self._job())
            try:
                yield
            finally:
                with suppress(OSError, ShardlineError):
                    storage.delete(token_uri)
            return
        token = store.get("token").decode()
        with self._launcher.stop.interrupting():
            is_shared = _is_shared(folder, token)
        if not is_shared:
            error = ConfigError(
                f"machine {self._nodes.node_rank} does not share its output with the first machine: what that wrote to "
                f"{storage.display(folder)} is not in the folder that this machine has by that name",
                allowed="an output in a bucket, or in a folder that is mounted on all machines under the same path",
                todo="set run.root, or --output, to such a folder on all machines",
            )
            if store.check(["begun"]):
                # A missing mount does not end the job: the others wait for this machine's next attempt.
                raise TryAgain(str(error))
            raise ForwardedError(ErrorDocument.of(error))
        yield

    # --- one round ----------------------------------------------------------------------------------------------------

    def _publish_start(self, round_store: Any, end: ErrorDocument | None) -> socket.socket | None:
        """On the first machine: count the start and publish the store's address; None if there is no start."""
        assert self._counter is not None
        documents = [self._wait_for(round_store, f"end/{node}") for node in range(self._nodes.nodes)]
        if None in documents:
            return None
        ends = [ErrorDocument.model_validate_json(document) for document in documents if document]
        preemptions = self._store.add("preemptions", 0)
        if preemptions > self._preemptions and not (end is not None and has_stopped(end)):
            self._counter.uncount_start()
        self._preemptions = preemptions
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
        """Return the error that ended the job."""
        if self._store.check(["ended"]):
            return ForwardedError(ErrorDocument.model_validate_json(self._store.get("ended")))
        return TryAgain("another machine ended the job without recording an error")

    def _missing(self) -> str:
        with suppress(RuntimeError):
            missing = [node for node in range(self._nodes.nodes) if not self._store.add(f"alive/{node}", 0)]
            return f": machine {', '.join(map(str, missing))} was never seen" if missing else ""
        return ""

    def _watch(self) -> None:
        """Send heartbeats and check those of others; the thread ends with the connection."""
        assert self._handler is not None
        heartbeats: dict[int, tuple[int, float]] = {}
        while not self._closed.wait(_HEARTBEAT_S):
            try:
                self._store.add(f"alive/{self._nodes.node_rank}", 1)
                if self._handler_lock.acquire(blocking=False):
                    try:
                        self._peer_left |= bool(self._handler.num_nodes_waiting() or self._handler.is_closed())
                    finally:
                        self._handler_lock.release()
                if self._counter is not None:
                    self._detect_lost_machines(heartbeats)
            except (RuntimeError, RendezvousConnectionError) as error:
                self._store_error = FirstMachineLost(str(error.__cause__ or error).splitlines()[0])
                return
            self._last_response = time.monotonic()

    def _detect_lost_machines(self, heartbeats: dict[int, tuple[int, float]]) -> None:
        now = time.monotonic()
        for node in range(1, self._nodes.nodes):
            count = self._store.add(f"alive/{node}", 0)
            if count != heartbeats.get(node, (0, 0.0))[0]:
                heartbeats[node] = (count, now)
            elif count and now - heartbeats[node][1] > LOST_S:
                self._launcher.log(f"machine {node} is gone: no heartbeat for {LOST_S:.0f} s")
                self._peer_left = True
                # Logged once; the next heartbeat resets it.
                heartbeats[node] = (count, float("inf"))

    @contextmanager
    def _translating_errors(self) -> Iterator[None]:
        """Raise errors of the store as FirstMachineLost."""
        try:
            yield
        except (dist.DistError, RendezvousConnectionError) as error:
            raise FirstMachineLost(str(error.__cause__ or error).splitlines()[0]) from None

    def _local_address(self) -> str:
        """Return the address of this machine on the route to the first one."""
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe, suppress(OSError):
            # Connecting a UDP socket sends nothing; it only selects the route.
            probe.connect((self._nodes.host, self._nodes.port))
            return str(probe.getsockname()[0])
        return "localhost"


def _no_response(launcher: Launcher, error: Exception) -> TryAgain:
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


def _is_shared(folder: str, token: str) -> bool:
    if not token.startswith(TOKEN_PREFIX) or not storage.is_local(folder):
        return token == folder
    deadline = time.monotonic() + OUTPUT_TIMEOUT_S
    while time.monotonic() < deadline:
        # A mounted folder may lag or fail temporarily.
        with suppress(OSError):
            if storage.exists(storage.join(folder, token)):
                return True
        time.sleep(_RETRY_S)
    return False
