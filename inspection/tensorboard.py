"""TensorBoard's own server on the logs of runs: a child process that ends with the command.

It reads a bucket itself, through fsspec and gcsfs. Folders are given by --logdir_spec, NAME:PATH
(tensorboard/backend/event_processing/data_ingester.py); where a comma separates paths.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from importlib.util import find_spec

from contracts import storage
from contracts.errors import ConfigError
from inspection.find import find_place
from inspection.pages.quantities import UNPRINTABLE
from inspection.read import find_folder
from inspection.training import TENSORBOARD_FOLDER

MOST_RUNS = 8
"""Shown at a time."""
# Names in TensorBoard's list of runs.
_STAGES = {"training": "train", "profile": "profile"}
# Seconds between two reads; training copies its logs to a bucket every 30 s (contracts/attempts.py).
_RELOAD_LOCAL_S, _RELOAD_BUCKET_S = 5, 30
_GRACE_S = 5.0
_COMMAND = (
    "import runpy; from contracts.process import end_with_parent; end_with_parent(); "
    "runpy.run_module('tensorboard.main', run_name='__main__', alter_sys=True)"
)
_ADDRESS = re.compile(r"^TensorBoard \S+ at (http://\S+)")
# TensorBoard runs without TensorFlow.
_NOISE = "TensorFlow installation not found"


def show(
    runs: Sequence[str], *, host: str, port: int | None, say: Callable[[str], None], warn: Callable[[str], None]
) -> int:
    """Serve until interrupted; return the exit code.

    Args:
        runs: Each as in `find_place`, or a folder with a subfolder tensorboard/.
        host: Address to listen on.
        port: Port to listen on; 0: any free port, None: TensorBoard's default or the next free port.
        say: Called with the server's address when it listens.
        warn: Called with other messages of the server.

    Raises:
        ConfigError: There is no such run, it has no logs yet, or TensorBoard is not installed or cannot listen.
    """
    logs = find_logs(runs)
    in_bucket = not all(map(storage.is_local, logs.values()))
    for package in ["tensorboard", *(["gcsfs"] if in_bucket else [])]:
        if find_spec(package) is None:
            raise ConfigError(
                f"the package {package} is not installed here",
                allowed="an environment with it, as for training",
                todo=f'pip install "{package}"',
            )
    options = {
        # Not --logdir, which would include outputs of other runs.
        "logdir_spec": ",".join(f"{name}:{_path(uri)}" for name, uri in logs.items()),
        "host": host,
        "reload_interval": str(_RELOAD_BUCKET_S if in_bucket else _RELOAD_LOCAL_S),
        # The reader in Rust does not support logdir_spec.
        "load_fast": "false",
        **({} if port is None else {"port": str(port)}),
    }
    return _serve([f"--{name}={value}" for name, value in options.items()], say, warn)


def find_logs(runs: Sequence[str]) -> dict[str, str]:
    """Return the folders of runs' logs by name: training, profile; of several runs LINE/ID/training.

    A folder that several runs share by reuse is shown once.

    Args:
        runs: As in `show`.

    Raises:
        ConfigError: There are more than `MOST_RUNS`, there is no such run, one has no logs yet, or the path of a
            folder has a comma.
    """
    if len(runs) > MOST_RUNS:
        raise ConfigError(
            f"{len(runs)} runs for one TensorBoard", allowed=f"at most {MOST_RUNS}", todo="leave some of them out"
        )
    logs: dict[str, str] = {}
    for run in dict.fromkeys(runs):
        title, folders = _find(run)
        for part, uri in folders.items():
            if "," in _path(uri):
                raise ConfigError(
                    f"TensorBoard cannot read {_path(uri)}: a comma ends a path for it",
                    allowed="folders without a comma in their path",
                    todo="move or copy the line to such a folder",
                )
            name = re.sub(r"[^\w./-]", "_", part if len(runs) == 1 else f"{title}/{part}")
            if uri not in logs.values():
                # The same run in two places, such as a copy from a bucket.
                logs[f"{name}-{len(logs)}" if name in logs else name] = uri
    return logs


def _find(run: str) -> tuple[str, dict[str, str]]:
    """Return LINE/ID of a run, and its folders of logs by stage; of a stage's own folder LINE/STAGE and the folder."""
    uri = storage.normalise(run)
    if storage.list_names(storage.join(uri, TENSORBOARD_FOLDER)):
        *_, line, stage, name = ["", "", *storage.display(uri).rstrip("/").split("/")]
        return f"{line}/{stage}", {name or "run": storage.join(uri, TENSORBOARD_FOLDER)}
    place = find_place(run)
    folders = {name: find_folder(place, stage) for name, stage in _STAGES.items()}
    logs = {name: storage.join(uri, TENSORBOARD_FOLDER) for name, uri in folders.items() if uri is not None}
    written = {
        name: uri for name, uri in logs.items() if any("tfevents" in info.name for info in storage.list_objects(uri))
    }
    if not written:
        where = ", ".join(map(storage.display, logs.values())) or f"neither stage of {place.run_id} has begun"
        raise ConfigError(
            f"{run} has no logs for TensorBoard yet ({where})",
            allowed="a run whose profiling has ended or whose training has begun",
            todo="wait for it: shardline inspect RUN has its progress; in a bucket logs come every 30 s",
        )
    return f"{storage.display(place.line).rpartition('/')[2]}/{place.run_id}", written


def _path(uri: str) -> str:
    return str(storage.local_path(uri)) if storage.is_local(uri) else uri


def _serve(arguments: list[str], say: Callable[[str], None], warn: Callable[[str], None]) -> int:
    # gcsfs would query a gRPC service for the kind of each bucket, and wait minutes if there is none.
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
            # Names from the run could contain terminal controls.
            text = UNPRINTABLE.sub("\ufffd", line.rstrip())
            if address := _ADDRESS.match(text):
                say(address[1])
            elif text and _NOISE not in text:
                last = text
                warn(text)
        code = process.wait()
    finally:
        if process.poll() is None:
            process.terminate()
            with suppress(subprocess.TimeoutExpired):
                process.wait(_GRACE_S)
            process.kill()
            process.wait()
        if process.stderr is not None:
            process.stderr.close()
    if code != 0:
        raise ConfigError(
            f"TensorBoard ended: {last or f'exit code {code}'}",
            allowed="a free port and an address of this machine",
            todo="try --port 0, or see its messages above",
        )
    return 0
