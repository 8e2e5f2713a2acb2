"""The shard stage: raw data in, shards, their indices and a manifest out.

    python -m sharding.task --config-json '{"sharding": {"source": "raw/digits"}}' --root runs/digits/shard

Arguments, events and exit codes are those of contracts/stage.py. The listing alone tells whether the output exists:
Beam is imported only if there is something to write. The plan is in the output's work folder (sharding/job.py), and
retries and other runs continue it: finished shards are neither rewritten nor deleted. The graph publishes the manifest
as its last step, so that a job completes even if its launcher dies. A source is never changed.
"""

from __future__ import annotations

import contextlib
import hashlib
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
from contracts.errors import DataError, ErrorDocument, ShardlineError, TryAgain
from contracts.fingerprint import combine
from contracts.output import check_apart
from contracts.process import run_process
from contracts.stage import Output, Stage, run_stage
from sharding.compare import compare_with_previous
from sharding.limits import Limits, space_needed
from sharding.listing import list_source
from sharding.names import count_of
from sharding.planning import Choice, choose, clean_work, find_planned, plan_shards, prepare_plan

if TYPE_CHECKING:
    from sharding.job import Job, PlannedJob

# Interval at which finished shards are counted for the progress.
WATCH_INTERVAL_S = 0.25
REMOTE_WATCH_INTERVAL_S = 2.0


def shard(stage: Stage) -> str:
    """Write or reuse the shards of `sharding.source`; return the URI of their folder.

    A dry run writes nothing and returns a description of what would be written.

    Raises:
        ConfigError, DataError, StorageError: The source or the output cannot be used.
        TryAgain: The source changed while it was read, or another process works on the same output.
    """
    storage.bill(stage.config.cloud.billing_project, stage.config.sharding.source)
    # For the listing, which may be larger than the memory.
    with tempfile.TemporaryDirectory(prefix="shardline-listing-") as scratch:
        if stage.dry_run:
            return _describe_run(stage, Path(scratch))
        return _shard(stage, Path(scratch))


def _shard(stage: Stage, scratch: Path) -> str:
    check_apart(stage.config.sharding.source, stage.output or stage.root or "")
    planned: PlannedJob | Choice | None = find_planned(stage)
    if planned is None and stage.listing is not None:
        return _reuse_listed(stage, stage.listing)
    if planned is None:
        planned = choose(stage, list_source(stage.config.sharding, scratch / "listing"), scratch)
    if (job_id := _find_running(stage, planned.made_from)) is not None:
        return _join(stage, planned.made_from, job_id)
    output = stage.claim(ShardManifest, planned.made_from)
    if output.reused:
        _accept(stage, output)
        return output.uri
    if stage.list:
        if isinstance(planned, Choice):
            prepare_plan(stage, output, planned)
        return output.uri
    from sharding.job import REFUSAL_NAME
    from sharding.workers import close_processes, prepare_process

    if stage.config.resources.beam_runner == "fnapi":
        prepare_process()
    try:
        if storage.is_local(output.uri):
            storage.local_path(output.uri).mkdir(parents=True, exist_ok=True)
        storage.delete(storage.join(output.uri, REFUSAL_NAME))
        with space_needed(output.uri):
            if isinstance(planned, Choice):
                planned = prepare_plan(stage, output, planned)
            _remove_scratch(output.uri)
        stage.ready()
        _write(stage, output, planned)
    finally:
        close_processes()
    return output.uri


def name_job(output_uri: str, fingerprint: str) -> str:
    """Return the name of the Dataflow job for an output; it contains a hash of the output's URI."""
    return f"shardline-{fingerprint}-{hashlib.sha256(output_uri.encode()).hexdigest()[:8]}"


def _find_running(stage: Stage, made_from: dict[str, str]) -> str | None:
    """Return the id of a running Dataflow job for this output, or None; called before `--fresh` deletes anything."""
    if stage.config.resources.beam_runner != "dataflow" or stage.list or stage.locate:
        return None
    from sharding.dataflow import find_job

    fingerprint = combine(made_from)
    uri = stage.output or storage.join(stage.root or "", fingerprint)
    return find_job(stage.config, name_job(uri, fingerprint))


def _join(stage: Stage, made_from: dict[str, str], job_id: str) -> str:
    """Join a Dataflow job of the same work; return the URI of its output."""
    from sharding.dataflow import wait_for

    output = stage.claim(ShardManifest, made_from, joins=True)
    stage.log(f"Dataflow job {job_id} of the same work runs already: this run joins it")
    wait_for(stage.config, job_id)
    _finish(stage, output, f"Dataflow job {job_id} of another run")
    return output.uri


def _reuse_listed(stage: Stage, uri: str) -> str:
    """Reuse the finished shards of a listing.

    Raises:
        TryAgain: There are neither shards nor a listing.
    """
    try:
        manifest = ShardManifest.load(uri)
    except DataError:
        raise TryAgain(f"{storage.display(uri)} holds neither shards nor a listing: list the source again") from None
    output = Output(uri, manifest.fingerprint, manifest.made_from, reused=True)
    stage.events.emit("reused", uri=uri)
    _accept(stage, output)
    return uri


def _accept(stage: Stage, output: Output, already_logged: Collection[str] = ()) -> ShardManifest:
    """Check a finished manifest, log its warnings and return it; `already_logged` are those of the plan."""
    # A job may have been killed after its manifest was published.
    clean_work(output.uri)
    manifest = ShardManifest.load(output.uri)
    shown = f"sharding.source {storage.display(storage.normalise(stage.config.sharding.source))}"
    _limits_of(stage).check(manifest, shown)
    for warning in manifest.warnings:
        if warning not in already_logged:
            stage.log(f"warning: {warning}")
    _compare(stage, manifest)
    return manifest


def _limits_of(stage: Stage) -> Limits:
    return Limits(stage.config.sharding.max_rejected_fraction, stage.config.sharding.duplicates)


def _compare(stage: Stage, manifest: ShardManifest) -> None:
    """Report the difference between the data of this run and of the previous one.

    Raises:
        DataError: The difference exceeds the configured limits.
    """
    if not stage.run or not stage.line or stage.list or stage.locate:
        return
    result = compare_with_previous(stage.line, stage.run, manifest)
    if result is None:
        return
    warnings = list(result.describe())
    stage.events.emit("compared", **result.model_dump(mode="json"), summary=result.summarise(), warnings=warnings)
    for warning in warnings:
        stage.log(f"warning: {warning}")
    result.check(stage.config.sharding)


def _remove_scratch(uri: str) -> None:
    """Delete temporary files of killed attempts in a local folder, which this process has locked."""
    if storage.is_local(uri):
        for name in storage.list_names(uri):
            if name.startswith(storage.TEMPORARY_PREFIX):
                storage.delete(storage.join(uri, name))


def _describe_run(stage: Stage, scratch: Path) -> str:
    from sharding.dry_run import describe
    from sharding.job import Job, read_planned

    choice = choose(stage, list_source(stage.config.sharding, scratch / "listing"), scratch)
    output = stage.claim(ShardManifest, choice.made_from, joins=True)
    if output.reused:
        summary = _describe(ShardManifest.load(output.uri))
        return f"nothing: {output.fingerprint} holds this state of the source and would be reused: {summary}"
    plan, listing = plan_shards(stage, choice.listing), choice.listing
    lines = [f"warning: {warning}" for warning in listing.warnings]
    if choice.increment is not None:
        lines.append(choice.increment.describe(plan.total_shards))
    planned = read_planned(output.uri, output.fingerprint)
    if planned is not None and (finished := Job(output.uri, planned).count_records()):
        lines.append(f"{finished} of {plan.total_shards} shards are finished already and would be reused")
    return "\n".join([*lines, *describe(listing, plan, stage.config.sharding)])


def _write(stage: Stage, output: Output, planned: PlannedJob) -> None:
    """Run the graph, with retries as long as each one finishes further shards."""
    from sharding.graph import build_graph
    from sharding.job import JobHandle, open_job
    from sharding.runners import Work, run_graph

    resources, section = stage.config.resources, stage.config.sharding
    handle = JobHandle(
        output.uri, output.fingerprint, planned.listing, billing_project=stage.config.cloud.billing_project
    )
    job = open_job(handle)
    num_kept = planned.increment.num_kept_parts if planned.increment else 0
    limits = _limits_of(stage)
    total = planned.plan.total_shards
    if finished := job.count_records():
        stage.log(f"{finished} of {total} shards are finished already")
    with space_needed(output.uri), _progress(stage, job):
        while True:
            try:
                engine = run_graph(
                    lambda pipeline: build_graph(pipeline, handle, limits, planned.num_parts, num_kept),
                    stage.config,
                    Work(planned.source_bytes, total, decodes=section.verify == "decode"),
                    job_name=name_job(output.uri, output.fingerprint),
                    work_uri=storage.join(output.uri, ".work"),
                    run_id=stage.run,
                )
                break
            except Exception as error:
                if storage.exists(storage.join(output.uri, MANIFEST_NAME)):
                    engine = "another run's engine"
                    break
                if refusal := _find_refusal(output.uri):
                    raise refusal from None
                # The FnApiRunner retries no bundle. A cancelled Dataflow job is not retried.
                previously_finished, finished = finished, job.count_records()
                is_passing = isinstance(error, TryAgain) and resources.beam_runner != "dataflow"
                if not is_passing or finished <= previously_finished:
                    raise
                stage.log(f"{error}; {finished} of {total} shards are finished; retrying the others")
    _finish(stage, output, engine, planned.warnings)


def _find_refusal(output_uri: str) -> ShardlineError | None:
    """Return the error that a worker has published in the output's folder, or None."""
    from sharding.job import REFUSAL_NAME

    try:
        content = storage.read_bytes(storage.join(output_uri, REFUSAL_NAME))
    except (FileNotFoundError, NotADirectoryError):
        return None
    return ErrorDocument.model_validate_json(content).to_error()


def _finish(stage: Stage, output: Output, engine: str, already_logged: Collection[str] = ()) -> None:
    """Check and report the published manifest, or raise the error of the job.

    Args:
        stage: The attempt.
        output: Its folder.
        engine: Description of the runner.
        already_logged: Warnings of the plan.
    """
    if not storage.exists(storage.join(output.uri, MANIFEST_NAME)):
        if error := _find_refusal(output.uri):
            raise error
        raise TryAgain(f"the job ended, and {storage.display(output.uri)} has no manifest; run again to go on")
    stage.log(f"ran on {engine}")
    stage.finished(output, _describe(_accept(stage, output, already_logged)))


@contextlib.contextmanager
def _progress(stage: Stage, job: Job) -> Iterator[None]:
    """Report the number of finished shards while the block runs: it counts their records."""
    ended = threading.Event()
    total = job.planned.plan.total_shards

    def watch() -> None:
        shown = 0
        interval_s = WATCH_INTERVAL_S if storage.is_local(job.output_uri) else REMOTE_WATCH_INTERVAL_S
        while not ended.wait(interval_s):
            began = time.monotonic()
            # Storage errors are reported by the job itself.
            with contextlib.suppress(OSError, ShardlineError):
                # The records are deleted at the end.
                if (num_finished := job.count_records()) > shown:
                    stage.progress(num_finished, total, "shards")
                    shown = num_finished
            interval_s = max(interval_s, 20 * (time.monotonic() - began))

    watcher = threading.Thread(target=watch, name="progress", daemon=True)
    stage.progress(0, total, "shards")
    watcher.start()
    try:
        yield
    finally:
        ended.set()
        watcher.join()
    stage.progress(total, total, "shards")


def _describe(manifest: ShardManifest) -> str:
    samples = sum(split.samples for split in manifest.splits.values())
    by_split = " / ".join(str(manifest.splits[name].samples) for name in SPLITS)
    megabytes = sum(manifest.shards.bytes) / 1e6
    rejected = f", {manifest.count_rejected} rejected" if manifest.rejected else ""
    return (
        f"{samples} samples ({by_split}) in {count_of(len(manifest.shards), f'{manifest.format} shard')}, "
        f"{megabytes:.1f} MB{rejected}"
    )


if __name__ == "__main__":
    # Pillow's warnings are about metadata; errors in pixels are reasons in the manifest.
    warnings.filterwarnings("ignore", category=UserWarning, module=r"PIL\.")
    run_process(lambda: run_stage("shard", shard))
