"""What the Beam graph runs on, chosen by `resources.beam_runner`; the graph is the same on all of them.

    fnapi      the FnApiRunner, named explicitly: shards are written in processes of their own (sharding/write/pool.py)
    portable   any Beam job service, with workers that it starts or finds
    dataflow   Google Cloud Dataflow (dataflow.py)

Never 'DirectRunner': that name tries Prism first, which it downloads, and falls back silently. Never DaskRunner: it
reports DONE with wrong data. docs/decisions/0001-beam-runners.md has the evidence.
"""

from __future__ import annotations

import contextlib
import logging
import re
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import apache_beam as beam
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.runners.portability.fn_api_runner import FnApiRunner, worker_handlers
from apache_beam.runners.runner import PipelineState

from contracts import storage
from contracts.config import ResourcesSection, RunConfig
from contracts.errors import ConfigError, ShardlineError, TryAgain
from sharding.runners.heartbeat import Monitor
from sharding.runners.work import Work, choose_processes

POLL_INTERVAL_S = 0.5
# Looking into a bucket is a request.
REMOTE_POLL_INTERVAL_S = 2.0
# Time to reach a job service; it is no limit on the job.
CONNECT_TIMEOUT_S = 30

# What a worker process raises comes back as the text of its traceback.
_TRY_AGAIN = re.compile(r"^contracts\.errors\.TryAgain: (.*?)(?: \[while running .*)?$", re.MULTILINE)

Build = Callable[[beam.Pipeline], None]


def run_graph(
    build: Build,
    config: RunConfig,
    work: Work,
    *,
    job_name: str,
    work_uri: str,
    run_id: str = "",
    launch: Path | None = None,
) -> str:
    """Run a graph to its end; return what it ran on, in words.

    Args:
        build: Adds the steps to an empty pipeline.
        config: Its sections resources, cloud and dataflow.
        work: Decides between one process and several.
        job_name: What a service shows; lower-case letters, digits and '-'.
        work_uri: Folder for signs of life.
        run_id: The run that Dataflow's job is labelled with; empty: none.
        launch: File for the name of Dataflow's job, which is then not waited for.

    Raises:
        ConfigError: Something that the runner needs is not set, or a runner other than Dataflow is to be launched.
        TryAgain: A worker or a service is gone.
    """
    # What Beam logs about a failure comes back as the exception that it raises.
    logging.getLogger("apache_beam").setLevel(logging.CRITICAL)
    runner = config.resources.beam_runner
    if launch is not None and runner != "dataflow":
        raise ConfigError(
            f"--launch with resources.beam_runner = {runner}",
            allowed="dataflow: the others run in, or beside, this process",
            todo="set resources.beam_runner=dataflow, or leave --launch out",
        )
    with warnings.catch_warnings():
        # gRPC and Beam warn about themselves while they start and end.
        warnings.simplefilter("ignore")
        try:
            if runner == "dataflow":
                return _run_dataflow(build, config, job_name, work_uri, run_id=run_id, launch=launch)
            run = _run_portable if runner == "portable" else _run_fnapi
            return run(build, config, work, job_name, work_uri)
        except RuntimeError as error:
            if found := _TRY_AGAIN.findall(str(error)):
                raise TryAgain(found[-1]) from None
            raise


@contextlib.contextmanager
def fnapi_pipeline(threads: int = 1, flags: tuple[str, ...] = ()) -> Iterator[beam.Pipeline]:
    """Give an empty pipeline on the FnApiRunner; it runs when the block ends.

    Args:
        threads: Bundles that are under way at a time, all in this process; shards are written in processes of their own
            (sharding/write/pool.py).
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


def _run_fnapi(build: Build, config: RunConfig, work: Work, job_name: str, work_uri: str) -> str:
    processes = choose_processes(config.resources, work)
    with fnapi_pipeline(processes, tuple(config.resources.beam_options)) as pipeline:
        build(pipeline)
    return "FnApiRunner, " + ("one process" if processes == 1 else f"{processes} processes")


def portable_flags(resources: ResourcesSection, job_name: str) -> list[str]:
    """Return Beam's flags for a job service.

    Raises:
        ConfigError: No endpoint is set.
    """
    if not resources.beam_job_endpoint:
        raise ConfigError(
            "resources.beam_runner is portable, but resources.beam_job_endpoint is not set",
            allowed="HOST:PORT of a Beam job service",
            todo="start one (docs/sharding.md) and give its address, or use resources.beam_runner=fnapi",
        )
    if resources.beam_environment_type == "EXTERNAL" and not resources.beam_environment_config:
        raise ConfigError(
            "resources.beam_environment_type is EXTERNAL, but resources.beam_environment_config is not set",
            allowed="HOST:PORT of a worker pool",
            todo="start one (docs/sharding.md) and give its address, or let the service start workers: DOCKER, PROCESS",
        )
    return [
        f"--job_endpoint={resources.beam_job_endpoint}",
        f"--job_name={job_name}",
        f"--job_server_timeout={CONNECT_TIMEOUT_S}",
        f"--environment_type={resources.beam_environment_type}",
        *([f"--environment_config={resources.beam_environment_config}"] * bool(resources.beam_environment_config)),
        # It runs pip to list what is installed here, for a log that nobody reads.
        "--experiments=disable_logging_submission_environment",
        *resources.beam_options,
    ]


def _run_portable(build: Build, config: RunConfig, work: Work, job_name: str, work_uri: str) -> str:
    import grpc
    from apache_beam.runners.portability.portable_runner import PortableRunner

    resources = config.resources
    options = PipelineOptions(portable_flags(resources, job_name))
    where = f"the job service at {resources.beam_job_endpoint}"
    monitor = Monitor(work_uri, resources.beam_silence_s, resources.beam_idle_s)
    try:
        pipeline = beam.Pipeline(runner=PortableRunner(), options=options)
        build(pipeline)
        result = pipeline.run()
        # Asked, not streamed: Beam ends its stream of states after the time that was meant for connecting.
        while not PipelineState.is_terminal(state := result.state):
            if (silent_s := monitor.find_silent()) is not None:
                result.cancel()
                raise TryAgain(f"a Beam worker of {where} has been silent for {silent_s:.0f} s: killed or hung")
            if (idle_s := monitor.find_idle()) is not None:
                result.cancel()
                raise TryAgain(
                    f"no Beam worker of {where} has been at work for {idle_s:.0f} s: killed, or never started"
                )
            time.sleep(POLL_INTERVAL_S if storage.is_local(work_uri) else REMOTE_POLL_INTERVAL_S)
        if state != PipelineState.DONE:
            if monitor.find_dead():
                raise TryAgain(f"a Beam worker of {where} died before its work was done")
            # Raises what the service says about it.
            result.wait_until_finish(duration=1000 * CONNECT_TIMEOUT_S)
            raise ShardlineError(f"{where} ended the job as {state}")
    except (grpc.RpcError, grpc.FutureTimeoutError) as error:
        reason = error.details() if isinstance(error, grpc.Call) else "no answer"
        raise TryAgain(f"{where} cannot be reached: {reason}") from None
    return f"PortableRunner, {where}"


def _run_dataflow(
    build: Build, config: RunConfig, job_name: str, work_uri: str, *, run_id: str, launch: Path | None
) -> str:
    from apache_beam.runners.dataflow.internal.apiclient import DataflowJobAlreadyExistsError

    from sharding.runners.dataflow import find_job, submit, wait_for, write_resources

    try:
        job_id = submit(build, config, job_name=job_name, output_uri=work_uri, run_id=run_id).job_id()
        shown = f"DataflowRunner, {config.cloud.region}"
    except DataflowJobAlreadyExistsError:
        # Another run was quicker: its job does this one's work.
        found = find_job(config, job_name, active=True)
        if found is None:
            raise TryAgain(f"a Dataflow job {job_name} has just ended; run again, and it is reused") from None
        job_id = found
        shown = f"DataflowRunner, {config.cloud.region}: job {job_id} of this name runs already"
    if launch is not None:
        write_resources(launch, config, job_id)
    else:
        wait_for(config, job_id)
    return shown
