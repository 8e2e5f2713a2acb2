"""`shardline goodput RUN`: where the time of a training went, over all its attempts, read from their events.

It works while a training goes on and for one that was killed: what was told so far is what counts.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, TextIO

from contracts import storage
from contracts.artifacts import GoodputRecord
from contracts.errors import ConfigError
from contracts.events import ATTEMPTS_FOLDER, EVENTS_NAME
from contracts.goodput import account
from pipelines.place import find_run

_STAGE = "train"
# What each class is called in the table, in the order of a training's life.
_NAMES = {
    "productive_s": "productive",
    "start_up_s": "start-up",
    "data_wait_s": "data wait",
    "checkpoint_s": "checkpoint stall",
    "evaluation_s": "evaluation",
    "lost_s": "lost and repeated",
    "recovery_s": "recovery",
    "stop_s": "stop",
}


def find_goodput(run: str) -> GoodputRecord:
    """Return the account of the training that a run used.

    Args:
        run: Folder of a line (its newest training) or of a run, as a path or URI, or the id of a run below ./runs.

    Raises:
        ConfigError: There is no such run, or it has no training.
    """
    line, run_id = find_run(run, stage=_STAGE)
    found = read_goodput(line, run_id)
    if found is None:
        raise ConfigError(
            f"{run}: no training was started",
            allowed="a line, or a run of one, whose stage train has begun",
            todo="run `shardline train CONFIG`, or name another run",
        )
    return found


def read_goodput(line: str, run_id: str | None) -> GoodputRecord | None:
    """Return the account of a training of a line; None when there was none.

    Args:
        line: URI of the line's folder.
        run_id: The run that used the training; None: the newest training.
    """
    attempts_uri = storage.join(line, _STAGE, ATTEMPTS_FOLDER)
    attempts = {name: _read(storage.join(attempts_uri, name, EVENTS_NAME)) for name in storage.list_names(attempts_uri)}
    trainings = {name: training for name, events in attempts.items() if (training := _training_of(events))}
    chosen = trainings.get(run_id or max(trainings, default=""))
    if chosen is None:
        return None
    return account(attempts[name] for name, training in trainings.items() if training == chosen)


def print_goodput(record: GoodputRecord, stream: TextIO) -> None:
    """Print the account as a table."""
    for name, said in _NAMES.items():
        seconds = getattr(record, name)
        share = 100 * seconds / record.wall_s if record.wall_s > 0 else 0.0
        print(f"{said:<18} {seconds:>12.1f} s {share:>6.1f} %", file=stream)
    print(f"{'wall time':<18} {record.wall_s:>12.1f} s {record.goodput_percent:>6.1f} % goodput", file=stream)
    rate = record.preemptions_per_node_hour
    starts = f"{record.attempts} attempts and {record.starts} starts"
    print(f"{record.steps} steps in {starts}; {record.lost_steps} steps lost", file=stream)
    print(
        f"{record.preemptions} preemptions in {record.node_hours:.3f} node-hours"
        + (f" ({rate:.3f} per node-hour)" if rate is not None else "")
        + f", {record.crashes} crashes; {record.between_attempts_s:.1f} s between attempts",
        file=stream,
    )


def to_json(record: GoodputRecord) -> str:
    """Return the account as JSON."""
    return json.dumps(record.model_dump(mode="json"), indent=1)


def _read(uri: str) -> list[dict[str, Any]]:
    try:
        content = storage.read_bytes(uri)
    except FileNotFoundError:
        return []
    return list(_whole_lines(content))


def _whole_lines(content: bytes) -> Iterator[dict[str, Any]]:
    """Yield events; the last line of a process that was killed, or works on, may be a part of one."""
    for line in content[: content.rfind(b"\n") + 1].splitlines():
        yield json.loads(line)


def _training_of(events: list[dict[str, Any]]) -> str:
    """Return the fingerprint of the training that an attempt worked on; empty: it did not come to that."""
    return next((str(event["fingerprint"]) for event in events if event["event"] == "folder"), "")
