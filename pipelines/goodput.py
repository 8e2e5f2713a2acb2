"""`shardline goodput RUN`: where the time of a training went, over all its attempts, as a table or as JSON."""

from __future__ import annotations

import json
from typing import TextIO

from contracts.artifacts import GoodputRecord
from contracts.errors import ConfigError
from contracts.goodput import count_stops
from inspection.goodput import read_goodput
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
        f"{count_stops(record)}; {record.node_hours:.3f} node-hours"
        + (f" ({rate:.3f} preemptions per node-hour)" if rate is not None else "")
        + f"; {record.between_attempts_s:.1f} s between attempts",
        file=stream,
    )


def to_json(record: GoodputRecord) -> str:
    """Return the account as JSON."""
    return json.dumps(record.model_dump(mode="json"), indent=1)
