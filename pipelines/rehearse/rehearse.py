"""`shardline rehearse`: a submission by the real clients to a simulated Google Cloud on this machine.

The user's command (`shardline submit --wait`, or `schedule create`) runs as a child process, which finds the local
cloud through environment variables only. Then the result is compared with the requested disturbances (result.py) and
with an undisturbed training (undisturbed.py).
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from contracts import storage
from contracts.config import RunConfig
from contracts.config.load import to_yaml
from contracts.errors import CheckFailed, ConfigError
from contracts.stage import new_attempt_id
from pipelines.rehearse.config import RehearsalConfig, prepare
from pipelines.rehearse.options import RehearsalOptions
from pipelines.rehearse.result import Result, collect_result, leave_evidence
from pipelines.rehearse.steps import StepWatch
from pipelines.rehearse.undisturbed import begin_training, compare

if TYPE_CHECKING:
    from rehearsal.cloud import LocalCloud

# Project number of the bucket server's buckets: Google's SDK compares it with the project's.
PROJECT_NUMBER = "123456789012"
_POLL_S = 0.2
# Time for the local Vertex AI to start a due run.
_FIRING_LIMIT_S = 60.0
_RUN_LIMIT_S = 86400.0
# The command ends with this process, even after SIGKILL.
_COMMAND = "from contracts.process import end_with_parent; end_with_parent(); from pipelines.cli import main; main()"
# Lines about cost: a rehearsal has none.
_COST_LINES = (b"cost of training", b"price: ", b"time of training")
# URLs of the real console, which has no rehearsed runs.
_CONSOLE = b"https://console.cloud.google.com/"
_STDERR = 2


def rehearse(config: RunConfig, options: RehearsalOptions, folder: Path) -> Result:
    """Rehearse the submission of a resolved configuration with absolute paths; `options` are validated.

    Raises:
        ConfigError: The configuration cannot be submitted, there is nothing local to copy, or the folder is in use.
    """
    from pipelines.plan import make_plan

    with signals_end():
        prepared = prepare(config, options.source, options.weights)
        make_plan(prepared.config).require()
        path, samples = open_folder(folder, prepared, options.samples)
        cloud = make_cloud(folder, prepared, options)
        began = time.monotonic()
        with cloud, client_environment(environment_of(cloud, folder)):
            run = _rehearse_schedule if options.schedule_days else _rehearse_run
            result = run(cloud, prepared, path, options)
            result.variables |= samples
            result.wall_s = time.monotonic() - began
            leave_evidence(cloud)
    return result


def check(result: Result) -> None:
    """Raise CheckFailed if the rehearsal has complaints."""
    if result.complaints:
        raise CheckFailed("\n  ".join(["the rehearsal failed:", *result.complaints]))


def open_folder(folder: Path, prepared: RehearsalConfig, most: int | None) -> tuple[Path, dict[str, str]]:
    """Write configuration and source; return the configuration's path, and the share of the source that was copied."""
    from rehearsal.cloud import BUCKETS_FOLDER

    require_new(folder)
    path = folder / "config.yaml"
    path.write_text(to_yaml(prepared.config))
    copied, total = prepared.copy_source(folder / BUCKETS_FOLDER, most)
    prepared.copy_weights(folder / BUCKETS_FOLDER)
    return path, {} if most is None else {"samples": f"{copied} of {total} files"}


def require_new(folder: Path) -> None:
    """Create the folder of a rehearsal with mode 0700: it contains copies of the user's data.

    Raises:
        ConfigError: It is not empty.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if any(folder.iterdir()):
        raise ConfigError(
            f"--keep {folder} is not empty",
            allowed="a new or an empty folder: finished stages of another rehearsal would be reused",
            todo="choose another folder",
        )
    folder.chmod(0o700)


def make_cloud(folder: Path, prepared: RehearsalConfig, options: RehearsalOptions) -> LocalCloud:
    """Return the local cloud of a rehearsal, not started yet."""
    from rehearsal.cloud import LocalCloud
    from rehearsal.jobs.market import Market, spread
    from rehearsal.machines.machine import Scale

    config, count = prepared.config, options.preemptions
    nodes, job = config.resources.num_nodes, f"{config.run.name}-train"
    return LocalCloud(
        folder,
        projects={config.cloud.project: PROJECT_NUMBER},
        buckets=sorted(prepared.buckets),
        market=Market(
            preemptions=spread(count, seed=options.seed or 0, nodes=nodes, job=job),
            stockouts=options.stockouts,
            watch=StepWatch,
        ),
        scale=Scale(processes_per_node=_num_processes(config, options), time_scale=options.time_scale),
        rules=options.rules(),
    )


def _num_processes(config: RunConfig, options: RehearsalOptions) -> int | None:
    """Return the number of training processes per simulated machine: one per GPU, limited by the cores.

    None: as configured, or, without GPUs, the default of the training.
    """
    from contracts.machines import find_machine
    from contracts.process import available_cores

    if config.resources.ranks != "auto" or options.processes is not None:
        return options.processes
    gpus = find_machine(config.resources.machine).gpus
    return min(gpus, max(1, 2 * available_cores() // config.resources.num_nodes)) if gpus else None


def _rehearse_run(cloud: LocalCloud, prepared: RehearsalConfig, path: Path, options: RehearsalOptions) -> Result:
    """Submit; if disturbances were requested, train again without them and compare."""
    run_id, submission_ended, training = f"rehearsal-{new_attempt_id()}", threading.Event(), None
    has_rules = bool(cloud.buckets.faults.rules)
    # Other disturbances would also affect the second training, which then starts only after the run.
    if options.preemptions and not has_rules and not options.stockouts:
        line = storage.join(prepared.config.run.root, prepared.config.run.name)
        training = begin_training(cloud, prepared.config, line, submission_ended)
    try:
        code = run_command("submit", path, f"--run-id={run_id}", "--wait")
    finally:
        submission_ended.set()
    result = collect_result(cloud, prepared, options, run_id, code)
    if code:
        # Without a specification, the local Vertex AI never received a job.
        result.ended_by = _find_cause(path, run_id) if result.hash else "the submission was refused"
    elif options.preemptions or has_rules:
        result.comparison = compare(cloud, result, training, has_rules=has_rules)
    return result


def _rehearse_schedule(cloud: LocalCloud, prepared: RehearsalConfig, path: Path, options: RehearsalOptions) -> Result:
    """Create the schedule and simulate days: after each run the clock advances to the next."""
    code, due = run_command("schedule", "create", path), 0
    if code == 0:
        end_s = cloud.clock.now() + 86400 * options.schedule_days
        while (next_s := _next_run(cloud)) is not None and next_s <= end_s:
            due += 1
            if not let_schedule_fire(cloud):
                break
    result = collect_result(cloud, prepared, options, "", code)
    result.due = due
    if code == 0 and not due:
        option = f"--schedule-days {options.schedule_days:g}"
        result.shortfalls.append(f"{option} had no effect (no firing time lies within these days)")
    return result


def let_schedule_fire(cloud: LocalCloud) -> bool:
    """Advance the clock to the next run of a schedule and wait for its end; return False if it did not start."""
    from google.cloud.aiplatform_v1 import types

    from rehearsal.vertex.store import has_ended

    if (next_s := _next_run(cloud)) is None:
        return False
    cloud.clock.advance(max(0.0, next_s - cloud.clock.now()))
    deadline = time.monotonic() + _FIRING_LIMIT_S
    while _next_run(cloud) == next_s:
        if time.monotonic() > deadline:
            return False
        time.sleep(_POLL_S)
    for job in cloud.store.list("projects/", types.PipelineJob):
        cloud.store.wait(job.name, has_ended, _RUN_LIMIT_S)
    return True


def _next_run(cloud: LocalCloud) -> float | None:
    from google.cloud.aiplatform_v1 import types

    times = [entry.next_run_time for entry in cloud.store.list("projects/", types.Schedule) if entry.next_run_time]
    return min((moment.timestamp() for moment in times), default=None)


def environment_of(cloud: LocalCloud, folder: Path) -> dict[str, str]:
    """Return the environment of the commands: variables of the local cloud, HOME and TMPDIR."""
    places = {"HOME": folder / "home", "TMPDIR": folder / "tmp"}
    for place in places.values():
        place.mkdir(exist_ok=True)
    return {**cloud.environment, **{name: str(place) for name, place in places.items()}}


@contextlib.contextmanager
def client_environment(environment: Mapping[str, str]) -> Iterator[None]:
    """Set the variables by which Google's clients use the local cloud, in this process and its children."""
    previous = {name: os.environ.get(name) for name in environment}
    os.environ.update(environment)
    try:
        yield
    finally:
        for name, value in previous.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


@contextlib.contextmanager
def signals_end() -> Iterator[list[int]]:
    """Raise SystemExit on SIGTERM and SIGHUP, so that child processes end and the folder is removed.

    Yields the received signals. Long waits must also check them: Python ignores exceptions that are raised during
    garbage collection.
    """
    received: list[int] = []

    def end(number: int, _frame: object) -> None:
        received.append(number)
        raise SystemExit(128 + number)

    previous = {number: signal.signal(number, end) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield received
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def run_command(*arguments: str | Path) -> int:
    """Run a shardline command as a child process, and return its exit code.

    Its output goes to stderr: stdout is for the report. URLs of the console and lines about cost are removed.
    """
    command = [sys.executable, "-c", _COMMAND, *map(str, arguments)]
    with subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    ) as process:
        try:
            for line in process.stdout or ():
                if not line.strip().removeprefix(b"see: ").startswith((_CONSOLE, *_COST_LINES)):
                    # By descriptor: sys.stderr may be replaced.
                    os.write(_STDERR, re.sub(_CONSOLE + rb"\S*", b"(no page: rehearsed)", line))
            return process.wait()
        finally:
            process.kill()


def _find_cause(path: Path, run_id: str) -> str:
    """Return why a run ended, from `shardline status`."""
    command = [sys.executable, "-c", _COMMAND, "status", run_id, "--config", str(path), "-o", "json"]
    answer = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    try:
        status = json.loads(answer.stdout)
    except ValueError:
        reason = next(reversed(answer.stderr.strip().splitlines()), f"exit code {answer.returncode}")
        return f"unknown: `status` failed: {reason}"
    failure = status["failure"]
    return (
        failure["cause"] or failure["stage_message"] or failure["service_message"] if failure else str(status["state"])
    )
