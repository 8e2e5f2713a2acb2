"""Simulated containers: a command and all processes that it starts.

A container ends with its first process; remaining processes are killed. They are found by a mark in their environment,
which children inherit even in a new session or process group, and by the session of the first process.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import rehearsal
from contracts.process import THREAD_VARIABLES, available_cores
from rehearsal.guard import PYTHON_GUARD

MARK_VARIABLE = "SHARDLINE_REHEARSAL_TREE"
KILL_LIMIT_S = 30.0
"""Time for a process to end after SIGKILL: one blocked in the kernel may never end."""
# Inherited variables: locations of programs and the GPU.
_INHERITED = ("PATH", "LANG", "LC_ALL", "TZ", "LD_LIBRARY_PATH", "VIRTUAL_ENV", "CUDA_VISIBLE_DEVICES", "PYTHONPATH")
# Ties the process to its parent's life (PR_SET_PDEATHSIG), pins it to its cores, then executes the command.
_RUN = """
import ctypes, os, sys
parent, cores, *command = sys.argv[1:]
if sys.platform == "linux":
    ctypes.CDLL(None).prctl(1, 9)
if os.getppid() != int(parent):
    os._exit(75)
if cores and hasattr(os, "sched_setaffinity"):
    os.sched_setaffinity(0, [int(core) for core in cores.split(",")])
try:
    os.execvp(command[0], command)
except OSError as error:
    print(f"{command[0]}: {error.strerror}", file=sys.stderr, flush=True)
    os._exit(127)
"""
_POLL_S = 0.05
_PROC = Path("/proc")
# Exit code of shells: found, but not executable.
_CANNOT_BE_STARTED = 126
_OUTPUT_S = 10.0


def clean_environment(*layers: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of a container: a few inherited variables, overridden by the layers in order.

    `python` is this interpreter, and shardline can be imported from any folder. PYTHONPATH contains only folders of
    installed packages, as images do not have the user's modules.
    """
    environment = {name: os.environ[name] for name in _INHERITED if name in os.environ}
    environment["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), environment.get("PATH", os.defpath)])
    # The guard applies only if a layer has it, even if this process is guarded.
    inherited = [folder for folder in _package_folders(environment) if folder != str(PYTHON_GUARD)]
    folders = [str(Path(rehearsal.__file__).parents[1]), *inherited]
    environment["PYTHONUNBUFFERED"] = "1"
    # As in the images: no imports from the working folder.
    environment["PYTHONSAFEPATH"] = "1"
    environment |= dict.fromkeys(THREAD_VARIABLES, str(available_cores()))
    for layer in layers:
        environment |= layer
        folders = [*_package_folders(layer), *folders]
    environment["PYTHONPATH"] = os.pathsep.join(dict.fromkeys(folders))
    return environment


def _package_folders(environment: Mapping[str, str]) -> list[str]:
    """Return the entries of PYTHONPATH with installed packages (`pip install --target`), or the guard."""
    parts = environment.get("PYTHONPATH", "").split(os.pathsep)
    folders = [os.path.abspath(part) for part in parts if part]  # noqa: PTH100
    return [part for part in folders if part == str(PYTHON_GUARD) or any(Path(part).glob("*.dist-info"))]


class ProcessTree:
    """A running command and its descendants.

    Args:
        command: `python` and `python3` are this interpreter; stderr is redirected to stdout.
        environment: The complete environment; the mark is added.
        folder: Working directory.
        on_line: Called with each line of output, in a thread.
        cores: CPU affinity; empty: that of this process.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        environment: Mapping[str, str],
        folder: Path,
        on_line: Callable[[str], None],
        cores: Sequence[int] = (),
    ) -> None:
        self._mark = uuid.uuid4().hex
        self._environment = {**environment, MARK_VARIABLE: f"{environment.get(MARK_VARIABLE, '')}/{self._mark}"}
        program, *arguments = command
        self._command = [sys.executable if program in ("python", "python3") else program, *arguments]
        self._folder, self._on_line, self._cores = folder, on_line, ",".join(map(str, cores))
        self._process: subprocess.Popen[bytes] | None = None
        self._started, self._output_ended, self._ended = threading.Event(), threading.Event(), threading.Event()
        self._killing = threading.Lock()
        self.returncode: int | None = None
        """Exit code of the first process, negative for a signal; None while it runs."""
        # PR_SET_PDEATHSIG applies to the starting thread, so that thread also waits for the process.
        threading.Thread(target=self._run, name=f"container {self._command[0]}", daemon=True).start()
        self._started.wait()

    def wait(self, timeout_s: float | None = None) -> int | None:
        """Wait for the end of all processes; return the exit code of the first, None after `timeout_s`."""
        return self.returncode if self._ended.wait(timeout_s) else None

    def send(self, number: int) -> None:
        """Send a signal to the first process only, as a container runtime does.

        Like process 1 of a container, it receives only signals that it handles, and SIGKILL:
        https://man7.org/linux/man-pages/man7/pid_namespaces.7.html
        """
        with contextlib.suppress(ProcessLookupError):
            if self._process is not None and self._process.poll() is None and _accepts(self._process.pid, number):
                self._process.send_signal(number)

    def kill(self) -> None:
        """Kill all processes; return when all have ended, or after KILL_LIMIT_S with a message to `on_line`."""
        self.send(signal.SIGKILL)
        self._kill_all()
        if not self._ended.wait(KILL_LIMIT_S):
            self.returncode = -signal.SIGKILL
            self._ended.set()

    def stop(self, grace_s: float) -> int | None:
        """Send SIGTERM, wait `grace_s`, then kill; return the exit code."""
        self.send(signal.SIGTERM)
        if self.wait(grace_s) is None:
            self.kill()
        return self.returncode

    def _run(self) -> None:
        try:
            process = self._process = subprocess.Popen(
                [sys.executable, "-S", "-c", _RUN, str(os.getpid()), self._cores, *self._command],
                env=self._environment,
                cwd=self._folder,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        except (OSError, ValueError, subprocess.SubprocessError) as error:
            # E.g. too many arguments, a NUL in one, or a deleted folder.
            self.returncode = _CANNOT_BE_STARTED
            try:
                self._on_line(f"{self._command[0]}: cannot be started: {error}")
            finally:
                self._ended.set()
            return
        finally:
            self._started.set()
        threading.Thread(target=self._read, args=(process,), name="output of a container", daemon=True).start()
        code = process.wait()
        self._kill_all()
        # No process has the pipe open any more.
        self._output_ended.wait(_OUTPUT_S)
        if not self._ended.is_set():
            self.returncode = code
            self._ended.set()

    def _read(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdout is not None
        try:
            with process.stdout as stream:
                for line in stream:
                    self._on_line(line.decode(errors="replace").rstrip("\n"))
        finally:
            self._output_ended.set()

    def _kill_all(self) -> None:
        if self._process is None or self._ended.is_set():
            return
        session = self._process.pid
        if not _PROC.exists():
            # Outside Linux, processes in new sessions are not found.
            with contextlib.suppress(OSError):
                os.killpg(session, signal.SIGKILL)
            return
        with self._killing:
            survivors = end_processes(lambda pid: has_mark(pid, self._mark) or _session_of(pid) == session)
        if survivors:
            self._on_line(f"processes {', '.join(map(str, survivors))} do not end after SIGKILL: inspect them with ps")


def end_processes(is_target: Callable[[int], bool]) -> list[int]:
    """Kill all target processes until none exists; return the survivors after KILL_LIMIT_S."""
    deadline = time.monotonic() + KILL_LIMIT_S
    while pids := [pid for pid in _pids() if is_target(pid)]:
        if time.monotonic() > deadline:
            return pids
        for pid in pids:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(_POLL_S)
    return []


def _accepts(pid: int, number: int) -> bool:
    """Return whether process 1 of a container would receive a signal; True without /proc."""
    if number in (signal.SIGKILL, signal.SIGSTOP):
        return True
    with contextlib.suppress(OSError):
        for line in Path(_PROC, str(pid), "status").read_text().splitlines():
            if line.startswith("SigCgt:"):
                return bool(int(line.split()[1], 16) >> (number - 1) & 1)
    return True


def has_mark(pid: int, mark: str) -> bool:
    """Return whether the environment of a process has a mark; False if it is unreadable."""
    try:
        return mark.encode() in Path(_PROC, str(pid), "environ").read_bytes()
    except OSError:
        return False


def _pids() -> Iterator[int]:
    return (int(entry.name) for entry in os.scandir(_PROC) if entry.name.isdecimal())


def _session_of(pid: int) -> int | None:
    """Return the session of a process; None for zombies."""
    try:
        state, _, _, session, *_ = Path(_PROC, str(pid), "stat").read_text().rpartition(")")[2].split()
    except (OSError, ValueError):
        return None
    return None if state == "Z" else int(session)
