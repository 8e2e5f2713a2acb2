"""Worker processes for the FnApiRunner whose death ends the job.

Beam starts such processes itself (direct_running_mode=multi_processing), but waits forever for the answer of one that
was killed. Here a thread waits for each process: when one ends before it was told to, the others are killed and every
open request is answered with an error, so that the runner gives up within seconds; `worker_processes` says why.
"""

from __future__ import annotations

import contextlib
import functools
import multiprocessing.connection
import os
import threading
from collections.abc import Iterator
from multiprocessing.context import ForkServerProcess
from typing import Any

import grpc
from apache_beam.portability import python_urns
from apache_beam.portability.api import beam_fn_api_pb2, endpoints_pb2
from apache_beam.runners.portability.fn_api_runner.worker_handlers import SubprocessSdkWorkerHandler, WorkerHandler
from apache_beam.transforms.environments import SubprocessSDKEnvironment
from google.protobuf import text_format

from contracts.errors import TryAgain
from sharding.runners.work import WORKER_MODULE, fork_context
from sharding.runners.worker import serve

# How often requests that were sent after a death are failed, until the runner has noticed.
_ABORT_INTERVAL_S = 0.2
# A worker that was told to end has nothing left to do.
_CLOSE_TIMEOUT_S = 10.0
# The exit code of a process can be read once, and starting a process reads those of all that have ended
# (multiprocessing.process._cleanup): whoever comes second, in another thread, is told 255.
_status_lock = threading.Lock()


@contextlib.contextmanager
def worker_processes() -> Iterator[SubprocessSDKEnvironment]:
    """Give the Beam environment whose workers are copies of the fork server (sharding/runners/work.py), all watched.

    Raises:
        TryAgain: The runner gave up because a worker died.
    """
    deaths: list[str] = []
    WorkerHandler.register_environment(python_urns.SUBPROCESS_SDK, bytes)(functools.partial(WorkerProcess, deaths))
    threads_report = threading.excepthook
    # The threads that read what a dead process sent end with an error of the connection, each with a traceback.
    threading.excepthook = lambda report: None if deaths else threads_report(report)
    try:
        # Beam wants a command, which nobody runs: `WorkerProcess` knows what to start.
        yield SubprocessSDKEnvironment.from_command_string(WORKER_MODULE)
    except (RuntimeError, OSError, grpc.RpcError):
        if deaths:
            raise TryAgain(f"{deaths[0]} before its work was done; the next attempt starts from the listing") from None
        raise
    finally:
        threading.excepthook = threads_report


class WorkerProcess(SubprocessSdkWorkerHandler):  # type: ignore[misc]
    """One worker process, from its start to its end."""

    def __init__(self, deaths: list[str], *arguments: Any) -> None:
        super().__init__(*arguments)
        self._deaths = deaths
        self._process: ForkServerProcess | None = None
        self._started = threading.Event()
        self._closing = threading.Event()
        self._watcher = threading.Thread(target=self._run, name=f"watch {self.worker_id}", daemon=True)

    def start_worker(self) -> None:
        """Start the process; it connects by itself."""
        self._watcher.start()
        self._started.wait()

    def stop_worker(self) -> None:
        """Wait for the process to end, as it was told to when its connection was closed."""
        self._watcher.join(_CLOSE_TIMEOUT_S)
        self.kill()
        self._watcher.join()

    def close(self) -> None:
        """Close the connections, then wait for the process."""
        self._closing.set()
        # A process that ends at once breaks its connection for data before it was closed on this side: nothing more is
        # expected of it, and a break that mattered has ended the job before.
        self.data_conn._closed = True
        self.control_conn.close()
        with contextlib.suppress(grpc.RpcError):
            self.data_conn.close()
        self.stop_worker()

    def kill(self) -> None:
        """End the process at once."""
        if self._process is not None:
            self._process.kill()

    def _run(self) -> None:
        control = endpoints_pb2.ApiServiceDescriptor(url=self.control_address)
        environment = {
            "CONTROL_API_SERVICE_DESCRIPTOR": text_format.MessageToString(control),
            "PIPELINE_OPTIONS": "{}",
            "WORKER_ID": self.worker_id,
        }
        process = fork_context().Process(target=serve, args=(environment, os.getpid()), daemon=True)
        refusal = None
        try:
            with _status_lock:
                process.start()
            # Only now can it be killed.
            self._process = process
        except (OSError, EOFError) as error:
            # No process is to be had, or the fork server is gone.
            refusal = f"could not be started ({error or type(error).__name__})"
        finally:
            self._started.set()
        if refusal is not None:
            self._abort(refusal)
            return
        multiprocessing.connection.wait([process.sentinel])
        with _status_lock:
            process.join()
        if not self._closing.is_set():
            code = process.exitcode or 0
            self._abort(f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}")

    def _abort(self, how: str) -> None:
        """Answer all requests to all workers with an error, until the runner closes them."""
        message = f"a Beam worker process {how}"
        self._deaths.append(message)
        control = self._grpc_server.control_handler
        for worker in list(control._worker_manager._workers_by_id.values()):
            if worker is not self:
                worker.kill()
        while not self._closing.wait(_ABORT_INTERVAL_S):
            for connection in list(control._connections_by_worker_id.values()):
                for identity, future in list(connection._futures_by_id.items()):
                    # Not ControlFuture.abort: whoever waits for the data of a bundle looks at answers only.
                    future.set(beam_fn_api_pb2.InstructionResponse(instruction_id=identity, error=message))
