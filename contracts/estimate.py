"""How long a training takes, from its configuration and a rate: steps only, no evaluation, checkpoint or start."""

from __future__ import annotations

from contracts.artifacts import TrainingEstimate
from contracts.config import RunConfig


def num_nodes(config: RunConfig) -> int:
    """Return how many machines train together: a job has as many as it is given."""
    return 1 if config.resources.nodes == "auto" else config.resources.nodes


def estimate_training(config: RunConfig, *, epoch_samples: int, samples_per_s: float) -> TrainingEstimate:
    """Return the time of a training, and what it costs at `resources.price_usd_per_h`.

    Args:
        config: The training.
        epoch_samples: Samples of its training split.
        samples_per_s: Of all ranks of all machines together.
    """
    samples = config.train.epochs * epoch_samples
    if config.train.max_steps is not None:
        samples = min(samples, config.train.max_steps * config.train.global_batch_size)
    hours, price = samples / samples_per_s / 3600, config.resources.price_usd_per_h
    usd = None if price is None else hours * price
    return TrainingEstimate(samples=samples, hours=hours, usd=usd, epoch_samples=epoch_samples)
