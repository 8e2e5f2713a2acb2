"""What the Beam graph runs on, chosen by `resources.beam_runner`; the graph is the same on both.

    fnapi      the FnApiRunner, named explicitly: shards are written in processes of their own (sharding/workers.py)
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

# What a worker process raises comes back as the text of its traceback.
_TRY_AGAIN = re.compile(r"^contracts\.errors\.TryAgain: (.*?)(?: \[while running .*)?$", re.MULTILINE)

# Bytes of sources that one process turns into shards in a second, measured (docs/sharding.md), by whether it decodes.
BYTES_PER_S = {False: 600e6, True: 30e6}
# A further thread of Beam and its process cost about so much, measured (docs/sharding.md).
PROCESS_START_S = 0.3

Build = Callable[[beam.Pipeline], None]


@dataclass(frozen=True)
class Work:
    """What is known about the size of a job before it runs."""

    source_bytes: int
    num_shards: int
    decodes: bool
    """Whether every image is decoded on the way."""


def choose_processes(resources: ResourcesSection, work: Work) -> int:
    """Return the number of shards that the FnApiRunner writes at a time, each in a process of its own.

    With `auto`, there are several where the time that they save is more than their start costs.
    """
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
    """Run a graph to its end; return what it ran on, in words.

    Args:
        build: Adds the steps to an empty pipeline.
        config: Its sections resources, cloud and dataflow.
        work: Decides between one process and several.
        job_name: What a service shows; lower-case letters, digits and '-'.
        work_uri: Folder in the bucket that Dataflow writes temporary files to.
        run_id: The run that Dataflow's job is labelled with; empty: none.

    Raises:
        ConfigError: Something that the runner needs is not set.
        TryAgain: A worker or a service is gone.
    """
    # What Beam logs about a failure comes back as the exception that it raises.
    logging.getLogger("apache_beam").setLevel(logging.CRITICAL)
    runner = config.resources.beam_runner
    with warnings.catch_warnings():
        # gRPC and Beam warn about themselves while they start and end.
        warnings.simplefilter("ignore")
        try:
            if runner == "dataflow":
                return _run_dataflow(build, config, job_name, work_uri, run_id=run_id)
            return _run_fnapi(build, config, work)
        except RuntimeError as error:
            if found := _TRY_AGAIN.findall(str(error)):
                raise TryAgain(found[-1]) from None
            raise


@contextlib.contextmanager
def fnapi_pipeline(threads: int = 1, flags: tuple[str, ...] = ()) -> Iterator[beam.Pipeline]:
    """Give an empty pipeline on the FnApiRunner; it runs when the block ends.

    Args:
        threads: Bundles that are under way at a time, all in this process; shards are written in processes of their own
            (sharding/workers.py).
        flags: Further flags for Beam.
    """
    mode = "multi_threading" if threads > 1 else "in_memory"
    # In that mode another thread empties the buffers of a bundle every second, and Beam 2.77 takes no lock between
    # reading a buffer and clearing it (worker/data_plane.py): of elements of megabytes some are lost. A buffer that is
    # full is emptied all the same.
    worker_handlers.DATA_BUFFER_TIME_LIMIT_MS = 0
    # Flags are given, if none: left out, Beam would read this process's own command line.
    options = PipelineOptions([f"--direct_num_workers={threads}", f"--direct_running_mode={mode}", *flags])
    with beam.Pipeline(runner=FnApiRunner(), options=options) as pipeline:
        yield pipeline


def _run_fnapi(build: Build, config: RunConfig, work: Work) -> str:
    processes = choose_processes(config.resources, work)
    with fnapi_pipeline(processes, tuple(config.resources.beam_options)) as pipeline:
        build(pipeline)
    return "FnApiRunner, " + ("one process" if processes == 1 else f"{processes} processes")


def _run_dataflow(build: Build, config: RunConfig, job_name: str, work_uri: str, *, run_id: str) -> str:
    from apache_beam.runners.dataflow.internal.apiclient import DataflowJobAlreadyExistsError

    from sharding.dataflow import find_job, submit, wait_for

    try:
        job_id = submit(build, config, job_name=job_name, output_uri=work_uri, run_id=run_id).job_id()
        shown = f"DataflowRunner, {config.cloud.region}"
    except DataflowJobAlreadyExistsError:
        # Another run was quicker: its job does this one's work.
        found = find_job(config, job_name)
        if found is None:
            raise TryAgain(f"a Dataflow job {job_name} has just ended; run again, and it is reused") from None
        job_id = found
        shown = f"DataflowRunner, {config.cloud.region}: job {job_id} of this name runs already"
    wait_for(config, job_id)
    return shown
