"""The entry of a rank: `torchrun --module trainer.worker ASSIGNMENT`, started by trainer/launch.py, never by hand."""

from __future__ import annotations

import os
import sys
import traceback
from pathlib import Path

from contracts import storage
from contracts.config import RunConfig
from contracts.errors import EXIT_OK, ErrorDocument, Preempted, UserError
from contracts.events import ERROR_NAME, EventLog
from contracts.process import end_with_parent, run_process
from trainer.launch import Assignment, failed_for_good
from trainer.life import Life

# What explains the ends of the others, and is kept when they say theirs.
_DECISIVE = ("ConfigError", "DataError", "ModelError", "StorageError", "Preempted")


def main(path: str) -> int:
    """Train as one rank and return the exit code, which only torchrun sees: 0 means that it should not start again."""
    end_with_parent()
    assignment = Assignment.model_validate_json(Path(path).read_bytes())
    error_path = Path(assignment.attempt_folder) / ERROR_NAME
    if failed_for_good(error_path):
        return EXIT_OK
    events = EventLog(Path(assignment.attempt_folder), stage="train", attempt=assignment.attempt)

    def say(document: ErrorDocument) -> None:
        if document.kind in _DECISIVE or not error_path.exists():
            storage.replace(storage.normalise(error_path), document.model_dump_json(indent=1).encode())

    with Life(
        RunConfig.model_validate(assignment.config).resources,
        events,
        rank=int(os.environ["RANK"]),
        local_rank=int(os.environ["LOCAL_RANK"]),
        generation=int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")),
        say=say,
    ) as life:
        try:
            # torch is imported here: signals are heard, and a restart that is in vain has ended, before it.
            from trainer.distributed import process_group
            from trainer.loop import train

            with process_group() as rank:
                train(assignment, rank, events, life)
        except Exception as error:  # noqa: BLE001 - the entry of a process is where everything ends
            error = life.why(error)
            document = ErrorDocument.of(error, traceback.format_exc())
            life.say(document)
            if not isinstance(error, Preempted):
                print(document.traceback, file=sys.stderr, flush=True)
            # To torchrun every other code means "start all ranks again", which nobody wants of these.
            return EXIT_OK if isinstance(error, UserError | Preempted) else document.exit_code
    return EXIT_OK


if __name__ == "__main__":
    run_process(lambda: main(sys.argv[1]))
