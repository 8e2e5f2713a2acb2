"""TensorBoard's own server on a run's logs: a child of the command, which ends with it.

On Linux also where the command is killed; elsewhere, macOS for one, nothing tells the child of a parent that was killed
(contracts/process.py), and it goes on and keeps its port until somebody ends it.

It reads a bucket itself, through fsspec and gcsfs: tried with 2.21, it shows what is added to an object that is
replaced by a longer one, and new objects, as it does with files. So nothing is copied.

Folders are given by --logdir_spec (tensorboard/backend/event_processing/data_ingester.py): NAME:PATH, split at commas
and at the first colon, each walked again at every reload. Several runs are the same option with longer names.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

from contracts import storage
from contracts.errors import ConfigError
from inspection.run.find import find_place
from inspection.run.read import find_folder
from inspection.run.training import TENSORBOARD_FOLDER
from pages.markup import UNPRINTABLE

MOST_RUNS = 8
"""Shown at a time."""
# Names in TensorBoard's list of runs.
_STAGES = {"training": "train", "profile": "profile"}
# Seconds between two looks for what is new; training copies its logs to a bucket every 30 s (contracts/attempts.py).
_RELOAD_LOCAL_S, _RELOAD_BUCKET_S = 5, 30
_GRACE_S = 5.0
_COMMAND = (
    "import runpy; from contracts.process import end_with_parent; end_with_parent(); "
    "runpy.run_module('tensorboard.main', run_name='__main__', alter_sys=True)"
)
_ADDRESS = re.compile(r"^TensorBoard \S+ at (http://\S+)")
# It is none of ours that TensorFlow is not there.
_NOISE = "TensorFlow installation not found"


def show(
    runs: Sequence[str], *, host: str, port: int | None, say: Callable[[str], None], warn: Callable[[str], None]
) -> int:
    """Serve until interrupted; return the exit code.

    Args:
        runs: Each as in `find_place`; or a folder that has a tensorboard/ in it, as a training's.
        host: Address to listen at.
        port: Port to listen at; 0: a free one, None: TensorBoard's own, or the next one that is free.
        say: Told the server's address, once it listens.
        warn: Told what else the server says, and which folders several runs share.

    Raises:
        ConfigError: There is no such run, it has no logs yet, or TensorBoard is not installed or cannot listen.
    """
    logs = find_logs(runs[0]) if len(runs) == 1 else find_logs_of(runs, warn)
    in_bucket = not all(map(storage.is_local, logs.values()))
    _require("tensorboard", "tensorboard>=2.21,<3")
    if in_bucket:
        _require("gcsfs", "gcsfs>=2026.2")
    with _paths(logs) as paths:
        options = {
            # Not --logdir: what else is in the line, and outputs of other configurations, is not of this run.
            "logdir_spec": ",".join(f"{name}:{path}" for name, path in paths.items()),
            "host": host,
            "reload_interval": str(_RELOAD_BUCKET_S if in_bucket else _RELOAD_LOCAL_S),
            # Its second reader, in Rust, knows no logdir_spec.
            "load_fast": "false",
        }
        if port is not None:
            options["port"] = str(port)
        return _serve([f"--{name}={value}" for name, value in options.items()], say, warn)


def find_logs(run: str) -> dict[str, str]:
    """Return the folders of a run's logs by the name under which they are shown.

    Raises:
        ConfigError: There is no such run, or it has no logs yet.
    """
    return _find(run)[1]


def find_logs_of(runs: Sequence[str], warn: Callable[[str], None]) -> dict[str, str]:
    """Return the folders of several runs' logs by name: LINE/ID/training, LINE/ID/profile.

    Args:
        runs: As in `show`.
        warn: Told which folders several runs share, as those do that have reused one: they are shown once.

    Raises:
        ConfigError: There are more than `MOST_RUNS`, there is no such run, or one has no logs of its training yet.
    """
    if len(runs) > MOST_RUNS:
        raise ConfigError(
            f"{len(runs)} runs for one TensorBoard", allowed=f"at most {MOST_RUNS}", todo="leave some of them out"
        )
    logs: dict[str, str] = {}
    owners: dict[str, str] = {}
    for run in runs:
        title, found = _find(run, needs_training=True)
        for part, uri in found.items():
            name = _tidy(f"{title}/{part}").strip("/")
            # By the real path: TensorBoard follows links too, and shows a folder under one name.
            folder = os.path.realpath(storage.local_path(uri)) if storage.is_local(uri) else uri
            if folder in owners:
                warn(f"{name} is not shown twice: it is the same folder as {owners[folder]}")
                continue
            count = 1
            while (shown := name if count == 1 else f"{name}-{count}") in logs:
                # The same run in two places, a copy out of a bucket for one.
                count += 1
            owners[folder], logs[shown] = shown, uri
    return logs


def _tidy(name: str) -> str:
    """Return a name without what means something to TensorBoard: a colon ends a name, a comma a path."""
    return re.sub(r"[^\w./-]", "_", name)


def _find(run: str, *, needs_training: bool = False) -> tuple[str, dict[str, str]]:
    """Return LINE/ID of a run, and its folders of logs by stage; of a stage's own folder LINE/STAGE and the folder."""
    uri = storage.normalise(run)
    if storage.list_names(storage.join(uri, TENSORBOARD_FOLDER)):
        *_, line, stage, name = ["", "", *uri.split("/")]
        return f"{line}/{stage}", {name or "run": storage.join(uri, TENSORBOARD_FOLDER)}
    place = find_place(run)
    folders = {name: find_folder(place, stage) for name, stage in _STAGES.items()}
    logs = {name: storage.join(uri, TENSORBOARD_FOLDER) for name, uri in folders.items() if uri is not None}
    found = {name: uri for name, uri in logs.items() if _has_events(uri)}
    if not found or (needs_training and "training" not in found):
        where = ", ".join(map(storage.display, logs.values())) or f"neither stage of {place.run_id} has begun"
        raise ConfigError(
            f"{run} has no logs {'of a training ' if found else ''}for TensorBoard yet ({where})",
            allowed="several runs, each with a training that has begun"
            if found
            else "a run whose profiling has ended or whose training has begun",
            todo="wait for it: shardline inspect RUN says how far it is; in a bucket logs come every 30 s",
        )
    return f"{place.line.rpartition('/')[2]}/{place.run_id}", found


def _has_events(uri: str) -> bool:
    return any("tfevents" in info.name for info in storage.list_objects(uri))


def _require(package: str, requirement: str) -> None:
    if find_spec(package) is None:
        raise ConfigError(
            f"the package {package} is not installed here",
            allowed="an environment that has it, as those that train do",
            todo=f'pip install "{requirement}"',
        )


@contextmanager
def _paths(logs: dict[str, str]) -> Iterator[dict[str, str]]:
    """Give the folders as TensorBoard takes them: a comma would end a path."""
    with tempfile.TemporaryDirectory(prefix="shardline-") as temporary:
        paths: dict[str, str] = {}
        for name, uri in logs.items():
            path = str(storage.local_path(uri)) if storage.is_local(uri) else uri
            if "," in path and storage.is_local(uri):
                link = Path(temporary) / str(len(paths))
                link.symlink_to(path, target_is_directory=True)
                path = str(link)
            elif "," in path:
                raise ConfigError(
                    f"TensorBoard cannot read {uri}: it takes a comma for the end of a name",
                    allowed="a folder of a bucket without commas in its name",
                    todo="copy the run to this machine and open it there",
                )
            paths[_tidy(name)] = path
        yield paths


def _serve(arguments: list[str], say: Callable[[str], None], warn: Callable[[str], None]) -> int:
    # gcsfs would ask a gRPC service for the kind of every bucket, for minutes where there is none.
    environment = {"GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT": "false", **os.environ}
    process = subprocess.Popen(
        [sys.executable, "-c", _COMMAND, *arguments],
        stdin=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        env=environment,
        text=True,
        errors="replace",
    )
    last = ""
    try:
        assert process.stderr is not None
        for line in process.stderr:
            # Names out of the run are in it: they are to move no cursor.
            text = UNPRINTABLE.sub("\ufffd", line.rstrip())
            if found := _ADDRESS.match(text):
                say(found[1])
            elif text and _NOISE not in text:
                last = text
                warn(text)
        code = process.wait()
    finally:
        _end(process)
    if code != 0:
        raise ConfigError(
            f"TensorBoard ended: {last or f'exit code {code}'}",
            allowed="a free port and an address of this machine",
            todo="try --port 0, or see what it said above",
        )
    return 0


def _end(process: subprocess.Popen[str]) -> None:
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(_GRACE_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
    if process.stderr is not None:
        process.stderr.close()
