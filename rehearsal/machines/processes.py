"""Containers played by processes of this machine: a command with everything that it starts, heard and ended as one.

A container's end is the end of its first process: what that leaves behind is killed with it. Processes are found by a
mark in their environment, which children inherit whatever session or process group they make for themselves.
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
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import rehearsal
from contracts.process import THREAD_VARIABLES, available_cores
from rehearsal.guard import PYTHON_GUARD

MARK_VARIABLE = "SHARDLINE_REHEARSAL_TREE"
# Of this process's environment, what a container of the same system would have too: where programs and the GPU are.
_KEPT = ("PATH", "LANG", "LC_ALL", "TZ", "LD_LIBRARY_PATH", "VIRTUAL_ENV", "CUDA_VISIBLE_DEVICES", "PYTHONPATH")
# Asks Linux to end the process with whoever started it, and keeps to its cores, before it becomes the command.
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
_POLL_S = 0.02
_PROC = Path("/proc")
# As a shell's: found, and not executable.
_CANNOT_BE_STARTED = 126
_OUTPUT_S = 10.0


def clean_environment(*layers: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of a container: little of this process's, then the layers, the later ones winning.

    The project can be imported from any folder, whatever folders the layers put before it; and Python does not hold
    back what it prints. Of PYTHONPATH it has folders of installed packages alone: no image holds the user's modules.
    """
    environment = {name: os.environ[name] for name in _KEPT if name in os.environ}
    # This process may be under the guard itself; a container is where a layer says so.
    own = [folder for folder in _folders(environment) if folder != str(PYTHON_GUARD)]
    folders = [str(Path(rehearsal.__file__).parents[1]), *own]
    environment["PYTHONUNBUFFERED"] = "1"
    # As the images have it: the working folder is no place of modules.
    environment["PYTHONSAFEPATH"] = "1"
    environment |= dict.fromkeys(THREAD_VARIABLES, str(available_cores()))
    for layer in layers:
        environment |= layer
        folders = [*_folders(layer), *folders]
    environment["PYTHONPATH"] = os.pathsep.join(dict.fromkeys(folders))
    return environment


def _folders(environment: Mapping[str, str]) -> list[str]:
    """Return the folders of PYTHONPATH that hold installed packages, as `pip install --target` does, or are the guard.

    They may be relative to this process's own.
    """
    given = environment.get("PYTHONPATH", "").split(os.pathsep)
    folders = [os.path.abspath(part) for part in given if part]  # noqa: PTH100
    return [part for part in folders if part == str(PYTHON_GUARD) or any(Path(part).glob("*.dist-info"))]


class ProcessTree:
    """A running command and everything below it.

    Args:
        command: What is run; its standard error goes where its output goes.
        environment: All of it; the mark is added.
        folder: Working directory.
        on_line: Called with each line that it prints, in a thread.
        pass_fds: Descriptors that it inherits.
        cores: Those that it may use; none given: all of this process's.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        environment: Mapping[str, str],
        folder: Path,
        on_line: Callable[[str], None],
        pass_fds: Sequence[int] = (),
        cores: Sequence[int] = (),
    ) -> None:
        self._id = uuid.uuid4().hex
        self._environment = {**environment, MARK_VARIABLE: f"{environment.get(MARK_VARIABLE, '')}/{self._id}"}
        self._command, self._folder, self._on_line, self._fds = list(command), folder, on_line, tuple(pass_fds)
        self._cores = list(cores)
        self._process: subprocess.Popen[bytes] | None = None
        self._started, self._heard, self._ended = threading.Event(), threading.Event(), threading.Event()
        self._killing = threading.Lock()
        self.returncode: int | None = None
        """Exit code of the first process, negative for a signal; None while it runs."""
        # The kernel ends the process with the thread that started it: so that thread waits for it too.
        self._thread = threading.Thread(target=self._run, name=f"container {self._command[0]}", daemon=True)
        self._thread.start()
        self._started.wait()

    def wait(self, timeout_s: float | None = None) -> int | None:
        """Wait for the end of all; return the first process's exit code, None when the time is over."""
        return self.returncode if self._ended.wait(timeout_s) else None

    def send(self, number: int) -> None:
        """Send a signal to the first process alone, as a container runtime does.

        That is process 1 of a container, to which the kernel passes only signals that it handles, and SIGKILL
        (https://man7.org/linux/man-pages/man7/pid_namespaces.7.html); it is made so here.
        """
        with contextlib.suppress(ProcessLookupError):
            if self._process is not None and self._process.poll() is None and _accepts(self._process.pid, number):
                self._process.send_signal(number)

    def kill(self) -> None:
        """Kill the first process and all below it; return when none is left."""
        self.send(signal.SIGKILL)
        self._kill_marked()
        self._ended.wait()

    def stop(self, grace_s: float) -> int | None:
        """Send SIGTERM, wait a while, then kill; return the exit code."""
        self.send(signal.SIGTERM)
        if self.wait(grace_s) is None:
            self.kill()
        return self.returncode

    def _run(self) -> None:
        try:
            process = self._process = self._begin()
        except (OSError, ValueError, subprocess.SubprocessError) as error:
            # Words that are too long together, or that hold a NUL; a folder that is gone.
            self.returncode = _CANNOT_BE_STARTED
            try:
                self._on_line(f"{self._command[0]}: cannot be started: {error}")
            finally:
                self._heard.set()
                self._ended.set()
            return
        finally:
            self._started.set()
        threading.Thread(target=self._hear, args=(process,), name="output of a container", daemon=True).start()
        code = process.wait()
        self._kill_marked()
        # All that could hold the other end are gone.
        self._heard.wait(_OUTPUT_S)
        self.returncode = code
        self._ended.set()

    def _begin(self) -> subprocess.Popen[bytes]:
        cores = ",".join(map(str, self._cores))
        return subprocess.Popen(
            [sys.executable, "-S", "-c", _RUN, str(os.getpid()), cores, *self._command],
            env=self._environment,
            cwd=self._folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            pass_fds=self._fds,
            start_new_session=True,
        )

    def _hear(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdout is not None
        try:
            with process.stdout as stream:
                for line in stream:
                    self._on_line(line.decode(errors="replace").rstrip("\n"))
        finally:
            self._heard.set()

    def _kill_marked(self) -> None:
        if not _PROC.exists():
            # Outside Linux: who made a session of its own is not found.
            if self._process is not None:
                with contextlib.suppress(OSError):
                    os.killpg(self._process.pid, signal.SIGKILL)
            return
        with self._killing:
            while pids := find_marked(self._id):
                for pid in pids:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
                time.sleep(_POLL_S)


def _accepts(pid: int, number: int) -> bool:
    """Return whether process 1 would be given a signal: it handles it, or nobody can; True where nothing says."""
    if number in (signal.SIGKILL, signal.SIGSTOP):
        return True
    with contextlib.suppress(OSError):
        for line in Path(_PROC, str(pid), "status").read_text().splitlines():
            if line.startswith("SigCgt:"):
                return bool(int(line.split()[1], 16) >> (number - 1) & 1)
    return True


def find_marked(mark: str) -> list[int]:
    """Return the living processes of this user whose environment has a mark."""
    wanted = mark.encode()
    found = []
    for entry in os.scandir(_PROC):
        if entry.name.isdecimal():
            with contextlib.suppress(OSError):
                content = Path(entry.path, "environ").read_bytes()
                if wanted in content:
                    found.append(int(entry.name))
    return found
