"""Runs the predict.py of an export directory, as a process of its own.

It is isolated (`python -I`): it finds the installed packages, and nothing of ours by way of the current folder or
PYTHONPATH. Used by the gates `bundle`. Programs that are asked more while they answer have their own way of being run
(trainer/tasks/image_classification/shipped.py).
"""

from __future__ import annotations

import importlib.metadata
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from trainer.export.bundles import PREDICT_NAME

# Of what it said on stderr; the cause is at the end.
SAID_CHARACTERS = 2000


class ShippedFailed(Exception):
    """predict.py ended too early, or said something else than answers; the message has its own last words."""


def shipped_command(folder: Path, arguments: Iterable[str], *, model_name: str, threads: int) -> list[str]:
    """Return the command that runs it.

    Args:
        folder: The export's folder.
        arguments: Its own.
        model_name: File name of the graph to run.
        threads: Intra-op threads of ONNX Runtime.
    """
    program = str(folder.resolve() / PREDICT_NAME)
    return [sys.executable, "-I", program, *arguments, f"--model={model_name}", f"--threads={threads}"]


def run_shipped(
    folder: Path,
    work: Path,
    arguments: Sequence[str],
    *,
    model_name: str,
    threads: int,
    limit_s: float,
    answers: Path | None = None,
) -> None:
    """Run it to its end.

    Args:
        folder: The export's folder.
        work: Its current folder.
        arguments: Its own.
        model_name: File name of the graph to run.
        threads: Intra-op threads of ONNX Runtime.
        limit_s: Seconds after which it is killed.
        answers: File that gets what it prints; unset: that is let go.

    Raises:
        ShippedFailed: It failed.
    """
    command = shipped_command(folder, arguments, model_name=model_name, threads=threads)
    said = work / "stderr"
    try:
        with (answers or work / "stdout").open("wb") as out, said.open("wb") as err:
            done = subprocess.run(command, cwd=work, stdout=out, stderr=err, timeout=limit_s, check=False)
    except subprocess.TimeoutExpired:
        raise ShippedFailed(f"{PREDICT_NAME} was killed after {limit_s:.0f} s") from None
    if done.returncode:
        raise failed(done.returncode, said.read_bytes())


def failed(code: int, said: bytes) -> ShippedFailed:
    """Return the error of a program that ended with an exit code, and said this on stderr."""
    words = said.decode(errors="replace").strip()[-SAID_CHARACTERS:]
    return ShippedFailed(f"{PREDICT_NAME} ended with exit code {code}: {words or '(it said nothing)'}")


def describe_versions(packages: Iterable[str]) -> str:
    """Return packages with their versions, as a gate says what ran."""
    named = {}
    for package in packages:
        try:
            named[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            # onnxruntime-gpu and others bring the same module.
            named[package] = "of another distribution"
    return ", ".join(f"{name} {version}" for name, version in named.items())
