"""`shardline predict MODEL SAMPLE...` and `shardline verify MODEL`: which export is meant.

trainer/predict/predict_task.py answers, trainer/export/verify.py looks.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence

from components.launch import stage_environment
from contracts import storage
from contracts.artifacts import MANIFEST_NAME
from contracts.errors import ConfigError
from contracts.events import ATTEMPTS_FOLDER, EVENTS_NAME
from pipelines.place import find_run

_STAGE = "export"


def run_predict(model: str, samples: Sequence[str], options: Mapping[str, object]) -> int:
    """Print the answers to samples; return the exit code.

    Args:
        model: Folder of an export, or a run as `shardline inspect` takes it; paths, URIs or an id.
        samples: Image files, as paths or URIs; texts.
        options: Of the export's predict.py (trainer/predict/serving.py) by name; None: not given.

    Raises:
        ConfigError: There is no such run, or it has no finished export.
    """
    command = [sys.executable, "-m", "trainer.predict.predict_task", f"--folder={find_export(model)}"]
    command += [f"--{name}={value}" for name, value in options.items() if value is not None]
    command += ["--", *samples]
    given = None if "-" in (*samples, *options.values()) else subprocess.DEVNULL
    return subprocess.run(command, stdin=given, env=stage_environment(), check=False).returncode


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
    """Return the URI of the export's folder that a user means.

    A run's export is the one that its stage ended with, whether it made it or found it finished; a line's is that of
    its newest attempt that came to an end.

    Raises:
        ConfigError: It is neither a finished export nor a run that has one.
    """
    uri = storage.normalise(model)
    if storage.exists(storage.join(uri, MANIFEST_NAME)):
        return uri
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
            return moved if storage.exists(storage.join(moved, MANIFEST_NAME)) else found
    # Of stages in a bucket the events may be elsewhere.
    exports = [name for name in storage.list_names(root) if storage.exists(storage.join(root, name, MANIFEST_NAME))]
    if run_id is None and len(exports) == 1:
        return storage.join(root, exports[0])
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
