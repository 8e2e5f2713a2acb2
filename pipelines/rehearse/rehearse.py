"""`shardline rehearse`: a submission without a cloud, by the real clients, against a Google Cloud on this machine.

The command that a user would submit with (`shardline submit --wait`, or `schedule create`) runs as a process of its
own, which knows of the local cloud by variables alone. Then what happened is compared with what was asked for
(result.py) and with an undisturbed training (undisturbed.py).
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

# The number that the bucket server gives its project: Google's SDK compares the two.
PROJECT_NUMBER = "123456789012"
_POLL_S = 0.2
# Until the local Vertex AI has started what is due: it needs no more than a look at its clock.
_FIRING_LIMIT_S = 60.0
_RUN_LIMIT_S = 86400.0
# The command ends with this process, whatever ends it.
_COMMAND = "from contracts.process import end_with_parent; end_with_parent(); from pipelines.cli import main; main()"
# Pages of the real console, which knows nothing of the runs of a rehearsal.
_CONSOLE = b"https://console.cloud.google.com/"
_STDERR = 2


def rehearse(config: RunConfig, options: RehearsalOptions, folder: Path) -> Result:
    """Rehearse the submission of a resolved configuration with absolute paths, by options that are checked.

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
    """Raise CheckFailed when something speaks against a rehearsal."""
    if result.complaints:
        raise CheckFailed("\n  ".join(["the rehearsal failed:", *result.complaints]))


def open_folder(folder: Path, prepared: RehearsalConfig, most: int | None) -> tuple[Path, dict[str, str]]:
    """Write the configuration and the source; return the configuration's path, and how the source was scaled."""
    from rehearsal.cloud import BUCKETS_FOLDER

    require_new(folder)
    path = folder / "config.yaml"
    path.write_text(to_yaml(prepared.config))
    copied, total = prepared.copy_source(folder / BUCKETS_FOLDER, most)
    prepared.copy_weights(folder / BUCKETS_FOLDER)
    return path, {} if most is None else {"samples": f"{copied} of {total} files"}


def require_new(folder: Path) -> None:
    """Make the folder of a rehearsal, for this user alone: copies of the user's data are in it.

    Raises:
        ConfigError: It is not empty.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if any(folder.iterdir()):
        raise ConfigError(
            f"--keep {folder} is not empty",
            allowed="a new or an empty folder: what another rehearsal has finished would be reused",
            todo="choose another folder",
        )
    folder.chmod(0o700)


def make_cloud(folder: Path, prepared: RehearsalConfig, options: RehearsalOptions) -> LocalCloud:
    """Return the cloud of a rehearsal, which is not started yet."""
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
    """Return how many training processes simulate each machine: one per GPU that it would have, if this one can.

    None: as many as the configuration says, or, without GPUs, as the training decides.
    """
    from contracts.machines import find_machine
    from contracts.process import available_cores

    if config.resources.ranks != "auto" or options.processes is not None:
        return options.processes
    gpus = find_machine(config.resources.machine).gpus
    return min(gpus, max(1, 2 * available_cores() // config.resources.num_nodes)) if gpus else None


def _rehearse_run(cloud: LocalCloud, prepared: RehearsalConfig, path: Path, options: RehearsalOptions) -> Result:
    """Submit, and where something was to disturb the result, train again undisturbed and compare."""
    run_id, over, training = f"rehearsal-{new_attempt_id()}", threading.Event(), None
    has_rules = bool(cloud.buckets.faults.rules)
    # What else disturbs the run would disturb the second training too, which waits for the end of the run then.
    if options.preemptions and not has_rules and not options.stockouts:
        line = storage.join(prepared.config.run.root, prepared.config.run.name)
        training = begin_training(cloud, prepared.config, line, over)
    try:
        code = run_command("submit", path, f"--run-id={run_id}", "--wait")
    finally:
        over.set()
    result = collect_result(cloud, prepared, options, run_id, code)
    if code:
        # The local Vertex AI has a job of this run, and so its specification, or has never got one.
        result.ended_by = _find_cause(path, run_id) if result.hash else "the submission was refused"
    elif options.preemptions or has_rules:
        result.comparison = compare(cloud, result, training, has_rules=has_rules)
    return result


def _rehearse_schedule(cloud: LocalCloud, prepared: RehearsalConfig, path: Path, options: RehearsalOptions) -> Result:
    """Create the schedule and let days pass: the clock moves on to the next run once the last has ended."""
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
    """Move the clock on to the next time of a schedule, and wait until its run has ended; False: it did not fire."""
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

    times = [one.next_run_time for one in cloud.store.list("projects/", types.Schedule) if one.next_run_time]
    return min((moment.timestamp() for moment in times), default=None)


def environment_of(cloud: LocalCloud, folder: Path) -> dict[str, str]:
    """Return the variables of the commands: the local cloud's, and a home and a temporary folder of their own."""
    places = {"HOME": folder / "home", "TMPDIR": folder / "tmp"}
    for place in places.values():
        place.mkdir(exist_ok=True)
    return {**cloud.environment, **{name: str(place) for name, place in places.items()}}


@contextlib.contextmanager
def client_environment(environment: Mapping[str, str]) -> Iterator[None]:
    """Set variables for this process and its children while the block runs: Google's clients use the local cloud."""
    before = {name: os.environ.get(name) for name in environment}
    os.environ.update(environment)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


@contextlib.contextmanager
def signals_end() -> Iterator[list[int]]:
    """Let SIGTERM and SIGHUP end this process as Ctrl-C does: everything below it ends, and its folder is removed.

    Yields the signals that have come: whoever waits long checks them too, since an exception that is raised while
    Python collects garbage ends nothing.
    """
    received: list[int] = []

    def end(number: int, _frame: object) -> None:
        received.append(number)
        raise SystemExit(128 + number)

    before = {number: signal.signal(number, end) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield received
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def run_command(*words: str | Path) -> int:
    """Run a command of ours as its user would, and return its exit code.

    All that it prints goes to stderr: stdout is for the report. Pages of the console are left out, since there is none
    of a rehearsed run: the whole line where it only names one.
    """
    command = [sys.executable, "-c", _COMMAND, *map(str, words)]
    with subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    ) as process:
        try:
            for line in process.stdout or ():
                if not line.strip().removeprefix(b"see: ").startswith(_CONSOLE):
                    # Its number: sys.stderr may be a stream of this process alone.
                    os.write(_STDERR, re.sub(_CONSOLE + rb"\S*", b"(no page: rehearsed)", line))
            return process.wait()
        finally:
            process.kill()


def _find_cause(path: Path, run_id: str) -> str:
    """Return why a run ended, as `shardline status` tells its user."""
    command = [sys.executable, "-c", _COMMAND, "status", run_id, "--config", str(path), "-o", "json"]
    answer = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    try:
        status = json.loads(answer.stdout)
    except ValueError:
        reason = next(reversed(answer.stderr.strip().splitlines()), f"exit code {answer.returncode}")
        return f"unknown: `status` failed: {reason}"
    failure = status["failure"]
    return failure["cause"] or failure["told"] or failure["said"] if failure else str(status["state"])
