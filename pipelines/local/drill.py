"""`shardline drill`: what is drilled, and on which shards; the drill itself is trainer/drill/task.py."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping

from components.launch import stage_environment
from contracts import storage
from contracts.config import RunConfig
from contracts.drill import DRILL_MODES
from contracts.errors import ConfigError
from contracts.resolve import stage_config
from pipelines.local.stages import locate_inputs
from pipelines.place import stage_root


def run_drill(
    config: RunConfig,
    *,
    kills: int,
    mode: str | None,
    seed: int,
    output: str | None,
    given: Mapping[str, str | None],
) -> int:
    """Run a drill in the foreground and return its exit code.

    Args:
        config: The resolved configuration, with absolute paths.
        kills: Number of kills.
        mode: Kind of all kills; None: the drill's own mixture.
        seed: Decides moments and ranks.
        output: Folder to work in; None: `drill` beside the line's training.
        given: Paths or URIs of `shards` and `profile`; None: the line's own.

    Raises:
        ConfigError: The mode is unknown, or the folder is not on this machine.
        StageFailed: An earlier stage has not run; the error says which.
    """
    if mode is not None and mode not in DRILL_MODES:
        raise ConfigError(f"--mode {mode}", allowed=", ".join(DRILL_MODES), todo="choose one of them, or leave it out")
    folder = storage.normalise(output) if output is not None else storage.join(stage_root(config, "train"), "drill")
    if not storage.is_local(folder):
        raise ConfigError(
            f"--output {output}",
            allowed="a folder on this machine",
            todo="give a local folder: a drill kills processes here",
        )
    command = [sys.executable, "-m", "trainer.drill.task", f"--folder={storage.local_path(folder)}"]
    command += [f"--{name}={uri}" for name, uri in locate_inputs("train", config, given).items()]
    command += [f"--config-json={json.dumps(stage_config(config, 'train'))}", f"--kills={kills}", f"--seed={seed}"]
    command += [f"--mode={mode}"] if mode is not None else []
    return subprocess.run(command, stdin=subprocess.DEVNULL, env=stage_environment(), check=False).returncode
