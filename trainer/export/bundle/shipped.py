"""Runs the predict.py of an export directory, as a process of its own.

Here: `Shipped`, a folder and the samples that its program is asked about, and
`ShippedProgram`, which is asked and answers in lines of JSON. It is isolated
(`python -I`): it finds the installed packages, and nothing of ours by way of the current folder or PYTHONPATH. Used by
the bundle gates of tasks (trainer/export/bundle/bundles.py, `check_bundle`).
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import json
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO, Any

from contracts.artifacts import ExportManifest, ShardManifest
from contracts.config import DataSection
from trainer.export.bundle.bundles import GATE_NAME, PREDICT_NAME
from trainer.export.gates.samples import Places, samples_of

# Where its parts lie that are not a task's own.
PROGRAMS = Path(__file__).parents[2] / "predict"
# Modules that every predict.py imports.
SHARED = ("serving.py", "reading.py", "runtimes.py")
# 2: some samples could not be used, and were answered so.
_FINISHED = (0, 2)
# Of what it said on stderr; the cause is at the end.
_SAID_CHARACTERS = 2000
# A chunk of 256 samples takes the slowest model on one core a few minutes.
_CHUNK_LIMIT_S = 1800.0


@dataclass(frozen=True)
class Shipped:
    """An export's folder on this machine, and the samples of the test split that its predict.py is asked about."""

    folder: Path
    model_name: str
    """Path of the graph that is run, below the folder; the fp32 one, since only it must agree to the sample."""
    shards_uri: str
    """Folder of the shards."""
    shards: ShardManifest
    threads: int
    """Intra-op threads of ONNX Runtime."""
    data: DataSection = field(default_factory=DataSection)
    """How shards in a bucket are read."""
    places: Places = None
    """Which samples; None: all."""


def lay_out_again(
    shipped: Shipped, document: ExportManifest, work: Path, names: Iterable[str], *, program: Path
) -> Shipped:
    """Return the same with this package's own predict.py in a new folder, and the samples that the export's gates ran.

    Args:
        shipped: A finished export.
        document: Its manifest.
        work: Where the folder is made.
        names: Of the files besides graphs.
        program: The predict.py.
    """
    tried = work / GATE_NAME
    tried.mkdir()
    for name in {*names, shipped.model_name, document.graph().name}:
        (tried / name).parent.mkdir(parents=True, exist_ok=True)
        (tried / name).symlink_to(shipped.folder / name)
    write_program(tried, program)
    return replace(shipped, folder=tried, places=samples_of(document, shipped.shards_uri, shipped.shards))


def write_program(folder: Path, program: Path) -> list[str]:
    """Copy a predict.py and what it imports into a folder, byte for byte; return their names."""
    shared = [PROGRAMS / name for name in SHARED]
    for name, source in zip((PREDICT_NAME, *SHARED), (program, *shared), strict=True):
        (folder / name).write_bytes(source.read_bytes())
    return [PREDICT_NAME, *SHARED]


def name_versions(packages: Iterable[str]) -> str:
    """Return distributions that the program needs with their versions here, in words."""
    named = {}
    for package in packages:
        try:
            named[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            # onnxruntime-gpu and others bring the same module.
            named[package] = "of another distribution"
    return ", ".join(f"{name} {version}" for name, version in named.items())


class ShippedFailed(Exception):
    """predict.py ended too early, or said something else than answers; the message has its own last words."""


class ShippedProgram:
    """A predict.py that is running. Use it as a context: nothing of it is left at its end.

    What is sent and what is answered lie in pipes of 64 KiB each: of what has been asked and not been answered one of
    both must fit in there, or both sides wait.

    Args:
        shipped: The export.
        options: Of the program, besides those for graph and threads.
        work: Its current folder.
    """

    def __init__(self, shipped: Shipped, options: Sequence[str], *, work: Path) -> None:
        self._command = _command(shipped, options)
        self._work, self._stack = work, contextlib.ExitStack()
        self._process: subprocess.Popen[bytes]

    def __enter__(self) -> ShippedProgram:
        self._said = self._stack.enter_context(tempfile.TemporaryFile())
        self._process = subprocess.Popen(
            self._command,
            cwd=self._work,
            # Of a server on this machine no proxy is asked.
            env={**os.environ, "no_proxy": "127.0.0.1", "NO_PROXY": "127.0.0.1"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._said,
        )
        self._stack.callback(self._kill)
        return self

    def __exit__(self, *exception: object) -> None:
        self._stack.close()

    def ask(self, samples: Sequence[Any]) -> None:
        """Ask about samples, a line of JSON each; an empty line says that it must not wait for a whole batch.

        Raises:
            ShippedFailed: It has ended.
        """
        assert self._process.stdin is not None
        try:
            self._process.stdin.write("".join(f"{json.dumps(sample)}\n" for sample in samples).encode() + b"\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise self._ended() from None

    def answers(self, names: Sequence[str]) -> Generator[dict[str, Any]]:
        """Yield what it says of each sample, in order.

        Args:
            names: How messages call the samples.

        Raises:
            ShippedFailed: It has ended, or says something else.
        """
        assert self._process.stdout is not None
        with self._limited():
            for name in names:
                line = self._process.stdout.readline()
                if not line:
                    raise self._ended()
                try:
                    answer = json.loads(line)
                except ValueError:
                    answer = None
                if not isinstance(answer, dict):
                    raise self.misunderstood(name, line.decode(errors="replace"))
                yield answer

    def misunderstood(self, name: str, said: object) -> ShippedFailed:
        """Return the error of an answer that is none."""
        return ShippedFailed(f"asked about {name}, {PREDICT_NAME} said {str(said)[:200].strip()!r}")

    def finish(self, *, expected: Sequence[int] = _FINISHED) -> None:
        """Say that nothing more is asked, and wait for its end.

        Args:
            expected: Exit codes that are no error.

        Raises:
            ShippedFailed: It ends with an error, or not in time.
        """
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        with self._limited():
            code = self._process.wait()
        if code not in expected:
            raise self._ended()

    @contextlib.contextmanager
    def _limited(self) -> Iterator[None]:
        """Kill it when the block takes too long: then it ends as a program that fails."""
        limit = threading.Timer(_CHUNK_LIMIT_S, self._process.kill)
        limit.start()
        try:
            yield
        finally:
            limit.cancel()

    def _ended(self) -> ShippedFailed:
        return _failed(self._process.wait(), self._said)

    def _kill(self) -> None:
        self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            # What it did not take any more is lost with it.
            with contextlib.suppress(BrokenPipeError):
                stream.close()  # type: ignore[union-attr]


def _command(shipped: Shipped, arguments: Sequence[str]) -> list[str]:
    program = str(shipped.folder.resolve() / PREDICT_NAME)
    more = [f"--model={shipped.model_name}", f"--threads={shipped.threads}"]
    return [sys.executable, "-I", program, *arguments, *more]


def _failed(code: int, said: IO[bytes]) -> ShippedFailed:
    said.seek(0)
    words = said.read().decode(errors="replace").strip()[-_SAID_CHARACTERS:]
    return ShippedFailed(f"{PREDICT_NAME} ended with exit code {code}: {words or '(it said nothing)'}")
