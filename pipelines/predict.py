"""`shardline predict MODEL SAMPLE...` and `shardline verify MODEL`: finds the export and runs the trainer's command.

The commands are trainer/predict/command.py and trainer/export/verify.py.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Sequence

from components.launch import stage_environment
from contracts import storage
from contracts.artifacts import MANIFEST_NAME, ExportManifest
from contracts.config import RunConfig
from contracts.config.load import parse_config, stage_config
from contracts.errors import ConfigError, DataError
from contracts.result import RUN_START_NAME, run_uri
from inspection.find import find_place
from inspection.stages import find_output, list_attempts

_STAGE = "export"
# Of an attempt's name, RUN.TIME (contracts.stage.new_attempt_id); the id of a run may have dots.
_ATTEMPT_TIME = re.compile(r"\.\d{8}-\d{6}-\d{4}$")


def run_predict(model: str, samples: Sequence[str], *, top: int | None, output: str, lines: str | None) -> int:
    """Print predictions for samples; return the exit code.

    Args:
        model: Folder of an export, or a run as `shardline inspect` takes it; paths, URIs or an id.
        samples: Image files or folders, as paths or URIs; texts.
        top: Number of labels per sample.
        output: table, json or csv.
        lines: A file with one text per line; -: standard input.

    Raises:
        ConfigError: There is no such run, or it has no finished export.
    """
    export, run = _find_export_and_run(model)
    command = [sys.executable, "-m", "trainer.predict.command", f"--folder={export}", f"--output={output}"]
    command += [] if top is None else [f"--top={top}"]
    command += [] if lines is None else [f"--lines={lines}"]
    if run is not None and (config := _own_config(run, export)) is not None:
        command.append(f"--config-json={json.dumps(stage_config(config, _STAGE))}")
    stdin = None if lines == "-" else subprocess.DEVNULL
    return subprocess.run([*command, "--", *samples], stdin=stdin, env=stage_environment(), check=False).returncode


def _own_config(run: str, export: str) -> RunConfig | None:
    """Return the run's configuration if the export's task is the user's code, which prediction then imports."""
    uri = storage.join(run, RUN_START_NAME)
    if ":" not in ExportManifest.load(export).task or not storage.exists(uri):
        return None
    return parse_config(json.loads(storage.read_bytes(uri))["config"], where=storage.display(uri))


def run_verify(model: str, *, shards: str | None, as_json: bool) -> int:
    """Verify an export; return the exit code: 0, 3 while part of it is unproven, or 1 when a gate failed.

    Args:
        model: As for `run_predict`.
        shards: URI of the shards that it was exported with; None: those of its line.
        as_json: Whether the gates are printed as JSON.

    Raises:
        ConfigError: There is no such run, or it has no finished export.
    """
    command = [sys.executable, "-m", "trainer.export.verify", find_export(model)]
    command += [] if shards is None else [f"--shards={shards}"]
    command += ["--json"] if as_json else []
    return subprocess.run(command, stdin=subprocess.DEVNULL, env=stage_environment(), check=False).returncode


def find_export(model: str) -> str:
    """Return the URI of the export's folder, given that folder or a run."""
    return _find_export_and_run(model)[0]


def _find_export_and_run(model: str) -> tuple[str, str | None]:
    """Return the URI of the export's folder, and of the run that created or reused it, if known.

    For a line it is the export of the newest finished attempt.

    Raises:
        ConfigError: It is neither a finished export nor a run that has one.
    """
    uri = storage.normalise(model)
    if storage.exists(storage.join(uri, MANIFEST_NAME)):
        return uri, None
    line, run_id = uri, None
    # The folder of a line that has exported needs no run.
    if storage.exists(storage.join(uri, RUN_START_NAME)) or not storage.exists(storage.join(uri, _STAGE)):
        try:
            place = find_place(model)
        except ConfigError:
            raise ConfigError(
                f"{model} has no {MANIFEST_NAME}, so it is not a finished export, and it is not a run",
                allowed="the folder of a finished export or of a run (path or URI), or the id of a run below ./runs",
                todo="name a folder that `shardline export` or `shardline run` has printed",
            ) from None
        line, run_id = place.line, place.run_id
    root = storage.join(line, _STAGE)
    attempts = list_attempts(line, _STAGE)[::-1]
    for name in dict.fromkeys(_ATTEMPT_TIME.sub("", attempt) for attempt in attempts) if run_id is None else [run_id]:
        try:
            finished_uri = find_output(line, name, _STAGE)
        except DataError:
            if run_id is not None:
                raise
            # The record of one run is damaged: an earlier run may have an export.
            continue
        if finished_uri is not None:
            # If the line was moved, its events have the old URI.
            moved = storage.join(root, finished_uri.rpartition("/")[2])
            return moved if storage.exists(storage.join(moved, MANIFEST_NAME)) else finished_uri, run_uri(line, name)
    # Events of stages in a bucket may be missing.
    exports = [name for name in storage.list_names(root) if storage.exists(storage.join(root, name, MANIFEST_NAME))]
    if run_id is None and len(exports) == 1:
        return storage.join(root, exports[0]), None
    finding = f"{len(exports)} exports; name one of them" if exports else "no export is finished"
    todo = f"name one of {', '.join(exports)} in {storage.display(root)}"
    raise ConfigError(
        f"{model}: {finding}",
        allowed="a run whose stage export is finished, or the folder of an export",
        todo=todo if exports else "run `shardline export CONFIG`, or name another run",
    )
