"""How a stage is started: the one function that every component's body calls.

A component is a process that waits for another one. This module knows the stages' commands, keeps what they print, and
passes their exit code on. It never imports a stage, and never interprets what one does.
"""

from __future__ import annotations

import os
import select
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

from contracts import storage
from contracts.errors import EXIT_TRY_AGAIN
from contracts.events import ATTEMPTS_FOLDER, LOG_NAME, EventLog
from contracts.process import available_cores, end_with_parent, thread_environment, without_job

# The only place that knows which command a stage is.
STAGE_MODULES = {
    "shard": "sharding.task",
    "profile": "trainer.profiling.task",
    "train": "trainer.task",
    "export": "trainer.export.task",
}

# kfp.local accepts only an image with "python" in its name for a component that it runs as a plain process.
BASE_IMAGE = "python:3.11-slim"

# Process id of whoever runs the components, where that is a process of this machine (pipelines/local/orchestrator.py).
ORCHESTRATOR_PID_VARIABLE = "SHARDLINE_ORCHESTRATOR_PID"


def stage_command(
    stage: str,
    *,
    place: Mapping[str, str],
    config: Mapping[str, str],
    inputs: Mapping[str, str] | None = None,
    attempt: str = "",
    flags: str = "",
) -> list[str]:
    """Return the command of a stage.

    Args:
        stage: Its name.
        place: `line` and `run`, or `root` or `output`, with its URI.
        config: `config` and `config-sha256`, or `config-json`.
        inputs: URIs of `shards`, `profile`, `checkpoint`; empty ones are left out.
        attempt: Id of this attempt; empty: the stage takes one of its own.
        flags: Words out of `fresh`, `locate`, `debug`, `compact`, separated by spaces.
    """
    values = {**place, **config, **(inputs or {}), "attempt": attempt}
    command = [sys.executable, "-m", STAGE_MODULES[stage], "--end-with-parent", f"--launched-at={time.time()!r}"]
    command += [f"--{name}={value}" for name, value in values.items() if value]
    return command + [f"--{flag}" for flag in flags.split()]


def stage_environment() -> dict[str, str]:
    """Return the environment of a stage: a thread count is always set, the user's own wins; of no Vertex AI job."""
    # Safe path: a folder of the user's that is called `records` or `trainer` must not hide ours.
    return {**thread_environment(available_cores()), **without_job(os.environ), "PYTHONSAFEPATH": "1"}


def attempt_folder(root_uri: str, attempt: str) -> Path:
    """Return the folder of an attempt's events, errors and log below a stage's root; of one in a bucket: a new one."""
    if not storage.is_local(root_uri):
        return Path(tempfile.mkdtemp(prefix="shardline-")) / attempt
    return storage.local_path(root_uri) / ATTEMPTS_FOLDER / attempt


def last_line(printed: bytes) -> str:
    """Return the last line that is not blank, where a stage prints the URI of the folder it finished."""
    lines = [line for line in printed.decode(errors="replace").splitlines() if line.strip()]
    return lines[-1].strip() if lines else ""


def launch_stage(
    stage: str,
    *,
    config: str,
    line: str,
    run_id: str,
    flags: str = "",
    shards: str = "",
    profile: str = "",
    checkpoint: str = "",
) -> str:
    """Run a stage to its end and return the URI of the folder it finished.

    What it prints on stderr goes to log.txt beside its events, and an `exit` event follows its own events: exit_code,
    launched_at, and wall_s in seconds as seen from here.

    Args:
        stage: Its name.
        config: URI of its sections, with the hash of their content (contracts/pinned.py).
        line: URI of the line's folder; the stage's root is below it.
        run_id: Id of the run; the stage's attempt is named after it.
        flags: Words for the stage, separated by spaces: `fresh`, `debug`.
        shards: URI of the shards, for stages that read them.
        profile: URI of the profile report, for stages that read it.
        checkpoint: URI of the finished training folder, for stages that read it.

    Raises:
        SystemExit: The stage failed; the code is the stage's own, 128 + n when signal n ended it.
    """
    end_with_parent()
    root = storage.join(line, stage)
    folder = attempt_folder(root, run_id)
    events = EventLog(folder, stage=stage, attempt=run_id)
    command = stage_command(
        stage,
        # Its data is compared with that of the run before, and its model judged, as this run's.
        place={"line": line, "run": run_id},
        config={"config": config},
        inputs={"shards": shards, "profile": profile, "checkpoint": checkpoint},
        attempt=run_id,
        flags=flags,
    )
    launched_at = time.time()
    with (folder / LOG_NAME).open("ab") as log, tempfile.TemporaryFile() as printed:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=printed, stderr=log, env=stage_environment()
        )
        exit_code = _wait(process)
        printed.seek(0)
        content = printed.read()
    events.emit("exit", exit_code=exit_code, launched_at=launched_at, wall_s=time.time() - launched_at)
    if exit_code != 0:
        raise SystemExit(exit_code if exit_code > 0 else 128 - exit_code)
    return last_line(content)


def _wait(process: subprocess.Popen[bytes]) -> int:
    """Wait for the stage, and end it when the orchestrator dies.

    Between the orchestrator and this process is a shell, which does not die with its parent: what this process asked of
    the kernel (`end_with_parent`) does not reach past it.
    """
    orchestrator = os.environ.get(ORCHESTRATOR_PID_VARIABLE)
    if orchestrator is None or not hasattr(os, "pidfd_open"):
        return process.wait()
    watched: list[int] = []
    try:
        # A pidfd becomes readable when its process ends, also while nobody has collected its exit code.
        watched = [os.pidfd_open(int(orchestrator)), os.pidfd_open(process.pid)]
        poller = select.poll()
        for descriptor in watched:
            poller.register(descriptor, select.POLLIN)
        ended = {descriptor for descriptor, _ in poller.poll()}
        orphaned = ended == {watched[0]}
    except ProcessLookupError:
        orphaned = True
    except OSError:
        # A kernel without pidfd: the stage may outlive a killed orchestrator, and is waited for as usual.
        return process.wait()
    finally:
        for descriptor in watched:
            os.close(descriptor)
    if orphaned:
        process.kill()
        process.wait()
        raise SystemExit(EXIT_TRY_AGAIN)
    return process.wait()
