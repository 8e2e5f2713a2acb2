"""Beam runners of the graph, selected by `resources.beam_runner`.

    fnapi      the FnApiRunner, named explicitly; worker processes write the shards (sharding/workers.py)
    dataflow   Google Cloud Dataflow (dataflow.py)

Never 'DirectRunner': that name tries Prism first, which it downloads, and falls back silently. Never DaskRunner: it
reports DONE with wrong data. docs/decisions/0001-beam-runners.md has the evidence.
"""

from __future__ import annotations

import contextlib
import logging
import re
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import apache_beam as beam
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.runners.portability.fn_api_runner import FnApiRunner, worker_handlers

from contracts.config import ResourcesSection, RunConfig
from contracts.errors import TryAgain
from contracts.process import available_cores

# Errors of a worker process arrive as the text of a traceback.
_TRY_AGAIN = re.compile(r"^contracts\.errors\.TryAgain: (.*?)(?: \[while running .*)?$", re.MULTILINE)

# Measured source bytes per second and process, without and with decoding (docs/sharding.md).
BYTES_PER_S = {False: 600e6, True: 30e6}
# Measured cost of a further thread of Beam and its process (docs/sharding.md).
PROCESS_START_S = 0.3

Build = Callable[[beam.Pipeline], None]


@dataclass(frozen=True)
class Work:
    """Size of a job, known before it runs."""

    source_bytes: int
    num_shards: int
    decodes: bool
    """Whether every image is decoded."""


def choose_processes(resources: ResourcesSection, work: Work) -> int:
    """Return the number of worker processes; `auto` uses several if they save more time than their start takes."""
    if resources.beam_workers != "auto":
        return resources.beam_workers
    processes = min(available_cores(), work.num_shards)
    saved_s = work.source_bytes / BYTES_PER_S[work.decodes] * (1 - 1 / max(processes, 1))
    return processes if saved_s > PROCESS_START_S else 1


def run_graph(
    build: Build,
    config: RunConfig,
    work: Work,
    *,
    job_name: str,
    work_uri: str,
    run_id: str = "",
) -> str:
    """Run a graph to its end; return a description of the runner.

    Args:
        build: Adds the steps to an empty pipeline.
        config: Its sections resources, cloud and dataflow.
        work: Size of the job, which determines the number of processes.
        job_name: Name of the Dataflow job: lower-case letters, digits and '-'.
        work_uri: URI in the bucket for Dataflow's temporary files.
        run_id: Run label of the Dataflow job; empty: none.

    Raises:
        ConfigError: A key that the runner needs is not set.
        TryAgain: A worker or a service is unavailable.
    """
    # Beam also raises the errors that it logs.
    logging.getLogger("apache_beam").setLevel(logging.CRITICAL)
    runner = config.resources.beam_runner
    with warnings.catch_warnings():
        # Warnings of gRPC and Beam at start and end are noise.
        warnings.simplefilter("ignore")
        try:
            if runner == "dataflow":
                return _run_dataflow(build, config, job_name, work_uri, run_id=run_id)
            return _run_fnapi(build, config, work)
        except RuntimeError as error:
            if reasons := _TRY_AGAIN.findall(str(error)):
                raise TryAgain(reasons[-1]) from None
            raise


@contextlib.contextmanager
def fnapi_pipeline(threads: int = 1, flags: tuple[str, ...] = ()) -> Iterator[beam.Pipeline]:
    """Yield an empty pipeline on the FnApiRunner, which runs at the end of the block.

    Args:
        threads: Concurrent bundles in this process; worker processes write the shards (sharding/workers.py).
        flags: Further flags for Beam.
    """
    mode = "multi_threading" if threads > 1 else "in_memory"
    # Disables the periodic flush of buffers: Beam 2.77 takes no lock between reading and clearing a buffer
    # (worker/data_plane.py), which loses large elements. Full buffers are still flushed.
    worker_handlers.DATA_BUFFER_TIME_LIMIT_MS = 0
    # Always with flags: without any, Beam would parse this process's command line.
    options = PipelineOptions([f"--direct_num_workers={threads}", f"--direct_running_mode={mode}", *flags])
    with beam.Pipeline(runner=FnApiRunner(), options=options) as pipeline:
        yield pipeline


def _run_fnapi(build: Build, config: RunConfig, work: Work) -> str:
    processes = choose_processes(config.resources, work)
    with fnapi_pipeline(processes) as pipeline:
        build(pipeline)
    return "FnApiRunner, " + ("one process" if processes == 1 else f"{processes} processes")


def _run_dataflow(build: Build, config: RunConfig, job_name: str, work_uri: str, *, run_id: str) -> str:
    from apache_beam.runners.dataflow.internal.apiclient import DataflowJobAlreadyExistsError

    from sharding.dataflow import find_job, submit, wait_for

    try:
        job_id = submit(build, config, job_name=job_name, output_uri=work_uri, run_id=run_id).job_id()
        shown = f"DataflowRunner, {config.cloud.region}"
    except DataflowJobAlreadyExistsError:
        # A job of another run does the same work.
        running_id = find_job(config, job_name)
        if running_id is None:
            raise TryAgain(f"a Dataflow job {job_name} has just ended; run again to reuse its output") from None
        job_id = running_id
        shown = f"DataflowRunner, {config.cloud.region}: job {job_id} of this name runs already"
    wait_for(config, job_id)
    return shown
