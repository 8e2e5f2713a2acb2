"""Jobs: what runs on which machines, how far it is, and the interface of the places that run them.

A stage is a command; its job says where that command runs. `shardline shard|profile|train|export` and `run` start jobs
by pipelines.backends.local; the pipeline of Vertex AI is compiled from the jobs of its stages, and a rehearsal submits
one by itself, both by pipelines.backends.vertex. Another place is another implementation of `Backend`.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Protocol

from components.launch import STAGE_MODULES
from contracts.config import MachineSection, RunConfig
from contracts.errors import EXIT_FAULT, EXIT_OK, TryAgain
from contracts.estimate import num_nodes
from contracts.machines import find_machine

INPUTS: dict[str, dict[str, str]] = {
    "shard": {},
    "profile": {"shards": "shard"},
    "train": {"shards": "shard", "profile": "profile"},
    "export": {"shards": "shard", "checkpoint": "train"},
}
"""The inputs of each stage, and the stage that makes each of them."""


@dataclass(frozen=True)
class Container:
    """What runs on each machine of a job."""

    image: str
    """Pinned by its digest, which stands for all that is installed; empty: what is installed where the job runs."""
    command: tuple[str, ...]
    """What comes before the stage's own arguments."""
    env: Mapping[str, str]


@dataclass(frozen=True)
class JobSpec:
    """One command on one or several equal machines."""

    name: str
    """What people read: RUN-STAGE."""
    command: tuple[str, ...]
    args: tuple[Any, ...] = ()
    """Of the command: text, or values that a pipeline knows only while it runs."""
    image: str = ""
    """Empty: what is installed where the job runs."""
    env: Mapping[str, str] = field(default_factory=dict)
    machine: MachineSection = field(default_factory=MachineSection)
    """Type and GPUs of each machine, and its boot disk."""
    nodes: int = 1
    strategy: str = "STANDARD"
    """STANDARD, SPOT or FLEX_START."""
    max_wait_s: float = 0.0
    """Seconds that FLEX_START may wait for machines; 0: for ever."""
    timeout_s: float | None = None
    """Seconds after which the place ends the job; None: the place's own limit."""


class Phase(StrEnum):
    """How far a job is."""

    WAITING = "waiting"
    """For machines: its first ones, or others after a preemption."""
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"


@dataclass(frozen=True)
class JobState:
    """A job at one moment."""

    phase: Phase
    exit_code: int | None = None
    """Of the command, negative where a signal ended it; None: it has not ended, or the place does not tell."""
    message: str = ""
    """What the place says of a failure."""

    @property
    def ended(self) -> bool:
        """Whether nothing of it runs any more."""
        return self.phase in (Phase.SUCCEEDED, Phase.FAILED, Phase.CANCELLED)

    @property
    def code(self) -> int:
        """The exit code; where the place does not tell it, 0 for success and 70 for the rest."""
        if self.exit_code is not None:
            return self.exit_code
        return EXIT_OK if self.phase is Phase.SUCCEEDED else EXIT_FAULT


class Backend(Protocol):
    """A place that runs jobs. Jobs are known by the names that `submit` returns."""

    def submit(self, spec: JobSpec) -> str:
        """Start a job and return its name.

        Raises:
            ConfigError: The place can never run it.
            TryAgain: It cannot now.
        """

    def state(self, job: str) -> JobState:
        """Return how far a job is; never waits for it."""

    def cancel(self, job: str) -> None:
        """End a job; one that has ended already is no error. Its state may say so later."""

    def logs(self, job: str) -> Iterator[str]:
        """Yield the lines that its machines have printed so far."""


def wait(backend: Backend, job: str, *, limit_s: float, poll_s: float) -> JobState:
    """Wait for the end of a job, and return its last state.

    Args:
        backend: Where it runs.
        job: Its name.
        limit_s: Seconds after which it is cancelled.
        poll_s: Seconds between two looks.

    Raises:
        TryAgain: It had not ended by then.
    """
    deadline = time.monotonic() + limit_s
    while not (state := backend.state(job)).ended:
        if time.monotonic() > deadline:
            backend.cancel(job)
            raise TryAgain(f"{job} has not ended after {limit_s:g} s, and was cancelled\n  to do: run it again")
        time.sleep(poll_s)
    return state


def stage_job(config: RunConfig, stage: str, container: Container, args: Sequence[Any] = ()) -> JobSpec:
    """Return the job of a stage.

    Args:
        config: The resolved configuration.
        stage: Its name.
        container: What runs on each machine.
        args: Arguments of the stage's command.
    """
    resources = config.resources
    return JobSpec(
        name=f"{config.run.name}-{stage}",
        command=container.command,
        args=tuple(args),
        image=container.image,
        env=container.env,
        machine=serving_section(config) if stage == "export" else resources.machine,
        nodes=num_nodes(config) if stage in ("profile", "train") else 1,
        strategy=resources.strategy,
        max_wait_s=resources.max_wait_s,
    )


def stage_container(config: RunConfig, stage: str, image: str) -> Container:
    """Return the container of a stage: an image of ours, its command, and the configuration's variables."""
    env = config.resources.env if stage in ("profile", "train") else {}
    return Container(image, ("python", "-m", STAGE_MODULES[stage]), env)


def serving_section(config: RunConfig) -> MachineSection:
    """Return the machine of the export: the one that will serve, else the training's."""
    resources = config.resources
    return resources.serving_machine if resources.serving_machine.type else resources.machine


def machine_name(section: MachineSection) -> str:
    """Return what a profile is of: the machine and its GPUs, as one word of the fingerprint.

    Raises:
        ConfigError: There is no such machine.
    """
    machine = find_machine(section)
    gpus = f"+{machine.accelerator_count}x{machine.accelerator_type}" if machine.accelerator_count else ""
    return f"{machine.type}{gpus}"
