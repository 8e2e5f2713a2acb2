"""Whether a schedule's firing has anything to train on: `python -m sharding.firing`, a task of the pipeline.

Its answer comes from the listing of the source (a manifest of samples is read for it) and the index of the newest run
that succeeded; no sample is opened.
What cannot be known is no reason to leave training out: then the run goes on, and its stages say what is wrong.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from contracts import storage
from contracts.artifacts import RunRecord, ShardManifest
from contracts.artifacts.firing import FIRING_NAME, GO, NOTHING, Firing, Verdict
from contracts.config import RunConfig
from contracts.errors import EXIT_OK, ShardlineError
from contracts.previous import find_last_success
from contracts.process import run_process
from contracts.resolve import read_stage_config, with_data_date
from contracts.result import RESULTS_FOLDER, RUN_START_NAME, run_uri
from records.report.statistics import compare_named
from sharding.increment.append import count_same
from sharding.increment.chain import Parent
from sharding.limits import encode_name, name_some
from sharding.sources import Listing, list_source

# Sections that change no result: a firing is not due because one of them was changed.
_WITHOUT_RESULT = ("schedule", "validate", "inspect")


def main(arguments: Sequence[str] | None = None) -> int:
    """Decide, leave the document with the run, and write the verdict where the pipeline reads it."""
    parser = argparse.ArgumentParser(prog="python -m sharding.firing", allow_abbrev=False)
    for name in ("line", "run", "config", "data-date"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--write-verdict", type=Path, required=True)
    options = parser.parse_args(arguments)
    try:
        firing = decide(options.line, options.run, read_stage_config(options.config, None, None), options.data_date)
        uri = storage.join(run_uri(options.line, options.run), RESULTS_FOLDER, FIRING_NAME)
        storage.replace(uri, (firing.model_dump_json(indent=1) + "\n").encode())
    except (ShardlineError, OSError) as error:
        # The stages meet the same error, and say it where it is looked for.
        print(f"firing: warning: {error}", file=sys.stderr)
        firing = Firing(verdict=GO, reason=(str(error).splitlines() or [type(error).__name__])[0])
    options.write_verdict.parent.mkdir(parents=True, exist_ok=True)
    options.write_verdict.write_text(firing.verdict, encoding="utf-8")
    print(f"firing: {firing.verdict}: {firing.reason}")
    return EXIT_OK


def decide(line: str, run: str, config: RunConfig, data_date: str) -> Firing:
    """Return whether a run that begins has anything to train on.

    Args:
        line: URI of the line's folder.
        run: Its id.
        config: Its whole configuration, as records have it: with {date} where it has that.
        data_date: The moment that the data is of.

    Raises:
        ShardlineError: The source cannot be listed, or the shards of the last run cannot be read.
    """
    if not json.loads(storage.read_bytes(storage.join(run_uri(line, run), RUN_START_NAME))).get("scheduled_at"):
        return Firing(verdict=GO, reason="it was started by hand")
    last = find_last_success(line)
    shards = next((stage.uri for stage in last.stages if stage.name == "shard"), None) if last is not None else None
    if last is None or shards is None:
        return Firing(verdict=GO, reason="no run of the line has succeeded yet")
    if changed := [*_list_changed(last, config)]:
        reason = f"the configuration is not that of run {last.id}: {name_some(changed)}"
        return Firing(verdict=GO, reason=reason, since=last.id)
    parent = Parent(shards, ShardManifest.load(shards))
    with tempfile.TemporaryDirectory(prefix="shardline-listing-") as scratch:
        listing = list_source(with_data_date(config, data_date).sharding, Path(scratch))
        return compare(config, listing, last.id, parent)


def compare(config: RunConfig, listing: Listing, last: str, parent: Parent) -> Firing:
    """Return what a listing has beyond the shards of the newest run that succeeded.

    Args:
        config: With the section schedule.
        listing: Of the source as it is now.
        last: Id of that run.
        parent: Its shards.
    """
    left_out = _count_left_out(parent.manifest)
    before = sum(split.samples for split in parent.manifest.splits.values()) + left_out
    verdict: Verdict = NOTHING
    reason, new = f"the source is as run {last} found it", 0
    if parent.listing != listing.sha256:
        # What was left out is in no index: it is taken to be there still.
        new = max(0, listing.num_files - count_same(listing, parent) - left_out)
        if reasons := [*_find_reasons(config, listing, parent.manifest, new, before)]:
            verdict, reason = GO, f"{new:,} new or changed samples beside {before:,}; {'; '.join(reasons)}"
        else:
            when = config.schedule.when.model_dump(exclude_defaults=True)
            asked = ", ".join(f"schedule.when.{name}={limit}" for name, limit in when.items())
            reason = f"{new:,} new or changed samples beside the {before:,} of run {last}, and {asked}"
    return Firing(verdict=verdict, reason=reason, since=last, samples=listing.num_files, new=new, samples_before=before)


def _count_left_out(manifest: ShardManifest) -> int:
    """Return how many samples of the listing are in no shard: those that cannot be read, and dropped copies."""
    copies = manifest.duplicates.copies if manifest.duplicates is not None and manifest.duplicates.dropped else 0
    return manifest.count_rejected + copies


def _find_reasons(config: RunConfig, listing: Listing, manifest: ShardManifest, new: int, before: int) -> Iterator[str]:
    """Yield what `schedule.when` asks for and the listing has."""
    when = config.schedule.when
    if when.new_samples is not None and new >= when.new_samples:
        yield f"schedule.when.new_samples={when.new_samples}"
    if when.new_share is not None and new >= when.new_share * before:
        yield f"schedule.when.new_share={when.new_share:g}"
    if when.drift:
        yield from _find_drift(config, listing, manifest)


def _find_drift(config: RunConfig, listing: Listing, manifest: ShardManifest) -> Iterator[str]:
    """Yield what is different about the classes of the training split; nothing where there are none."""
    validate, names = config.validate, [encode_name(name) for name in listing.classes]
    now = dict(zip(names, listing.count_by_class(0), strict=True))
    before = dict(zip(manifest.classes, manifest.splits["train"].samples_by_class, strict=True))
    now, before = ({name: count for name, count in counts.items() if count} for counts in (now, before))
    if came := sorted(now.keys() - set(manifest.classes)):
        yield f"new classes: {name_some(came)}"
    if went := sorted(before.keys() - now.keys()):
        yield f"classes that are gone: {name_some(went)}"
    # What was left out is of some class: the two would be counts of different things.
    if _count_left_out(manifest) or min(sum(now.values()), sum(before.values())) < validate.least_samples:
        return
    apart = compare_named(before, now)
    if apart.excess > validate.warn_excess and apart.p < validate.significance:
        yield f"shares of classes moved: excess PSI {apart.excess:.3g}, more than {validate.warn_excess:g}"


def _list_changed(last: RunRecord, config: RunConfig) -> Iterator[str]:
    """Yield the sections that decide a result and are not those of a run."""
    now = config.model_dump(mode="json", exclude=set(_WITHOUT_RESULT))
    yield from (f"section {name}" for name, value in now.items() if last.config.get(name) != value)


if __name__ == "__main__":
    run_process(main)
