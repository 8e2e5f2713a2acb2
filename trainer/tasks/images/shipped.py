"""Runs the predict.py of an export directory, as a process of its own, on any number of files.

Here: `ask_shipped`. It is isolated (`python -I`): it finds the installed packages, and nothing of ours by way of the
current folder or PYTHONPATH. Used by the bundle gate (gate.py).
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import tempfile
import threading
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import IO, Any

from trainer.export.bundles import PREDICT_NAME

# 2: some images could not be used, and were answered so.
_FINISHED = (0, 2)
# Of what it said on stderr; the cause is at the end.
_SAID_CHARACTERS = 2000
# A chunk of 256 images takes the slowest model on one core a few minutes.
_CHUNK_LIMIT_S = 1800.0


class ShippedFailed(Exception):
    """predict.py ended too early, or said something else than answers; the message has its own last words."""


def ask_shipped(
    folder: Path, work: Path, chunks: Iterable[Sequence[str]], *, model_name: str, threads: int, top: int | None
) -> Iterator[dict[str, Any]]:
    """Yield what predict.py says of each file, in order: `file` and `predictions`, or `error`.

    The files of a chunk are asked for before the answers to the one before are read, and are deleted when they have
    been answered: two chunks lie on the disk at a time. The names of two chunks must fit into a pipe (64 KiB).

    Args:
        folder: The export's folder.
        work: Where the files are.
        chunks: Names of files in `work`; each chunk is made when it is asked for.
        model_name: File name of the graph to run.
        threads: Intra-op threads of ONNX Runtime.
        top: Most labels of an image; None: what the program says by itself.

    Raises:
        ShippedFailed: The program failed.
    """
    command = [sys.executable, "-I", str(folder.resolve() / PREDICT_NAME), "--json", "--paths-from=-"]
    command += [f"--model={model_name}", f"--threads={threads}", *([f"--top={top}"] if top else [])]
    under_way: deque[Sequence[str]] = deque()
    with tempfile.TemporaryFile() as said, _started(command, work, said) as process:
        assert process.stdin is not None
        try:
            for chunk in chunks:
                _send(process.stdin, chunk)
                under_way.append(chunk)
                if len(under_way) > 1:
                    yield from _answers(process, work, under_way.popleft())
            while under_way:
                yield from _answers(process, work, under_way.popleft())
            process.stdin.close()
            if process.wait() not in _FINISHED:
                raise _Ended
        except (_Ended, BrokenPipeError):
            code = process.wait()
            said.seek(0)
            words = said.read().decode(errors="replace").strip()[-_SAID_CHARACTERS:]
            raise ShippedFailed(f"{PREDICT_NAME} ended with exit code {code}: {words or '(it said nothing)'}") from None


class _Ended(Exception):
    """There are no more answers."""


@contextlib.contextmanager
def _started(command: list[str], work: Path, said: IO[bytes]) -> Iterator[subprocess.Popen[bytes]]:
    """Run a program, and leave nothing of it."""
    process = subprocess.Popen(command, cwd=work, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=said)
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        for stream in (process.stdin, process.stdout):
            # What it did not take any more is lost with it.
            with contextlib.suppress(BrokenPipeError):
                stream.close()  # type: ignore[union-attr]


def _send(stream: IO[bytes], names: Sequence[str]) -> None:
    """Ask about files; an empty line says that it must not wait for a whole batch."""
    stream.write("".join(f"{name}\n" for name in names).encode() + b"\n")
    stream.flush()


def _answers(process: subprocess.Popen[bytes], work: Path, names: Sequence[str]) -> Iterator[dict[str, Any]]:
    assert process.stdout is not None
    # Killed, it ends as a program that fails: reading needs no limit of its own.
    limit = threading.Timer(_CHUNK_LIMIT_S, process.kill)
    limit.start()
    try:
        for name in names:
            line = process.stdout.readline()
            if not line:
                raise _Ended
            yield _parse(line, name)
            (work / name).unlink()
    finally:
        limit.cancel()


def _parse(line: bytes, name: str) -> dict[str, Any]:
    try:
        answer: dict[str, Any] = json.loads(line)
        whole = answer["file"] == name and (
            "error" in answer
            or all(isinstance(one["label"], str) and one["score"] >= 0 for one in answer["predictions"])
        )
    except (ValueError, TypeError, LookupError):
        whole = False
    if not whole:
        heard = line[:200].decode(errors="replace").strip()
        raise ShippedFailed(f"asked about {name}, {PREDICT_NAME} said {heard!r}")
    return answer
