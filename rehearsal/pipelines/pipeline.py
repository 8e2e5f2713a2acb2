"""The process that executes one submitted pipeline: `python -m rehearsal.pipelines.pipeline FOLDER REPORTS`.

FOLDER has job.json; everything that is written goes below it. REPORTS is the number of an open file descriptor for
reports.py's lines. SIGTERM cancels. It ends when the run has, with 0, whatever became of the run.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path

from contracts.process import end_with_parent
from rehearsal.machines.processes import MARK_VARIABLE
from rehearsal.pipelines.containers import Containers
from rehearsal.pipelines.dag import Result, Walk
from rehearsal.pipelines.job import Job
from rehearsal.pipelines.reports import Reporter


def main(folder: Path, descriptor: int) -> None:
    """Execute the pipeline."""
    end_with_parent()
    job = Job.read(folder)
    assert MARK_VARIABLE in os.environ
    with os.fdopen(descriptor, "wb") as stream:
        reporter = Reporter(stream, job.uuid)
        containers = Containers(job, folder, os.environ, reporter)
        result = asyncio.run(_walk(containers, reporter))
        reporter.end(result.state, result.error or None)


async def _walk(containers: Containers, reporter: Reporter) -> Result:
    walk = Walk(containers, reporter)
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, walk.cancel)
    return await walk.run()


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
