"""The process that executes one submitted pipeline: `python -m rehearsal.pipelines.pipeline FOLDER REPORTS`.

FOLDER has job.json; everything that is written goes below it. REPORTS is the number of an open file descriptor for
reports.py's lines. SIGTERM cancels. It ends when the run has, with 0, whatever became of the run.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from contracts.process import end_with_parent
from rehearsal.guard import REFUSED_VARIABLE
from rehearsal.machines.network import Network
from rehearsal.machines.processes import MARK_VARIABLE
from rehearsal.pipelines.containers import Containers
from rehearsal.pipelines.dag import Result, Walk
from rehearsal.pipelines.job import Job
from rehearsal.pipelines.reports import Reporter

# JSON of a ContainerPlace.
PLACE_VARIABLE = "SHARDLINE_REHEARSAL_PLACE"


@dataclass(frozen=True)
class ContainerPlace:
    """What leads the clients of tasks' containers."""

    environment: Mapping[str, str] = field(default_factory=dict)
    token: str = ""

    @classmethod
    def read(cls, text: str) -> ContainerPlace:
        """Read one from JSON."""
        return cls(**json.loads(text))


def main(folder: Path, descriptor: int) -> None:
    """Execute the pipeline."""
    end_with_parent()
    job = Job.read(folder)
    given = ContainerPlace.read(os.environ.pop(PLACE_VARIABLE))
    with Network(refuse=_note_refused) as network, os.fdopen(descriptor, "wb") as stream:
        reporter = Reporter(stream, job.uuid)
        # They are found by its mark.
        environment = {**given.environment, MARK_VARIABLE: os.environ[MARK_VARIABLE]}
        containers = Containers(job, folder, environment, reporter, network, given.token)
        result = asyncio.run(_walk(containers, reporter))
        reporter.end(result.state, result.error or None)


def _note_refused(host: str) -> None:
    """Take down a host outside where the guard of Python processes does."""
    if path := os.environ.get(REFUSED_VARIABLE):
        with Path(path).open("a") as stream:
            stream.write(f"{host}\n")


async def _walk(containers: Containers, reporter: Reporter) -> Result:
    walk = Walk(containers, reporter)
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, walk.cancel)
    return await walk.run()


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
