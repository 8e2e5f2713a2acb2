"""Command lines of the stages. This module never imports a stage."""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from contracts import storage
from contracts.config import RunConfig
from contracts.config.load import stage_config
from contracts.events import ATTEMPTS_FOLDER
from contracts.process import available_cores, thread_environment, without_job

STAGE_MODULES = {
    "shard": "sharding.task",
    "profile": "trainer.profiling.task",
    "train": "trainer.task",
    "export": "trainer.export.task",
}
STAGE_INPUTS: dict[str, dict[str, str]] = {
    "shard": {},
    "profile": {"shards": "shard"},
    "train": {"shards": "shard", "profile": "profile"},
    "export": {"shards": "shard", "checkpoint": "train"},
}
"""Options of each stage's command for its inputs, and the stages that make them."""
# Without a profile, training splits the batch by a default.
OPTIONAL_INPUTS = ("profile",)


def stage_command(
    stage: str, config: RunConfig, options: Mapping[str, str | None], *, flags: Sequence[str] = ()
) -> list[str]:
    """Return the command of a stage on this machine.

    Args:
        stage: Name of the stage.
        config: The resolved configuration; the stage gets only its keys.
        options: Options of the command (contracts/stage.py); empty ones are omitted.
        flags: Any of `fresh`, `list`, `locate`, `dry-run`.
    """
    command = [sys.executable, "-m", STAGE_MODULES[stage], "--end-with-parent", f"--launched-at={time.time()!r}"]
    command.append(f"--config-json={json.dumps(stage_config(config, stage))}")
    command += [f"--{name}={value}" for name, value in options.items() if value]
    return command + [f"--{flag}" for flag in flags]


def stage_environment() -> dict[str, str]:
    """Return the environment of a stage: thread counts, which the user's variables override, and no Vertex AI job."""
    # Safe path: a folder `records` or `trainer` of the user must not shadow ours.
    return {**thread_environment(available_cores()), **without_job(os.environ), "PYTHONSAFEPATH": "1"}


def attempt_folder(root_uri: str, attempt: str) -> Path:
    """Return the folder of an attempt's events, errors and log: below a local root, else a temporary one."""
    if not storage.is_local(root_uri):
        return Path(tempfile.mkdtemp(prefix="shardline-")) / attempt
    return storage.local_path(root_uri) / ATTEMPTS_FOLDER / attempt


def last_line(printed: bytes) -> str:
    """Return the last line that is not blank: the URI of the folder that a stage finished."""
    lines = [line for line in printed.decode(errors="replace").splitlines() if line.strip()]
    return lines[-1].strip() if lines else ""
