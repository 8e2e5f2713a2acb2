"""`shardline rehearse`: a submission without a cloud, by the real clients, against a Google Cloud on this machine.

The command that a user would submit with (`shardline submit --wait`, or `schedule create`) runs as a process of its
own, led to rehearsal.cloud by variables alone. Then what happened is compared with what was asked for (rehearsed.py):
as many preemptions, nobody called but the local cloud, and the same result as undisturbed (undisturbed.py).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from contracts import storage
from contracts.config import RunConfig
from contracts.config.load import to_yaml
from contracts.errors import CheckFailed, ConfigError
from contracts.stage import new_attempt_id
from pipelines.rehearse.commands import ask_why, environment_of, led_to, play, signals_end
from pipelines.rehearse.config import PROJECT, REGION, Prepared, prepare
from pipelines.rehearse.disturbances import Disturbances
from pipelines.rehearse.rehearsed import Rehearsed, leave_evidence, look
from pipelines.rehearse.steps import StepWatch
from pipelines.rehearse.undisturbed import begin_training, compare

if TYPE_CHECKING:
    from rehearsal.cloud import LocalCloud
    from rehearsal.gcs import Rule

# The number that the bucket server gives its project: Google's SDK compares the two.
PROJECT_NUMBER = "123456789012"
_POLL_S = 0.5
# Until the local Vertex has started what is due: it needs no more than a look at its clock.
_FIRING_LIMIT_S = 60.0


@dataclass(frozen=True)
class Wanted:
    """What a rehearsal is asked for."""

    preemptions: int = 0
    rules: tuple[Rule, ...] = ()
    schedule_days: float = 0.0
    time_scale: float = 0.1
    """Seconds here for one of the platform's where nothing is computed: the 30 s of a notice take three."""
    seed: int = 0
    processes_per_node: int | None = None
    samples: int | None = None
    """Files of the source at most; None: all."""
    disturbances: Disturbances = field(default_factory=Disturbances)


def rehearse(
    config: RunConfig, *, source: Path | None, folder: Path, wanted: Wanted, weights: Path | None = None
) -> Rehearsed:
    """Rehearse a submission.

    Args:
        config: The resolved configuration, with absolute paths.
        source: A local folder or manifest that stands for the source.
        weights: A local folder or file that stands for model.weights.
        folder: For everything that is written; new or empty.
        wanted: What is to happen.

    Raises:
        ConfigError: The configuration cannot be submitted, there is nothing local to copy, or the folder is in use.
    """
    from pipelines.plan import make_plan

    prepared = prepare(config, source, weights)
    make_plan(prepared.config).require()
    # For its errors, before anything is written.
    cloud_options(prepared.config, wanted)
    path, samples = open_folder(folder, prepared, wanted.samples)
    cloud = make_cloud(folder, prepared, wanted)
    began = time.monotonic()
    with signals_end(), cloud, led_to(environment_of(cloud, folder)):
        if wanted.schedule_days:
            found = _rehearse_schedule(cloud, prepared, path, wanted)
        else:
            found = _rehearse_run(cloud, prepared, path, wanted)
        found.variables |= samples
        found.wall_s = time.monotonic() - began
        leave_evidence(cloud)
    return found


def check(found: Rehearsed) -> None:
    """Raise CheckFailed when something speaks against a rehearsal."""
    if found.complaints:
        raise CheckFailed("\n  ".join(["the rehearsal found:", *found.complaints]))


def open_folder(folder: Path, prepared: Prepared, most: int | None) -> tuple[Path, dict[str, str]]:
    """Write the configuration and the source; return the configuration's path, and how the source was scaled."""
    from rehearsal.cloud import BUCKETS_FOLDER

    require_new(folder)
    path = folder / "config.yaml"
    path.write_text(to_yaml(prepared.config))
    copied, there = prepared.copy_source(folder / BUCKETS_FOLDER, most)
    prepared.copy_weights(folder / BUCKETS_FOLDER)
    return path, {} if copied == there else {"samples": f"{copied} of {there} files"}


def require_new(folder: Path) -> None:
    """Make the folder of a rehearsal, for this user alone: copies of the user's data are in it.

    Raises:
        ConfigError: There is something in it.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if any(folder.iterdir()):
        raise ConfigError(
            f"--keep {folder} is not empty",
            allowed="a new or an empty folder: what another rehearsal has finished would be reused",
            todo="choose another folder",
        )
    folder.chmod(0o700)


def cloud_options(config: RunConfig, wanted: Wanted) -> dict[str, Any]:
    """Return how the local cloud is to behave, as its options.

    Raises:
        ConfigError: Something is asked for that cannot happen.
    """
    from rehearsal.jobs.market import Market, spread
    from rehearsal.machines.machine import Scale

    nodes, disturbances = config.resources.num_nodes, wanted.disturbances
    return {
        "market": Market(
            preemptions=spread(wanted.preemptions, seed=wanted.seed, nodes=nodes, job=f"{config.run.name}-train"),
            stockouts=disturbances.places(config),
            watch=StepWatch,
        ),
        "scale": Scale(processes_per_node=_processes(config, wanted, nodes), time_scale=wanted.time_scale),
        "rules": (*wanted.rules, *disturbances.rules(wanted.seed)),
    }


def make_cloud(folder: Path, prepared: Prepared, wanted: Wanted) -> LocalCloud:
    """Return the cloud of a rehearsal, which is not started yet."""
    from rehearsal.cloud import LocalCloud

    options = cloud_options(prepared.config, wanted)
    given = prepared.config.cloud
    projects = {given.project: PROJECT_NUMBER}
    return LocalCloud(folder, projects=projects, buckets=sorted(prepared.buckets), location=given.region, **options)


def make_bare_cloud(folder: Path, wanted: Wanted, buckets: Iterable[str]) -> LocalCloud:
    """Return a cloud of no configuration, which is not started yet: one project with buckets."""
    from rehearsal.cloud import LocalCloud
    from rehearsal.machines.machine import Scale

    require_new(folder)
    return LocalCloud(
        folder,
        projects={PROJECT: PROJECT_NUMBER},
        buckets=buckets,
        location=REGION,
        scale=Scale(processes_per_node=wanted.processes_per_node, time_scale=wanted.time_scale),
        rules=wanted.rules,
    )


def _processes(config: RunConfig, wanted: Wanted, nodes: int) -> int | None:
    """Return how many training processes play each machine: one per GPU that it would have, if this one can hold them.

    What the configuration says is said to all: so many are played.

    Raises:
        ConfigError: Another number is wanted than the configuration says.
    """
    from contracts.machines import find_machine
    from contracts.process import available_cores

    ranks = config.resources.ranks
    if ranks != "auto":
        if wanted.processes_per_node not in (None, ranks):
            raise ConfigError(
                f"--processes {wanted.processes_per_node}, and resources.ranks = {ranks}",
                allowed="--processes where resources.ranks is auto: what is rehearsed is what is submitted",
                todo="leave --processes out, or resources.ranks",
            )
        return None
    if wanted.processes_per_node is not None:
        return wanted.processes_per_node
    gpus = find_machine(config.resources.machine).gpus
    return min(gpus, max(1, 2 * available_cores() // nodes)) if gpus else None


def _rehearse_run(cloud: LocalCloud, prepared: Prepared, path: Path, wanted: Wanted) -> Rehearsed:
    """Submit, and where something was to disturb the result, train again undisturbed and compare."""
    run_id, over, training = f"rehearsal-{new_attempt_id()}", threading.Event(), None
    has_rules, has_preemptions = bool(cloud.buckets.faults.rules), bool(wanted.preemptions)
    # What else disturbs the run would disturb the second training too, which waits for the end of the run then.
    if has_preemptions and not has_rules and wanted.disturbances == Disturbances():
        line = storage.join(prepared.config.run.root, prepared.config.run.name)
        training = begin_training(cloud, prepared.config, line, over)
    try:
        code, _ = play("submit", path, f"--run-id={run_id}", "--wait")
    finally:
        over.set()
    found = look(cloud, prepared, run_id, code, num_rules=len(wanted.rules))
    found.struck = wanted.disturbances.find_struck(cloud)
    found.idle = wanted.disturbances.find_idle(cloud)
    if found.exit_code:
        found.ended_by = ask_why(path, found.run_id)
    elif has_preemptions or has_rules:
        cloud.calm()
        found.comparison = compare(cloud, found, training, has_rules=has_rules)
    return found


def _rehearse_schedule(cloud: LocalCloud, prepared: Prepared, path: Path, wanted: Wanted) -> Rehearsed:
    """Create the schedule and let days pass: the clock moves on to the next run once the last has ended."""
    from google.cloud.aiplatform_v1 import types

    code, _ = play("schedule", "create", path)
    due = 0
    if code == 0:
        end_s = cloud.clock.now() + 86400 * wanted.schedule_days
        while (next_s := _next_run(cloud)) is not None and next_s <= end_s:
            due += 1
            let_schedule_fire(cloud)
    found = look(cloud, prepared, "", code)
    found.due = due
    runs = list(cloud.store.list("projects/", types.PipelineJob))
    found.fired = [(job.create_time.isoformat(), job.state.name) for job in reversed(runs)]
    return found


def let_schedule_fire(cloud: LocalCloud) -> bool:
    """Move the clock on to the next time of a schedule, and wait until its run has ended; False: none is due."""
    if (next_s := _next_run(cloud)) is None:
        return False
    cloud.clock.advance(max(0.0, next_s - cloud.clock.now()))
    deadline = time.monotonic() + _FIRING_LIMIT_S
    while _next_run(cloud) == next_s and time.monotonic() < deadline:
        time.sleep(_POLL_S)
    while _active(cloud):
        time.sleep(_POLL_S)
    return True


def _next_run(cloud: LocalCloud) -> float | None:
    from google.cloud.aiplatform_v1 import types

    times = [one.next_run_time for one in cloud.store.list("projects/", types.Schedule) if one.next_run_time]
    return min((moment.timestamp() for moment in times), default=None)


def _active(cloud: LocalCloud) -> bool:
    from google.cloud.aiplatform_v1 import types

    from rehearsal.resources.states import has_ended

    return not all(has_ended(job) for job in cloud.store.list("projects/", types.PipelineJob))
