"""How long a training takes, from its configuration and a rate: steps only, no evaluation, checkpoint or start."""

from __future__ import annotations

from contracts.artifacts import TrainingEstimate
from contracts.config import RunConfig

ASSUMED_NETWORK_BYTES_PER_S = 1.25e9
"""What a machine's network is taken to move where nothing was measured: 10 Gbit/s, of a small machine of Google's."""


def num_nodes(config: RunConfig) -> int:
    """Return how many machines train together: a job has as many as it is given."""
    return 1 if config.resources.nodes == "auto" else config.resources.nodes


def rate_of_machines(
    samples_per_s: float,
    *,
    ranks: int,
    nodes: int,
    global_batch_size: int,
    gradient_bytes: int | None,
    measured_nodes: int = 1,
) -> tuple[float, float]:
    """Return the lowest and the highest samples per second of all machines, where one of them was measured.

    Where all were measured together their exchange is in the rate, and both are the same.

    The highest has an exchange between machines that costs nothing. The lowest has a ring all-reduce of all gradients
    in each step, none of it hidden behind computing: 2 (n - 1) / n of their bytes leave each machine (Patarasuk and
    Yuan, Bandwidth optimal all-reduce algorithms for clusters of workstations, 2009).

    Args:
        samples_per_s: Of one rank.
        ranks: Of one machine.
        nodes: Machines.
        global_batch_size: Samples of a step.
        gradient_bytes: Of the network's gradients; None: unknown, then there is one rate.
        measured_nodes: Machines that the rate was measured on, together.
    """
    highest = samples_per_s * ranks * nodes
    if nodes in (1, measured_nodes) or gradient_bytes is None:
        return highest, highest
    exchange_s = 2 * (nodes - 1) / nodes * gradient_bytes / ASSUMED_NETWORK_BYTES_PER_S
    return global_batch_size / (global_batch_size / highest + exchange_s), highest


def count_samples(config: RunConfig, epoch_samples: int) -> int:
    """Return how many samples a training goes through, of a training split of `epoch_samples`."""
    samples = config.train.epochs * epoch_samples
    if config.train.max_steps is not None:
        samples = min(samples, config.train.max_steps * config.train.global_batch_size)
    return samples


def estimate_training(
    config: RunConfig, *, epoch_samples: int, samples_per_s: float, at_most: float | None = None
) -> TrainingEstimate:
    """Return the time of a training, and what it costs at `resources.price_usd_per_h`.

    Args:
        config: The training.
        epoch_samples: Samples of its training split.
        samples_per_s: Of all ranks of all machines together; where it is a range, its lower end.
        at_most: Its upper end.
    """
    samples = count_samples(config, epoch_samples)
    hours, price = samples / samples_per_s / 3600, config.resources.price_usd_per_h
    usd = None if price is None else hours * price
    least = None if at_most is None or at_most <= samples_per_s else samples / at_most / 3600
    return TrainingEstimate(samples=samples, hours=hours, usd=usd, epoch_samples=epoch_samples, least_hours=least)
