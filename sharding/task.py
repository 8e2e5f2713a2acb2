"""The shard stage: raw images in, shards, index and manifest out.

    python -m sharding.task --config-json '{"sharding": {"source": "raw/digits"}}' --root runs/digits/shard

The frame of a stage, its arguments, events and exit codes are in contracts/stage.py. Whether the work is already done
is known from the listing alone: Beam is imported only when there is something to write. What is to be done is planned
in the output's work folder (sharding/job.py), and whoever comes later, in a retry or in another run, goes on with that
plan: shards that are finished are never written again, and nothing finished is deleted. The graph publishes the
manifest itself, as its last act, so that a job whose launcher died still ends complete: the command only says that it
is there. A source is never changed.
"""

from __future__ import annotations

import contextlib
import re
import tempfile
import threading
import time
import warnings
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from contracts import storage
from contracts.artifacts import MANIFEST_NAME, ShardManifest
from contracts.config import SPLITS
from contracts.errors import ConfigError, DataError, ErrorDocument, ShardlineError, TryAgain
from contracts.process import run_process
from contracts.stage import Output, Stage, run_stage
from records.compare import compare_with_previous
from sharding.adoption import find_running, name_job
from sharding.increment.choice import Choice, choose
from sharding.limits import check_rejected, space_needed
from sharding.planning import arrange, find_planned, prepare_plan
from sharding.runners.work import Work
from sharding.sources import list_source
from sharding.versions import describe_versions
from sharding.write.pool import prepare_pools

if TYPE_CHECKING:
    from sharding.job import PlannedJob

# How often shard files are counted for the progress shown, in seconds.
WATCH_INTERVAL_S = 0.25
REMOTE_WATCH_INTERVAL_S = 2.0
SHARD_NAME = re.compile(rf"({'|'.join(SPLITS)})-[0-9a-f]{{8}}-\d{{5,}}\.(tar|tfrecord)")


def shard(stage: Stage) -> str:
    """Write the shards of `sharding.source`, or find them; return the URI of their folder.

    A dry run writes nothing, and returns what would be written, in words.

    Raises:
        ConfigError, DataError, StorageError: The source or the output cannot be used.
        TryAgain: The source changed while it was read, or another process works on the same output.
    """
    storage.bill(stage.config.cloud.billing_project, stage.config.sharding.source)
    # The listing is spilled here: it may be larger than the memory.
    with tempfile.TemporaryDirectory(prefix="shardline-listing-") as scratch:
        if stage.dry_run:
            return _describe_run(stage, Path(scratch))
        return _shard(stage, Path(scratch))


def _shard(stage: Stage, scratch: Path) -> str:
    _check_apart(stage)
    if not (stage.list or stage.locate) and stage.config.resources.beam_runner == "fnapi":
        # It starts while the source is listed.
        prepare_pools()
    planned: PlannedJob | Choice | None = find_planned(stage)
    if planned is None and stage.listing is not None:
        return _take_finished(stage, stage.listing)
    if planned is None:
        planned = choose(stage, list_source(stage.config.sharding, scratch), scratch)
    if (job_id := find_running(stage, planned.made_from)) is not None:
        return _join(stage, planned.made_from, job_id)
    output = stage.claim(ShardManifest, planned.made_from)
    if output.reused:
        _reuse(stage, output)
        return output.uri
    if stage.list:
        if isinstance(planned, Choice):
            prepare_plan(stage, output, planned)
        return output.uri
    from sharding.job import REFUSAL_NAME

    storage.delete(storage.join(output.uri, REFUSAL_NAME))
    with space_needed(output.uri):
        if isinstance(planned, Choice):
            planned = prepare_plan(stage, output, planned)
        _remove_scratch(output.uri)
    stage.ready()
    _write(stage, output, planned)
    return output.uri


def _join(stage: Stage, made_from: dict[str, str], job_id: str) -> str:
    """Join a Dataflow job of the same work; return the URI of its output."""
    from sharding.runners.dataflow import wait_for

    output = stage.claim(ShardManifest, made_from, joins=True)
    stage.log(f"Dataflow job {job_id} of the same work runs already: this run joins it")
    wait_for(stage.config, job_id)
    _finish(stage, output, f"Dataflow job {job_id} of another run")
    return output.uri


def _take_finished(stage: Stage, uri: str) -> str:
    """Take the shards of a listing whose work is done.

    Raises:
        TryAgain: Neither they nor what was listed is there.
    """
    try:
        manifest = ShardManifest.load(uri)
    except DataError:
        raise TryAgain(f"{storage.display(uri)} holds neither shards nor a listing: list the source again") from None
    output = Output(uri, manifest.fingerprint, manifest.made_from, reused=True)
    stage.events.emit("reused", uri=uri)
    _reuse(stage, output)
    return uri


def _reuse(stage: Stage, output: Output) -> None:
    """Use finished shards: say what was remarked about them."""
    manifest = ShardManifest.load(output.uri)
    _check_limits(stage, manifest)
    if versions := describe_versions(manifest.made_with):
        stage.log(f"{storage.display(output.uri)} is reused: {versions}")
    for warning in manifest.warnings:
        stage.log(f"warning: {warning}")
    _compare(stage, manifest)


def _check_limits(stage: Stage, manifest: ShardManifest) -> None:
    """Hold finished shards to the limits of this configuration, which are in no fingerprint."""
    section = stage.config.sharding
    accepted = sum(split.samples for split in manifest.splits.values())
    shown = f"sharding.source {storage.display(storage.normalise(section.source))}"
    check_rejected(
        manifest.rejected, accepted, section.max_rejected_fraction, shown, num_rejected=manifest.num_rejected
    )
    if section.duplicates == "fail" and manifest.duplicates:
        from sharding.commit.duplicates import check_duplicates

        check_duplicates(manifest.duplicates, shown, section)


def _compare(stage: Stage, manifest: ShardManifest) -> None:
    """Say how the data differs from that of the run before."""
    if stage.run and stage.line and not (stage.list or stage.locate):
        for words in compare_with_previous(stage.line, stage.run, manifest):
            stage.log(f"warning: {words}")


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


def _remove_scratch(uri: str) -> None:
    """Delete temporary files of killed attempts: this process holds the lock of the folder, where there is one."""
    if storage.is_local(uri):
        for name in storage.list_names(uri):
            if name.startswith(storage.TEMPORARY_PREFIX):
                storage.delete(storage.join(uri, name))


def _describe_run(stage: Stage, scratch: Path) -> str:
    """Return in words what a run would write."""
    from sharding.dry_run import describe

    choice = choose(stage, list_source(stage.config.sharding, scratch), scratch)
    output = stage.claim(ShardManifest, choice.made_from, joins=True)
    if output.reused:
        made = _describe(ShardManifest.load(output.uri))
        return f"nothing: {output.fingerprint} holds this state of the source and would be reused: {made}"
    plan, listing = arrange(stage, choice), choice.listing
    lines = [f"warning: {warning}" for warning in listing.warnings]
    if choice.growth is not None:
        lines.append(choice.growth.describe(plan.total_shards))
        lines.append(f"{choice.growth.append.num_kept} samples would be reused")
    if finished := _count_finished(stage, output):
        lines.append(f"{finished} of {plan.total_shards} shards are finished already and would be reused")
    return "\n".join([*lines, *describe(listing, plan, stage.config.sharding)])


def _count_finished(stage: Stage, output: Output) -> int:
    """Return the number of shards that an earlier attempt has finished, by its records."""
    from sharding.commit.records import count_records
    from sharding.job import JobHandle, open_job, read_planned

    planned = read_planned(output.uri, output.fingerprint)
    if planned is None:
        return 0
    payer = stage.config.cloud.billing_project
    handle = JobHandle(output.uri, output.fingerprint, planned.listing, planned.revision, 1.0, 0, billing_project=payer)
    return count_records(open_job(handle).job)


def _write(stage: Stage, output: Output, planned: PlannedJob) -> None:
    """Run the graph until its end, again as long as shards get finished."""
    from records.statistics import summed_share
    from sharding.commit.kept import count_parts
    from sharding.commit.manifest import Commit
    from sharding.commit.records import count_records
    from sharding.graph import build_graph
    from sharding.job import JobHandle, open_job
    from sharding.runners.run import run_graph

    resources, section = stage.config.resources, stage.config.sharding
    # Read at a time, to hide a bucket's latency.
    threads = 0 if storage.is_local(planned.source_uri) else 64
    handle = JobHandle(
        output.uri,
        output.fingerprint,
        planned.listing,
        planned.revision,
        summed_share(planned.training_files),
        threads,
        billing_project=stage.config.cloud.billing_project,
    )
    opened = open_job(handle)
    work = Work(planned.source_bytes, opened.plan.total_shards, decodes=section.verify == "decode")
    num_kept = count_parts(opened)
    num_compared = planned.append.compared_parts if planned.append is not None else 0
    fields = opened.job.fields
    commit = Commit(
        section.max_rejected_fraction,
        section.duplicates,
        appends=num_kept > 0,
        has_rows=fields is not None and fields.file is None,
    )
    finished = count_records(opened.job)
    if finished:
        stage.log(f"{finished} of {opened.plan.total_shards} shards are finished already")
    with space_needed(output.uri), _progress(stage, output.uri, opened.plan.total_shards):
        while True:
            try:
                engine = run_graph(
                    lambda pipeline: build_graph(
                        pipeline, handle, commit, planned.num_parts, len(opened.groups), num_kept, num_compared
                    ),
                    stage.config,
                    work,
                    job_name=name_job(output.uri, output.fingerprint),
                    work_uri=handle.work_uri,
                    run_id=stage.run,
                )
                break
            except Exception as error:
                if storage.exists(storage.join(output.uri, MANIFEST_NAME)):
                    engine = "another run's engine"
                    break
                if refusal := _find_refusal(output.uri):
                    raise refusal from None
                # The FnApiRunner repeats no bundle, and a service gives up after a few: what is finished stays. A job
                # of Dataflow that was cancelled stays so.
                before, finished = finished, count_records(opened.job)
                is_passing = isinstance(error, TryAgain) and resources.beam_runner != "dataflow"
                if not is_passing or finished <= before:
                    raise
                stage.log(f"{error}; {finished} of {opened.plan.total_shards} shards are finished: the rest again")
    _finish(stage, output, engine, planned.warnings)


def _find_refusal(output_uri: str) -> ShardlineError | None:
    """Return the error that a worker has left in the output's folder, if one did."""
    from sharding.job import REFUSAL_NAME

    try:
        content = storage.read_bytes(storage.join(output_uri, REFUSAL_NAME))
    except (FileNotFoundError, NotADirectoryError):
        return None
    return ErrorDocument.model_validate_json(content).to_error()


def _finish(stage: Stage, output: Output, engine: str, said: Collection[str] = ()) -> None:
    """Say what was made, or why nothing was.

    Args:
        stage: The attempt.
        output: Its folder.
        engine: What wrote it, in words.
        said: Warnings that were said when it was planned.
    """
    from sharding.job import WORK_NAME

    if not storage.exists(storage.join(output.uri, MANIFEST_NAME)):
        if error := _find_refusal(output.uri):
            raise error
        raise TryAgain(f"the job ended, and {storage.display(output.uri)} has no manifest; run again to go on")
    stage.log(f"ran on {engine}")
    storage.delete_tree(storage.join(output.uri, WORK_NAME), manifest_name=MANIFEST_NAME)
    manifest = ShardManifest.load(output.uri)
    _check_limits(stage, manifest)
    for warning in manifest.warnings:
        if warning not in said:
            stage.log(f"warning: {warning}")
    _compare(stage, manifest)
    stage.finished(output, _describe(manifest))


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
        # Looking into a bucket is a request for every thousand files.
        interval_s = WATCH_INTERVAL_S if storage.is_local(uri) else REMOTE_WATCH_INTERVAL_S
        while not ended.wait(interval_s):
            began = time.monotonic()
            # A full disk, a bucket that does not answer: the work itself will say so.
            with contextlib.suppress(OSError, ShardlineError):
                done = min(count(), total)
                if done != said:
                    stage.progress(done, total, "shards")
                    said = done
            interval_s = max(interval_s, 20 * (time.monotonic() - began))

    watcher = threading.Thread(target=watch, name="progress", daemon=True)
    stage.progress(0, total, "shards")
    watcher.start()
    try:
        yield
    finally:
        ended.set()
        watcher.join()
    with contextlib.suppress(OSError, ShardlineError):
        stage.progress(min(count(), total), total, "shards")


def _describe(manifest: ShardManifest) -> str:
    samples = sum(split.samples for split in manifest.splits.values())
    by_split = " / ".join(str(manifest.splits[name].samples) for name in SPLITS)
    megabytes = sum(entry.bytes for entry in manifest.shards) / 1e6
    rejected = f", {manifest.count_rejected} rejected" if manifest.rejected else ""
    return (
        f"{samples} samples ({by_split}) in {len(manifest.shards)} {manifest.format} shards, "
        f"{megabytes:.1f} MB{rejected}"
    )


if __name__ == "__main__":
    # What Pillow remarks about metadata does not touch the pixels; what does is a reason in the manifest.
    warnings.filterwarnings("ignore", category=UserWarning, module=r"PIL\.")
    run_process(lambda: run_stage("shard", shard))
