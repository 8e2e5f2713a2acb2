"""Planning a job: its listing and cuts in the output's work folder, where every later attempt finds them."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from contracts import storage
from contracts.errors import TryAgain
from contracts.fingerprint import shard_inputs
from contracts.stage import Output, Stage
from sharding.increment.choice import Choice
from sharding.limits import encode_name, encode_path
from sharding.sources.fields import Fields, add_frames

if TYPE_CHECKING:
    from sharding.job import PlannedJob
    from sharding.plan import Plan


def find_planned(stage: Stage) -> PlannedJob | None:
    """Return the job that `--list` has planned; None: there is none, or it is finished."""
    if stage.listing is None:
        return None
    from sharding.job import read_planned

    planned = read_planned(stage.listing, stage.listing.rpartition("/")[2])
    if planned is None:
        return None
    made_from = planned.made_from
    now = shard_inputs(stage.config, made_from["listing"], made_from.get("tokenizer", ""))
    same = all(made_from.get(name) == value for name, value in now.items())
    return planned if same else None


def prepare_plan(stage: Stage, output: Output, choice: Choice) -> PlannedJob:
    """Return the planned job of an output; where there is none, leave one."""
    from sharding.job import read_planned

    if (known := read_planned(output.uri, output.fingerprint)) is not None:
        return known
    for warning in choice.listing.warnings:
        stage.log(f"warning: {warning}")
    return _publish(stage, output, choice)


def _publish(stage: Stage, output: Output, choice: Choice) -> PlannedJob:
    """Leave the listing and the plan in the work folder, or take those that are there: the first plan counts."""
    section, listing = stage.config.sharding, choice.listing
    plan = arrange(stage, choice)

    from sharding.job import (
        CUTS_NAME,
        GONE_NAME,
        REVISION,
        TOKENIZER_NAME,
        WORK_NAME,
        PlannedJob,
        plan_uri,
        read_planned,
    )
    from sharding.sources.parts import publish_parts

    name = f"listing-{stage.attempt}"
    folder = storage.join(output.uri, WORK_NAME, name)
    storage.publish(storage.join(folder, CUTS_NAME), plan.to_bytes())
    if choice.tokenizer:
        storage.publish(storage.join(folder, TOKENIZER_NAME), choice.tokenizer)
    if choice.growth is not None:
        storage.publish(storage.join(folder, GONE_NAME), choice.growth.gone.tobytes())
        stage.log(choice.growth.describe(plan.total_shards))
    publish_parts(choice.published.parts, folder)
    planned = PlannedJob(
        revision=REVISION,
        fingerprint=output.fingerprint,
        made_from=output.made_from,
        source_uri=listing.uri,
        classes=[encode_name(name) for name in listing.classes],
        multi_label=listing.multi_label,
        vocabularies={name: [encode_name(one) for one in names] for name, names in listing.vocabularies.items()},
        sharding=section,
        seed=section.seed,
        listing=name,
        num_parts=len(listing.parts),
        num_files=listing.num_files,
        source_bytes=listing.total_bytes,
        training_files=listing.split_files[0],
        ignored=[encode_path(path) for path in listing.ignored],
        num_ignored=listing.num_ignored,
        warnings=list(listing.warnings),
        append=choice.growth.append if choice.growth is not None else None,
    )
    # Attempts are told apart by their names: of two that plan at once, one is first.
    with contextlib.suppress(storage.AlreadyPublished):
        storage.publish(plan_uri(output.uri, output.fingerprint), planned.model_dump_json().encode())
    taken = read_planned(output.uri, output.fingerprint)
    if taken is None:
        raise TryAgain(f"{storage.display(output.uri)} was finished meanwhile; run again, and it is reused")
    return taken


def arrange(stage: Stage, choice: Choice) -> Plan:
    """Return the shards of what is written."""
    from sharding.plan import make_plan

    section, listing = stage.config.sharding, choice.listing
    fields = Fields.of(section)
    framed = fields is not None and fields.file is None
    return make_plan(
        (lambda: add_frames(listing.samples())) if framed else listing,
        seed=section.seed,
        target_shard_bytes=section.target_shard_bytes,
    )
