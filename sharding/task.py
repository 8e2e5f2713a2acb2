"""The shard stage: raw images in, shards, index and manifest out.

    python -m sharding.task --config-json '{"sharding": {"source": "raw/digits"}}' --root runs/digits/shard

The frame of a stage, its arguments, events and exit codes are in contracts/stage.py. Whether the work is already done
is known from the listing alone: Beam is imported only when there is something to write. The graph publishes the
manifest itself, as its last act, so that a job whose launcher died still ends complete: the command only says that it
is there. A source is never changed, and nothing is deleted but what an earlier attempt left in the output.
"""

from __future__ import annotations

import contextlib
import dataclasses
import threading
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from contracts import storage
from contracts.artifacts import MANIFEST_NAME, ShardManifest
from contracts.config import SPLITS
from contracts.errors import ConfigError, ShardlineError, StorageError, TryAgain
from contracts.fingerprint import combine
from contracts.process import run_process
from contracts.refusal import find_refusal
from contracts.stage import Output, Stage, run_stage
from sharding.attempt import SHARD_NAME, clean_up, is_current, remove_leftovers, take_folder
from sharding.increment.choice import choose
from sharding.limits import check_rejected, space_needed
from sharding.runners.work import Work, prepare_workers
from sharding.sources import Listing, describe_gaps, list_source

if TYPE_CHECKING:
    from contracts.artifacts import Duplicates
    from sharding.commit.duplicates import Findings
    from sharding.commit.manifest import Commit
    from sharding.increment.chain import Parent
    from sharding.increment.reuse import Growth
    from sharding.plan import Plan

# How often shard files are counted for the progress shown, in seconds.
WATCH_INTERVAL_S = 0.25
REMOTE_WATCH_INTERVAL_S = 2.0


def shard(stage: Stage) -> str:
    """Write the shards of `sharding.source`, or find them; return the URI of their folder (a dry run: the estimate).

    Raises:
        ConfigError, DataError, StorageError: The source or the output cannot be used.
        TryAgain: The source changed while it was read, or another process works on the same output.
    """
    if stage.dry_run:
        return _estimate(stage)
    prepared = _prepare(stage)
    if isinstance(prepared, str):
        if stage.launch is not None:
            _name_finished_job(stage, stage.launch)
        return prepared
    stage.ready()
    try:
        _write(stage, prepared)
    except StorageError:
        # A full disk: what is half done makes room for the error to be written down.
        if is_current(prepared.commit.job):
            remove_leftovers(prepared.output.uri)
        raise
    return prepared.output.uri


def _name_finished_job(stage: Stage, launch: Path) -> None:
    """Give out the job that made the shards, which another run began: whoever waits for it sees that it is done.

    Raises:
        TryAgain: No job of Dataflow has made them.
    """
    from sharding.runners.dataflow import find_job, write_resources

    assert stage.claimed is not None
    job_id = find_job(stage.config, _job_name(stage.claimed))
    if job_id is None:
        raise TryAgain(
            f"{storage.display(stage.claimed.uri)} was finished after it was listed, and not by a Dataflow job that "
            "could be waited for; run again, and it is reused"
        )
    stage.log(f"another run has finished {storage.display(stage.claimed.uri)} meanwhile, by job {job_id}")
    write_resources(launch, stage.config, job_id)


def _job_name(output: Output) -> str:
    return f"shardline-{output.fingerprint}"


@dataclass
class _Prepared:
    """What is left of the listing when the graph starts: not the listing itself, which may fill the memory."""

    output: Output
    commit: Commit
    work: Work
    num_parts: int
    parent: Parent | None


def _prepare(stage: Stage) -> _Prepared | str:
    """List the source and plan the shards; return the URI of the folder instead when it is finished."""
    section = stage.config.sharding
    _check_apart(stage)
    listing = list_source(section)
    choice = choose(stage, listing)
    output = stage.claim(ShardManifest, choice.made_from)
    if output.reused:
        _check_limit_of(output, stage, listing)
        return output.uri
    if stage.where:
        return output.uri
    if stage.expect is not None and output.uri != stage.expect:
        raise TryAgain(
            f"the source changed after it was listed ({storage.display(stage.expect)} then, "
            f"{storage.display(output.uri)} now); run again when nothing writes to it"
        )
    if "parent" in choice.made_from and choice.growth is None:
        raise TryAgain(f"{storage.display(output.uri)} changed while it was looked at; run the stage again")
    if output.uri.startswith("memory://"):
        raise StorageError(
            f"output {output.uri} would be gone with this process",
            allowed="a local path, file:// or gs://",
            todo="give a local path",
        )
    for warning in describe_gaps(listing, section.splits):
        stage.log(warning)
    take_folder(output, stage.attempt)
    return _plan(stage, output, listing, choice.parent, choice.growth)


def _check_apart(stage: Stage) -> None:
    """Raise ConfigError when the shards would become images of their own source."""
    source = storage.normalise(stage.config.sharding.source or ".")
    place = stage.output or stage.root or ""
    if stage.config.sharding.source and f"{place}/".startswith(f"{source}/"):
        raise ConfigError(
            f"the output {storage.display(place)} is inside of sharding.source {storage.display(source)}",
            allowed="a folder outside of the source, which is never changed",
            todo="choose another --output or run.root; what this attempt left in the source (attempts/) can be deleted",
        )


def _plan(
    stage: Stage,
    output: Output,
    listing: Listing,
    parent: Parent | None,
    growth: Growth | None,
    dropped: Duplicates | None = None,
) -> _Prepared:
    """Plan the shards and leave the listing where the graph reads it."""
    section = stage.config.sharding
    ignored = listing.ignored
    if growth is not None:
        listing = growth.listing
    plan = _arrange(stage, listing, parent if growth else None)
    source_bytes = sum(reference.size for reference in listing.references)
    work = Work(source_bytes, plan.total_shards, decodes=section.verify == "decode")
    prepare_workers(stage.config.resources, work)

    # Beam is imported from here on.
    from records.statistics import summed_share
    from sharding.commit.manifest import Commit
    from sharding.references import write_parts
    from sharding.write.check import Checks
    from sharding.write.shard import Job

    threads = stage.config.resources.read_threads
    if threads == "auto":
        threads = 64 if listing.is_remote else 0
    num_training = sum(reference.split == 0 for reference in listing.references)
    job = Job(
        listing.uri,
        output.uri,
        listing.classes,
        section.format,
        plan,
        attempt=stage.attempt,
        beats=stage.config.resources.beam_runner == "portable",
        multi_label=listing.multi_label,
        checks=Checks.of(section),
        # An increment keeps the mean of its parent.
        summed_share=0.0 if growth else summed_share(num_training),
        read_threads=threads,
    )
    commit = Commit(
        job,
        output.fingerprint,
        output.made_from,
        section.max_rejected_fraction,
        ignored=ignored,
        duplicates=section.duplicates,
        dropped=dropped,
        increment=growth.increment if growth else None,
    )
    with space_needed(output.uri):
        num_parts = write_parts(job.work_uri, listing.references)
        if growth is not None and parent is not None:
            growth.leave_tombstones(job.work_uri)
            stage.log(growth.describe(parent, plan.total_shards))
    return _Prepared(output, commit, work, num_parts, parent)


def _arrange(stage: Stage, listing: Listing, parent: Parent | None) -> Plan:
    from sharding.plan import make_plan

    section = stage.config.sharding
    return make_plan(
        ((reference.path, reference.split, reference.size) for reference in listing.references),
        seed=stage.config.run.seed,
        target_shard_bytes=section.target_shard_bytes,
        # The least number is one of a whole source, not of what is new in it.
        min_shards=1 if parent else section.min_shards,
        generation=parent.manifest.generation + 1 if parent else 0,
    )


def _estimate(stage: Stage) -> str:
    """Return in words what a run would write and what it would cost on Dataflow."""
    from sharding.estimate import describe, estimate, read_prices
    from sharding.probe import probe

    prices = read_prices(stage.prices) if stage.prices else None
    listing = list_source(stage.config.sharding)
    choice = choose(stage, listing)
    lines = []
    if choice.growth is not None and choice.parent is not None:
        listing = choice.growth.listing
        plan = _arrange(stage, listing, choice.parent)
        lines.append(choice.growth.describe(choice.parent, plan.total_shards))
    elif "parent" in choice.made_from:
        return f"nothing: {combine(choice.made_from)} holds this state of the source"
    else:
        plan = _arrange(stage, listing, None)
    found = estimate(listing.references, listing.classes, plan, stage.config, multi_label=listing.multi_label)
    probed = probe(listing.references, len(listing.references), listing.uri, stage.config.sharding, listing.classes)
    return "\n".join([*lines, describe(found, stage.config, prices, probed)])


def _write(stage: Stage, prepared: _Prepared) -> None:
    from sharding.commit.duplicates import describe_duplicates, take_findings
    from sharding.graph import build_graph
    from sharding.runners.run import run_graph

    output, job = prepared.output, prepared.commit.job
    with space_needed(output.uri), _progress(stage, output.uri, job.plan.total_shards):
        engine = run_graph(
            lambda pipeline: build_graph(pipeline, prepared.num_parts, prepared.commit),
            stage.config,
            prepared.work,
            job_name=_job_name(output),
            work_uri=job.work_uri,
            run_id=stage.run,
            launch=stage.launch,
            # A second pass can only be planned when the first has ended.
            waits=stage.launch is None or stage.config.sharding.duplicates == "drop",
        )
    if stage.launch is not None and not storage.exists(storage.join(output.uri, MANIFEST_NAME)):
        stage.log(f"submitted to {engine}; the job publishes {storage.display(output.uri)} as its last act")
        return
    if not is_current(job) and not storage.exists(storage.join(output.uri, MANIFEST_NAME)):
        # What is there, a refusal too, is the successor's.
        raise TryAgain(f"a later attempt has taken over {storage.display(output.uri)}; wait for its end")
    if error := find_refusal(output.uri):
        remove_leftovers(output.uri)
        raise error
    stage.log(f"ran on {engine}")
    if findings := take_findings(output.uri):
        stage.log(f"{describe_duplicates(findings.report, left_out=True)}; a second pass leaves the copies out")
        remove_leftovers(output.uri)
        _write(stage, _plan_second_pass(stage, prepared, findings))
        return

    manifest = ShardManifest.load(output.uri)
    clean_up(output.uri)
    if manifest.duplicates and not manifest.duplicates.dropped:
        stage.log(f"warning: {describe_duplicates(manifest.duplicates)} (sharding.duplicates=drop leaves them out)")
    stage.finished(output, _describe(manifest))


def _plan_second_pass(stage: Stage, first: _Prepared, findings: Findings) -> _Prepared:
    """Plan the shards without the copies that the first pass found.

    Raises:
        TryAgain: The source has changed since.
    """
    from sharding.increment.reuse import replan_growth
    from sharding.plan import make_key

    section = stage.config.sharding
    listing = list_source(section)
    if listing.sha256 != first.output.made_from["listing"]:
        raise TryAgain("the source changed between two passes; run the stage again when nothing writes to it")
    drop = {bytes.fromhex(key) for key in findings.drop}
    kept = tuple(reference for reference in listing.references if make_key(reference.path) not in drop)
    listing = dataclasses.replace(listing, references=kept)
    growth = replan_growth(listing, first.parent, section) if first.parent else None
    report = findings.report.model_copy(update={"dropped": True})
    return _plan(stage, first.output, listing, first.parent, growth, report)


def _check_limit_of(output: Output, stage: Stage, listing: Listing) -> None:
    """Hold finished shards to the limits of this configuration: they are not part of their fingerprint."""
    manifest = ShardManifest.load(output.uri)
    accepted = sum(split.samples for split in manifest.splits.values())
    limit = stage.config.sharding.max_rejected_fraction
    shown = f"sharding.source {storage.display(listing.uri)}"
    check_rejected(manifest.rejected, accepted, limit, shown)
    if stage.config.sharding.duplicates == "fail" and manifest.duplicates:
        from sharding.commit.duplicates import check_duplicates

        check_duplicates(manifest.duplicates, shown)


@contextlib.contextmanager
def _progress(stage: Stage, uri: str, total: int) -> Iterator[None]:
    """Say how many shards are published, while the work in the block runs and once at its end.

    It counts files, and so needs nothing from the runner or from the process that writes them.
    """
    ended = threading.Event()

    def count() -> int:
        return sum(SHARD_NAME.fullmatch(name) is not None for name in storage.list_names(uri))

    def watch() -> None:
        said = -1
        # Looking into a bucket is a request.
        while not ended.wait(WATCH_INTERVAL_S if storage.is_local(uri) else REMOTE_WATCH_INTERVAL_S):
            # A full disk, a bucket that does not answer: the work itself will say so.
            with contextlib.suppress(OSError, ShardlineError):
                done = count()
                if done != said:
                    stage.progress(done, total, "shards")
                    said = done

    watcher = threading.Thread(target=watch, name="progress", daemon=True)
    stage.progress(0, total, "shards")
    watcher.start()
    try:
        yield
    finally:
        ended.set()
        watcher.join()
    stage.progress(count(), total, "shards")


def _describe(manifest: ShardManifest) -> str:
    samples = sum(split.samples for split in manifest.splits.values())
    by_split = " / ".join(str(manifest.splits[name].samples) for name in SPLITS)
    megabytes = sum(entry.bytes for entry in manifest.shards) / 1e6
    rejected = f", {len(manifest.rejected)} rejected" if manifest.rejected else ""
    return (
        f"{samples} samples ({by_split}) in {len(manifest.shards)} {manifest.format} shards, "
        f"{megabytes:.1f} MB{rejected}"
    )


if __name__ == "__main__":
    # What Pillow remarks about metadata does not touch the pixels; what does is a reason in the manifest.
    warnings.filterwarnings("ignore", category=UserWarning, module=r"PIL\.")
    run_process(lambda: run_stage("shard", shard))
