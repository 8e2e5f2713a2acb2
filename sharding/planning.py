"""Choice between a full reshard, an increment and reuse, and the plan in the output's work folder."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from contracts import storage
from contracts.artifacts import MANIFEST_NAME
from contracts.config.sharding import ROW_PREFIX
from contracts.errors import ConfigError, ShardlineError, TryAgain
from contracts.fingerprint import combine, increment_inputs, shard_inputs
from contracts.stage import Output, Stage
from sharding.limits import check_training_classes
from sharding.names import WORK_NAME, encode_name, encode_path, join_names
from sharding.reference import Listing
from sharding.tokenizer import hash_tokenizer, read_tokenizer

if TYPE_CHECKING:
    from sharding.increments import IncrementPlan
    from sharding.job import PlannedJob
    from sharding.plan import Plan

# Bytes of a row in a shard beside its cells: names of features, float32 beside float64, its path. Of 13 columns it is
# 214 bytes in a TFRecord; without it, shards of tables would be twice as large as they are meant to be.
ROW_FRAME_BYTES = 200
# Parts of the listing that are copied concurrently.
_COPY_THREADS = 4


@dataclass
class Choice:
    """The samples to write, and the inputs of their fingerprint."""

    made_from: dict[str, str]
    listing: Listing
    """The samples to write; where the output exists already, the whole source."""
    increment: IncrementPlan | None = None
    """None for a full reshard, and where the output exists already."""
    tokenizer: bytes = b""
    """Content of `sharding.tokenizer.file`; empty where none is named."""


def choose(stage: Stage, listing: Listing, scratch: Path) -> Choice:
    """Choose between a full reshard, an increment and the reuse of an output.

    Args:
        stage: Its configuration and root.
        listing: The listing of the source.
        scratch: Folder for the parts of an increment.

    Raises:
        ConfigError: sharding.incremental with --output, which has no root to find a parent in.
        DataError: A class has no training sample, an old sample moved to another split, or `sharding.tokenizer.file` is
            no tokenizer.
    """
    section = stage.config.sharding
    tokenizer = read_tokenizer(section)
    full = Choice(shard_inputs(stage.config, listing.sha256, hash_tokenizer(tokenizer)), listing, tokenizer=tokenizer)
    if not section.incremental:
        return full
    if stage.root is None:
        raise ConfigError(
            "sharding.incremental is set, but --output names a single folder",
            allowed="a root folder, in which shards of earlier states of the source are found",
            todo="leave --output out, or set sharding.incremental=false",
        )
    if not stage.fresh and storage.exists(storage.join(stage.root, combine(full.made_from), MANIFEST_NAME)):
        return full
    from sharding.increments import find_parents, plan_increment

    parents = find_parents(
        stage.root, full.made_from, fresh=stage.fresh, multi_label=listing.multi_label, warn=stage.log
    )
    for number, parent in enumerate(parents):
        uri = storage.join(stage.root, parent.fingerprint)
        finished = Choice(parent.made_from, listing)
        if parent.made_from["listing"] == listing.sha256:
            return finished
        folder = scratch / f"increment-{number}"
        folder.mkdir(parents=True)
        plan = plan_increment(listing, parent, uri, folder)
        if plan is None:
            stage.log(f"{storage.display(uri)} has no sample in common with the source: nothing is built on it")
            continue
        warnings = _check_classes(plan)
        if plan.is_empty and not stage.fresh:
            # The same samples in another listing: an empty class folder was added or removed.
            return finished
        if stage.locate:
            # No finished output exists, so the choice of a parent does not matter.
            return full
        made_from = increment_inputs(full.made_from, parent=parent.fingerprint)
        written = replace(plan.listing, warnings=[*plan.listing.warnings, *warnings])
        return Choice(made_from, written, plan, tokenizer)
    shown = f"sharding.source {storage.display(listing.uri)}"
    check_training_classes(listing.classes, listing.counts[0], shown)
    return full


def _check_classes(plan: IncrementPlan) -> list[str]:
    """Raise DataError if a class has no training sample; return a warning about vanished classes.

    Vanished classes stay in the list of classes, since the labels in reused shards are indices into it.
    """
    classes, vanished = plan.listing.classes, plan.increment.vanished
    num_kept = plan.increment.kept.samples_by_class.get("train", {})
    counts = [num_kept.get(label, 0) + num_new for label, num_new in enumerate(plan.listing.counts[0])]
    check_training_classes(classes, counts, f"sharding.source {storage.display(plan.listing.uri)}", vanished)
    if not vanished:
        return []
    names = join_names([encode_name(classes[label]) for label in vanished])
    return [f"the source has no sample of class {names} any more: it stays in the list, without samples"]


def find_planned(stage: Stage) -> PlannedJob | None:
    """Return the job that `--list` has planned; None if there is none, or it is finished."""
    if stage.listing is None:
        return None
    from sharding.job import read_planned

    planned = read_planned(stage.listing, stage.listing.rpartition("/")[2])
    if planned is None:
        return None
    made_from = planned.made_from
    current = shard_inputs(stage.config, made_from["listing"], made_from.get("tokenizer", ""))
    is_current = all(made_from.get(name) == value for name, value in current.items())
    return planned if is_current else None


def prepare_plan(stage: Stage, output: Output, choice: Choice) -> PlannedJob:
    """Return the planned job of an output, or plan it; the first published plan counts.

    Raises:
        TryAgain: Another run has just finished the work.
    """
    from sharding.job import plan_uri, read_planned

    for warning in choice.listing.warnings:
        stage.log(f"warning: {warning}")
    if (existing := read_planned(output.uri, output.fingerprint)) is not None:
        return existing
    planned = _publish_listing(stage, output, choice)
    if choice.increment is not None:
        stage.log(choice.increment.describe(planned.plan.total_shards))
    with contextlib.suppress(storage.AlreadyPublished):
        storage.publish(plan_uri(output.uri, output.fingerprint), planned.model_dump_json().encode())
    published = read_planned(output.uri, output.fingerprint)
    if published is None:
        raise TryAgain(f"{storage.display(output.uri)} was finished meanwhile; run again to reuse it")
    return published


def _publish_listing(stage: Stage, output: Output, choice: Choice) -> PlannedJob:
    """Publish the listing in the work folder; return the job, which is not yet published."""
    import numpy as np

    from records.statistics import summed_share
    from sharding.job import DELETED_ROWS_NAME, TOKENIZER_NAME, Job, PlannedJob

    listing, increment = choice.listing, choice.increment
    planned = PlannedJob(
        fingerprint=output.fingerprint,
        made_from=output.made_from,
        source_uri=listing.uri,
        classes=[encode_name(name) for name in listing.classes],
        multi_label=listing.multi_label,
        vocabularies={name: [encode_name(text) for text in names] for name, names in listing.vocabularies.items()},
        sharding=stage.config.sharding,
        plan=plan_shards(stage, listing),
        listing=f"listing-{stage.attempt}",
        num_parts=len(listing.parts()),
        num_files=listing.num_files,
        source_bytes=listing.total_bytes,
        # An increment keeps mean and std of its parent.
        summed_share=0 if increment is not None else summed_share(listing.split_files[0]),
        ignored=[encode_path(path) for path in sorted(listing.ignored)],
        num_ignored=listing.num_ignored,
        warnings=list(listing.warnings),
        increment=increment.increment if increment is not None else None,
    )
    job = Job(output.uri, planned)
    if choice.tokenizer:
        storage.publish(storage.join(job.listing_uri, TOKENIZER_NAME), choice.tokenizer)
    parts = list(listing.parts())
    if increment is not None:
        stream = io.BytesIO()
        np.save(stream, increment.deleted_rows, allow_pickle=False)
        storage.publish(storage.join(job.listing_uri, DELETED_ROWS_NAME), stream.getvalue())
        parts += increment.kept_parts
    with ThreadPoolExecutor(_COPY_THREADS) as pool:
        # A list, so that errors are raised here.
        list(pool.map(lambda at: storage.publish(job.part_uri(at), parts[at].read_bytes()), range(len(parts))))
    return planned


def clean_work(output_uri: str) -> None:
    """Delete the work folder of a finished output; errors are ignored, since a late worker may still write to it."""
    with contextlib.suppress(OSError, ShardlineError):
        storage.delete_tree(storage.join(output_uri, WORK_NAME), manifest_name=MANIFEST_NAME)


def plan_shards(stage: Stage, listing: Listing) -> Plan:
    """Plan the shards of a listing."""
    from sharding.plan import make_plan

    section = stage.config.sharding
    return make_plan(_read_sizes(listing), seed=section.seed, target_shard_bytes=section.target_shard_bytes)


def _read_sizes(listing: Listing) -> Iterator[tuple[bytes, int, int]]:
    """Yield (path, split, bytes) of every sample; rows without files include `ROW_FRAME_BYTES`."""
    for table in listing.tables():
        columns = (table[name].to_pylist() for name in ("path", "split", "size", "more_bytes"))
        for path, split, size, more_bytes in zip(*columns, strict=True):
            yield path, split, size + more_bytes + (ROW_FRAME_BYTES if path.startswith(ROW_PREFIX.encode()) else 0)
