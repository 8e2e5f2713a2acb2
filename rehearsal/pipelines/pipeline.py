"""The process that executes one submitted pipeline: `python -m rehearsal.pipelines.pipeline FOLDER REPORTS`.

FOLDER has job.json; everything that is written goes below it. REPORTS is the number of an open file descriptor for
reports.py's lines. SIGTERM cancels. It ends when the run has, with 0, whatever became of the run.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import warnings
from pathlib import Path

from contracts.process import end_with_parent, refuse_import
from rehearsal.machines.processes import MARK_VARIABLE
from rehearsal.pipelines.job import Job
from rehearsal.pipelines.reports import CANCELLED, Reporter, error_of

# Comma-separated images that cannot be pulled.
MISSING_IMAGES_VARIABLE = "SHARDLINE_REHEARSAL_MISSING_IMAGES"


def main(folder: Path, descriptor: int) -> None:
    """Execute the pipeline."""
    end_with_parent()
    # kfp's remarks about what a local run cannot do.
    warnings.simplefilter("ignore")
    from rehearsal.pipelines.containers import Containers

    refuse_import("docker")
    from rehearsal.pipelines.patches import Orchestration

    job = Job.read(folder)
    with os.fdopen(descriptor, "wb") as stream:
        reporter = Reporter(stream, job.uuid)
        environment = dict(os.environ)
        missing = environment.pop(MISSING_IMAGES_VARIABLE, "")
        containers = Containers(job, folder, environment, reporter, frozenset(filter(None, missing.split(","))))
        assert MARK_VARIABLE in environment

        def cancel(*_: object) -> None:
            # Not here: the interrupted code may hold a lock.
            threading.Thread(target=containers.cancel, daemon=True).start()

        signal.signal(signal.SIGTERM, cancel)
        orchestration = Orchestration(containers, reporter)
        succeeded = orchestration.run()
        if containers.cancelled.is_set():
            reporter.end("CANCELLED", error_of(CANCELLED, "the run was cancelled"))
        elif succeeded:
            reporter.end("SUCCEEDED")
        else:
            reporter.end("FAILED", orchestration.error(()))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
