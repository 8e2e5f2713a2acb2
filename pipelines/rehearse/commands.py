"""Commands of ours as processes, led to a local cloud by variables alone."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rehearsal.cloud import LocalCloud

# The command ends with this process, whatever ends it.
_COMMAND = "from contracts.process import end_with_parent; end_with_parent(); from pipelines.cli import main; main()"
# Its number: sys.stderr may be a stream of this process alone.
_STDERR = 2


def environment_of(cloud: LocalCloud, folder: Path) -> dict[str, str]:
    """Return the variables of the commands: the local cloud's, and a home and a temporary folder of their own."""
    places = {"HOME": folder / "home", "TMPDIR": folder / "tmp"}
    for place in places.values():
        place.mkdir(exist_ok=True)
    return {**cloud.environment, **{name: str(place) for name, place in places.items()}}


@contextlib.contextmanager
def led_to(environment: Mapping[str, str]) -> Iterator[None]:
    """Let this process's own clients use the local cloud while the block runs."""
    before = {name: os.environ.get(name) for name in environment}
    os.environ.update(environment)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


@contextlib.contextmanager
def signals_end() -> Iterator[list[int]]:
    """Let SIGTERM and SIGHUP end this process as Ctrl-C does: everything below it ends, and its folder is removed.

    Gives the signals that have come: whoever waits long looks there too, since an exception that is raised while Python
    collects garbage ends nothing.
    """
    received: list[int] = []

    def end(number: int, _frame: object) -> None:
        received.append(number)
        raise SystemExit(128 + number)

    before = {number: signal.signal(number, end) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield received
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def play(*words: str | Path) -> tuple[int, str]:
    """Run a command of ours as its user would, and return its exit code and what it printed on stdout.

    All that it prints goes to stderr too: stdout is for what was found.
    """
    command = [sys.executable, "-c", _COMMAND, *map(str, words)]
    printed = ""
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True) as process:
        try:
            for line in process.stdout or ():
                os.write(_STDERR, line.encode())
                printed += line
            return process.wait(), printed
        finally:
            process.kill()


def ask_why(path: Path, run_id: str) -> str:
    """Return why a run ended, as `shardline status` tells its user."""
    command = [sys.executable, "-c", _COMMAND, "status", run_id, "--config", str(path), "-o", "json"]
    answer = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    try:
        status = json.loads(answer.stdout)
    except ValueError:
        return "the submission was refused"
    found = status["failure"]
    return found["cause"] or found["told"] or found["said"] if found else str(status["state"])
