"""Randomness keyed by sample: what is drawn for a sample depends on (seed, epoch, sample) and on nothing before it."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch

from trainer.data.order.permutation import hash_integers


def generator_of(*key: int) -> np.random.Generator:
    """Return a generator of its own for a key: integers of which every order and length is another key."""
    return np.random.Generator(np.random.Philox(key=hash_integers(*key)))


@contextmanager
def global_generators_kept() -> Iterator[None]:
    """Put back python's, numpy's and torch's global generators at the end, whatever was drawn or seeded inside.

    Once a slot, not once a sample: saving and restoring costs ten times as much as seeding.
    """
    python_state, numpy_state, torch_state = random.getstate(), np.random.get_state(), torch.get_rng_state()
    try:
        yield
    finally:
        random.setstate(python_state)
        np.random.set_state(numpy_state)
        torch.set_rng_state(torch_state)


def seed_global_generators(*key: int) -> None:
    """Seed python's, numpy's legacy and torch's CPU generator by a key, for code that draws from them."""
    seed = hash_integers(*key)
    random.seed(seed)
    np.random.seed(seed & 0xFFFFFFFF)
    # Not torch.manual_seed: it visits the generators of all devices, which takes 0.2 ms.
    torch.default_generator.manual_seed(seed >> 1)
