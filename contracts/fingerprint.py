"""Fingerprints: hashes of the configuration fields and inputs that decide a stage's result.

They name the folders of stage outputs, so equal work is found again and different work never collides. A field belongs
here only if it changes the result; docs/architecture.md holds the table.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from contracts.config import SPEED_FIELDS, RunConfig
from contracts.own_code import code_hash

# Hex digits of a fingerprint: 64 bits, far beyond the number of runs below one root.
FINGERPRINT_DIGITS = 16
# Fields of data that say how samples are read, and change none of them.
LOADER_FIELDS = {"num_workers", "prefetch_factor", "cache_dir", "cache_bytes"}
# Fields of parallel that say where parameters lie and in which order gradients are added.
SPREAD_FIELDS = {"strategy"}


def fingerprint(value: Any) -> str:
    """Return the hash of a JSON value: sha256 of sorted, compact JSON, cut to 16 hex digits."""
    content = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)
    return hashlib.sha256(content.encode()).hexdigest()[:FINGERPRINT_DIGITS]


def combine(made_from: dict[str, str]) -> str:
    """Return the fingerprint of a stage from the hashes of its parts."""
    return fingerprint(made_from)


def shard_inputs(config: RunConfig, listing: str, tokenizer: str = "") -> dict[str, str]:
    """Hashes that decide the shards: the fields of sharding that change bytes, and the source listing.

    Args:
        config: The configuration.
        listing: Hash of the source listing.
        tokenizer: Hash of the content of `sharding.tokenizer.file`; empty: none is named.
    """
    # How files are compared is in the listing's hash.
    limits = {"max_rejected_fraction", "duplicates", "max_class_shift", "new_classes"}
    excluded = {"source", "incremental", "compare", *limits}
    fields = config.sharding.model_dump(mode="json", exclude=excluded)
    fields["format"] = config.sharding.shard_format
    if tokenizer:
        # By its content, wherever it lies; what a training needs is not asked.
        fields["tokenizer"] = True
    inputs = {"sharding": fingerprint(fields), "listing": listing}
    return inputs | ({"tokenizer": tokenizer} if tokenizer else {})


def increment_inputs(full: dict[str, str], *, parent: str) -> dict[str, str]:
    """Hashes that decide the shards of an increment: those of a full reshard, and what it is built on."""
    return {**full, "parent": parent}


def code_inputs(config: RunConfig) -> dict[str, str]:
    """Hash of own code; none where the configuration names no code of the user's (contracts/own_code.py)."""
    sha256 = code_hash(config.code)
    return {"code": sha256} if sha256 else {}


def task_inputs(config: RunConfig) -> dict[str, str]:
    """Hash of the task."""
    return {"task": fingerprint(config.task.model_dump(mode="json"))}


def model_fingerprint(config: RunConfig) -> str:
    """Hash of the network, and of what of it is frozen: what a profile report must agree on."""
    frozen = {"freeze"} if config.model.freeze else set()
    return fingerprint(config.model.model_dump(mode="json", include={"architecture", "arguments"} | frozen))


def profile_inputs(config: RunConfig, *, shards: str, hardware: dict[str, str], torch_version: str) -> dict[str, str]:
    """Hashes that decide a profile: what is measured, on what."""
    resources = config.resources
    # What is measured of train: a new learning rate is no reason to measure again.
    measured = set(SPEED_FIELDS)
    if config.profile.method == "auto":
        # It ends early for a short training.
        measured |= {"epochs", "max_steps"}
    return {
        "model": model_fingerprint(config),
        "data": fingerprint(config.data.model_dump(mode="json", exclude={"on_bad_sample"})),
        "train": fingerprint(config.train.model_dump(mode="json", include=measured)),
        "parallel": fingerprint(config.parallel.model_dump(mode="json")),
        "profile": fingerprint(config.profile.model_dump(mode="json")),
        "shards": shards,
        # Several machines share a global batch: an even share of it, the first candidate, is smaller.
        "hardware": fingerprint([hardware, resources.model_dump(mode="json", include={"ranks", "nodes", "threads"})]),
        "torch": torch_version,
        **task_inputs(config),
        **code_inputs(config),
    }


def train_inputs(config: RunConfig, *, shards: str, weights: str = "") -> dict[str, str]:
    """Hashes that decide the parameters.

    Ranks, the loader, checkpoint settings and the profile's choice may change between attempts, so they are not part of
    it; the first checkpoint records what must hold. How the network is spread may change as ranks may: it changes last
    bits. on_bad_sample may change too: while it says fail, no bad sample was passed over, so training that ended at one
    goes on where it was.

    Args:
        config: The configuration.
        shards: Fingerprint of the shards.
        weights: Hash of the content of the weights that training starts from; empty: they are random.
    """
    return {
        "model": model_fingerprint(config),
        "data": fingerprint(config.data.model_dump(mode="json", exclude=LOADER_FIELDS | {"on_bad_sample"})),
        "train": fingerprint(config.train.model_dump(mode="json")),
        "parallel": fingerprint(config.parallel.model_dump(mode="json", exclude=SPREAD_FIELDS)),
        "seed": fingerprint(config.run.seed),
        "shards": shards,
        **({"weights": weights} if weights else {}),
        **task_inputs(config),
        **code_inputs(config),
    }


def export_inputs(config: RunConfig, *, checkpoint: str, builder: str, tools: Mapping[str, str]) -> dict[str, str]:
    """Hashes that decide an export: its section, the model, the transform, the weights, and what makes and judges it.

    Args:
        config: The configuration.
        checkpoint: Hash of the weights.
        builder: Package and target of the engine.
        tools: What else makes graphs and runs the gates, by name: versions of packages and of the export.
    """
    return {
        # A permission changes no file.
        "export": fingerprint(config.export.model_dump(mode="json", exclude={"allow_unproven"})),
        # It draws the calibration samples.
        "seed": fingerprint(config.run.seed),
        # How it was trained is in the checkpoint's hash.
        "model": fingerprint(config.model.model_dump(mode="json", include={"architecture", "arguments"})),
        "transform": fingerprint(config.data.model_dump(mode="json", include={"image_size", "mean", "std"})),
        "checkpoint": checkpoint,
        "builder": builder,
        **tools,
        **task_inputs(config),
        **code_inputs(config),
    }
