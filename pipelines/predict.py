"""`shardline predict MODEL SAMPLE...` and `shardline verify MODEL`: which export is meant.

trainer/predict/command.py answers, trainer/export/verify.py looks.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence

from components.launch import stage_environment
from contracts import storage
from contracts.artifacts import MANIFEST_NAME, ExportManifest
from contracts.config import RunConfig
from contracts.config.load import parse_config, stage_config
from contracts.errors import ConfigError
from contracts.events import ATTEMPTS_FOLDER, EVENTS_NAME
from contracts.result import RUN_START_NAME, run_uri
from pipelines.place import find_run

_STAGE = "export"


def run_predict(model: str, samples: Sequence[str], *, top: int | None, output: str, lines: str | None) -> int:
    """Print the answers to samples; return the exit code.

    Args:
        model: Folder of an export, or a run as `shardline inspect` takes it; paths, URIs or an id.
        samples: Image files or folders, as paths or URIs; texts.
        top: Number of labels per sample.
        output: table, json or csv.
        lines: A file with one text per line; -: standard input.

    Raises:
        ConfigError: There is no such run, or it has no finished export.
    """
    export, run = _find(model)
    command = [sys.executable, "-m", "trainer.predict.command", f"--folder={export}", f"--output={output}"]
    command += [] if top is None else [f"--top={top}"]
    command += [] if lines is None else [f"--lines={lines}"]
    if run is not None and (config := _own_config(run, export)) is not None:
        command.append(f"--config-json={json.dumps(stage_config(config, _STAGE))}")
    given = None if lines == "-" else subprocess.DEVNULL
    return subprocess.run([*command, "--", *samples], stdin=given, env=stage_environment(), check=False).returncode


def _own_config(run: str, export: str) -> RunConfig | None:
    """Return the configuration of the run of an export of an own task, for which its code answers; else None."""
    uri = storage.join(run, RUN_START_NAME)
    if ":" not in ExportManifest.load(export).task or not storage.exists(uri):
        return None
    return parse_config(json.loads(storage.read_bytes(uri))["config"], where=storage.display(uri))


def run_verify(model: str, *, shards: str | None, as_json: bool) -> int:
    """Verify an export; return the exit code: 0, 3 while part of it is unproven, or 1 when a gate failed.

    Args:
        model: As for `run_predict`.
        shards: URI of the shards that it was made from; None: those of its line.
        as_json: Whether the gates are printed as JSON.

    Raises:
        ConfigError: There is no such run, or it has no finished export.
    """
    command = [sys.executable, "-m", "trainer.export.verify", find_export(model)]
    command += [] if shards is None else [f"--shards={shards}"]
    command += ["--json"] if as_json else []
    return subprocess.run(command, stdin=subprocess.DEVNULL, env=stage_environment(), check=False).returncode


def find_export(model: str) -> str:
    """Return the URI of the export's folder that a user means; see `_find`."""
    return _find(model)[0]


def _find(model: str) -> tuple[str, str | None]:
    """Return the URI of the export's folder that a user means, and that of the run which ended with it, if known.

    A run's export is the one that its stage ended with, whether it made it or found it finished; a line's is that of
    its newest attempt that came to an end.

    Raises:
        ConfigError: It is neither a finished export nor a run that has one.
    """
    uri = storage.normalise(model)
    if storage.exists(storage.join(uri, MANIFEST_NAME)):
        return uri, None
    try:
        line, run_id = find_run(model, stage=_STAGE)
    except ConfigError:
        raise ConfigError(
            f"{model} holds no {MANIFEST_NAME}, so no export was finished there, and it is no run",
            allowed="the folder of a finished export or of a run (path or URI), or the id of a run below ./runs",
            todo="name a folder that `shardline export` or `shardline run` has printed",
        ) from None
    root = storage.join(line, _STAGE)
    attempts = storage.join(root, ATTEMPTS_FOLDER)
    names = [run_id] if run_id is not None else sorted(storage.list_names(attempts), reverse=True)
    for name in names:
        if (found := _finished(storage.join(attempts, name, EVENTS_NAME))) is not None:
            # A line that was copied elsewhere has its exports with it.
            moved = storage.join(root, found.rpartition("/")[2])
            return moved if storage.exists(storage.join(moved, MANIFEST_NAME)) else found, run_uri(line, name)
    # Of stages in a bucket the events may be elsewhere.
    exports = [name for name in storage.list_names(root) if storage.exists(storage.join(root, name, MANIFEST_NAME))]
    if run_id is None and len(exports) == 1:
        return storage.join(root, exports[0]), None
    found = f"{len(exports)} exports, and nothing says which is meant" if exports else "no export is finished"
    named = f"name one of {', '.join(exports)} in {storage.display(root)}"
    raise ConfigError(
        f"{model}: {found}",
        allowed="a run whose stage export is finished, or the folder of an export",
        todo=named if exports else "run `shardline export CONFIG`, or name another run",
    )


def _finished(events_uri: str) -> str | None:
    """Return the folder that an attempt finished, or found finished; None where it came to no end."""
    try:
        content = storage.read_bytes(events_uri)
    except (FileNotFoundError, NotADirectoryError):
        return None
    for line in content.splitlines():
        try:
            event = json.loads(line)
        except ValueError:
            continue  # damaged, or the last one: it may be a part
        if isinstance(event, dict) and event.get("event") in ("finish", "reused") and isinstance(event.get("uri"), str):
            return str(event["uri"])
    return None
