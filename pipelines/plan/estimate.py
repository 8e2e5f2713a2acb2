"""Duration of a training on Vertex AI: from a finished one, or the profile of the same kind of machine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from contracts import storage
from contracts.artifacts import MANIFEST_NAME, ProfileReport, ShardManifest
from contracts.config import RunConfig
from contracts.errors import DataError
from contracts.estimate import ASSUMED_NETWORK_BYTES_PER_S, count_samples, rate_of_machines
from contracts.fingerprint import model_fingerprint
from contracts.machines import ACCELERATORS, Machine
from pipelines.plan.measured import Measurement

_STEPS_ONLY = "steps only: no evaluation, checkpoint or start in it"
# Ranks of a machine without GPUs (trainer/launch): what a profile of one means by a rank.
CPU_RANKS = 2


@dataclass(frozen=True)
class Profile:
    """A profile report, and how many samples an epoch has."""

    report: ProfileReport
    uri: str
    train_samples: int | None
    """Samples of the training split; None: the shards that it was measured on were not found."""

    @property
    def samples_per_s(self) -> float | None:
        """Rate of one rank at the choice, all ranks of the machine at work; None: not measured."""
        return self.report.chosen_point().samples_per_s


@dataclass(frozen=True)
class TimeEstimate:
    """How long a training takes."""

    hours: float
    epoch_hours: float
    samples_per_s: float
    """Of all ranks together."""
    source: str
    assumptions: tuple[str, ...]


def read_profile(uri: str) -> Profile:
    """Read a profile report, and look for its shards beside it in the line.

    Args:
        uri: Path or URI of the folder that the profile stage finished.

    Raises:
        DataError: There is no such report.
    """
    folder = storage.normalise(uri).rstrip("/")
    report = ProfileReport.load(folder)
    line = folder.rpartition("/")[0].rpartition("/")[0]
    return Profile(report, storage.display(folder), _count_samples(line, report))


def find_profile(line_uri: str, config: RunConfig) -> Profile | None:
    """Return the newest report of a line that is of this model and batch; None: there is none.

    Reports are named by what they were made from, not by time: where several fit, that of most measured points is
    taken, then the last by name.
    """
    root = storage.join(line_uri, "profile")
    found = []
    for name in storage.list_names(root):
        folder = storage.join(root, name)
        if not storage.exists(storage.join(folder, MANIFEST_NAME)):
            continue
        try:
            report = ProfileReport.load(folder)
        except DataError:
            continue
        if fits(report, config):
            found.append((sum(point.samples_per_s is not None for point in report.points), name, report, folder))
    if not found:
        return None
    _, _, report, folder = max(found, key=lambda entry: entry[:2])
    return Profile(report, storage.display(folder), _count_samples(line_uri, report))


def fits(report: ProfileReport, config: RunConfig) -> bool:
    """Return whether a report is of this configuration's network and batch."""
    return (
        report.model_fingerprint == model_fingerprint(config)
        and report.global_batch_size == config.train.global_batch_size
    )


def _count_samples(line_uri: str, report: ProfileReport) -> int | None:
    root = storage.join(line_uri, "shard")
    folder = storage.join(root, report.shards_fingerprint)
    try:
        manifest = ShardManifest.load(folder)
    except DataError:
        # A report that was taken elsewhere knows what it was measured on.
        return report.estimate.epoch_samples if report.estimate else None
    return manifest.splits["train"].samples


def has_hardware(report: ProfileReport, machine: Machine) -> bool:
    """Return whether a report was measured on this kind of machine, by what its driver calls the GPUs."""
    gpus = report.hardware.get("gpus", "none")
    if not machine.accelerator_type:
        return gpus == "none"
    return ACCELERATORS[machine.accelerator_type].driver_name in gpus


def ranks_of(config: RunConfig, machine: Machine) -> int:
    """Return the training processes of one machine."""
    ranks = config.resources.ranks
    return ranks if ranks != "auto" else machine.gpus or CPU_RANKS


def estimate_time(
    config: RunConfig,
    machine: Machine,
    nodes: int,
    profile: Profile | None,
    measurements: Sequence[Measurement] = (),
) -> tuple[TimeEstimate | None, str]:
    """Return how long training takes, or None with the reason why that is unknown.

    samples of all epochs / samples per second of all machines: those of a finished training on as many machines of this
    kind, else (samples per second of one rank in the profile x ranks x machines). Epochs are the configuration's: those
    that the report's own estimate is for may be others.
    """
    for found in measurements:
        epoch_samples = found.epoch_samples or (profile.train_samples if profile else None)
        if found.fits(machine, nodes) and epoch_samples:
            seconds = count_samples(config, epoch_samples) / found.samples_per_s
            epoch_hours = epoch_samples / found.samples_per_s / 3600
            source = f"run {found.run_id}: {found.samples_per_s:.1f} samples/s on the same machines"
            return TimeEstimate(seconds / 3600, epoch_hours, found.samples_per_s, source, (_STEPS_ONLY,)), ""
    if profile is None:
        return None, "no profile: give --profile URI; `shardline plan --online` looks for one in the line"
    report = profile.report
    if not fits(report, config):
        return None, f"the profile {profile.uri} is of another model or train.global_batch_size"
    if not has_hardware(report, machine):
        return None, f"the profile {profile.uri} was measured on {_hardware(report)}, not on {machine.label}"
    if profile.train_samples is None:
        return None, f"the shards that the profile {profile.uri} was measured on are not in its line"
    if profile.samples_per_s is None:
        return None, f"the profile {profile.uri} has no rate for what it chose"
    ranks = ranks_of(config, machine)
    total, highest = rate_of_machines(
        profile.samples_per_s,
        ranks=ranks,
        nodes=nodes,
        global_batch_size=config.train.global_batch_size,
        gradient_bytes=report.gradient_bytes,
        measured_nodes=report.measured_nodes,
    )
    seconds = count_samples(config, profile.train_samples) / total
    assumptions = ["every rank is as fast as the slowest that was measured", _STEPS_ONLY]
    if ranks != report.ranks:
        assumptions.append(f"{ranks} ranks of a machine are each as fast as the {report.ranks} that were measured")
    if nodes > 1:
        network = f"{ASSUMED_NETWORK_BYTES_PER_S * 8e-9:g} Gbit/s"
        assumptions.append(
            f"the exchange of gradients between machines is in it: {nodes} were measured together"
            if nodes == report.measured_nodes
            else "the exchange of gradients between machines hides behind the backward pass"
            if total == highest
            else f"no exchange of gradients between machines hides, at {network}: the lower end, {total:.4g}; "
            f"with an exchange that costs nothing {highest:.4g} samples/s"
        )
    if any(
        rung == "SPOT" for rung in [entry.strategy for entry in config.resources.ladder] or [config.resources.strategy]
    ):
        assumptions.append("no machine is preempted")
    epoch_hours = profile.train_samples / total / 3600
    source = f"profile {profile.uri}: {profile.samples_per_s:.1f} samples/s per rank on {_hardware(report)}"
    return TimeEstimate(seconds / 3600, epoch_hours, total, source, tuple(assumptions)), ""


def _hardware(report: ProfileReport) -> str:
    gpus = report.hardware.get("gpus", "none")
    return f"{report.hardware.get('cores', '?')} cores without GPUs" if gpus == "none" else gpus
