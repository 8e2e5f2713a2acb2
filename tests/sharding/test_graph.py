"""The graph on the FnApiRunner: only references travel, their order changes nothing, what is done is not repeated."""

import random
import sys

import apache_beam as beam
import pytest
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.runners.portability.fn_api_runner import FnApiRunner

from contracts import storage
from contracts.artifacts import MANIFEST_NAME, ShardManifest
from contracts.config import ShardingSection
from contracts.errors import ConfigError, ErrorDocument, StorageError, TryAgain
from contracts.stage import find_output_damage
from sharding import graph
from sharding import job as job_module
from sharding.commit import manifest
from sharding.commit.manifest import Commit
from sharding.commit.records import save_record
from sharding.graph import build_graph
from sharding.job import CUTS_NAME, REVISION, JobHandle, PlannedJob, made_with, open_job, plan_uri
from sharding.plan import make_plan
from sharding.runners.run import fnapi_pipeline
from sharding.sources import list_source
from sharding.sources.parts import pack, read_part
from sharding.write.shard import write_shard
from tests.sharding.reading import read_found

COMMIT = Commit(0.0, "warn")


@pytest.fixture
def make_job(source, tmp_path):
    listing = list_source(ShardingSection(source=str(source)), tmp_path)
    references = list(listing.references())
    plan = make_plan(listing, seed=3, target_shard_bytes=2000)

    def make(name, references=references, part=7, **fields):
        output_uri = storage.normalise(tmp_path / name)
        parts = [references[at : at + part] for at in range(0, len(references), part)]
        planned = PlannedJob(
            revision=REVISION,
            fingerprint="f" * 16,
            made_from={"listing": listing.sha256},
            source_uri=listing.uri,
            classes=["ant", "bee", "cow"],
            multi_label=False,
            sharding=ShardingSection(source=str(source), format="tfrecord"),
            seed=3,
            listing="listing-1",
            num_parts=len(parts),
            num_files=60,
            source_bytes=listing.total_bytes,
            training_files=sum(listing.counts[0]),
            ignored=[],
            num_ignored=0,
            warnings=[],
        )
        folder = planned.listing_uri(output_uri)
        storage.publish(storage.join(folder, CUTS_NAME), plan.to_bytes())
        for number, own in enumerate(parts):
            storage.publish(storage.join(folder, f"references-{number:05d}"), pack(own))
        storage.publish(plan_uri(output_uri, planned.fingerprint), planned.model_dump_json().encode())
        return JobHandle(**{**vars(JobHandle(output_uri, "f" * 16, "listing-1", REVISION, 1.0, 0)), **fields})

    return make


def run_graph(handle, *, flags=(), commit=COMMIT):
    opened = open_job(handle)
    with fnapi_pipeline(1, flags) as pipeline:
        build_graph(pipeline, handle, commit, opened.planned.num_parts, len(opened.groups), 0)
    return read_files(handle)


def read_files(handle):
    folder = storage.local_path(handle.output_uri)
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


def test_order_of_references_changes_nothing(make_job):
    whole = run_graph(make_job("one"))
    assert MANIFEST_NAME in whole and len(whole) > 8
    references = read_references(make_job("parts"))
    random.Random(5).shuffle(references)
    assert run_graph(make_job("two", references, part=50)) == whole


def read_references(handle):
    planned = open_job(handle).planned
    folder = planned.listing_uri(handle.output_uri)
    return [one for number in range(planned.num_parts) for one in read_part(folder, number)]


def test_bundles_that_run_twice_change_nothing(make_job):
    whole = run_graph(make_job("one"))
    assert run_graph(make_job("two"), flags=("--direct_runner_bundle_repeat=2",)) == whole


def test_neither_content_nor_references_nor_shards_are_in_the_graph(make_job):
    sizes = []
    for count in (10, 100_000):
        pipeline = beam.Pipeline(runner=FnApiRunner(), options=PipelineOptions([]))
        build_graph(pipeline, make_job(f"n{count}"), COMMIT, count // 50 + 1, count // 256 + 1, 0)
        serialised = pipeline.to_runner_api().SerializeToString()
        assert b"ant/00.png" not in serialised
        sizes.append(len(serialised))
    assert sizes[1] - sizes[0] < 100_000


def test_the_command_line_of_the_process_is_not_read(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["stage", "--runner=DataflowRunner", "--streaming"])
    with fnapi_pipeline() as pipeline:
        assert isinstance(pipeline.runner, FnApiRunner)
    options = pipeline.options.view_as(beam.options.pipeline_options.StandardOptions)
    assert not options.streaming and options.runner is None


def test_a_worker_of_another_revision_is_refused(make_job):
    handle = make_job("one", revision=REVISION - 1)
    with pytest.raises(ConfigError, match=f"has revision {REVISION}"):
        open_job(handle)


def test_a_late_worker_of_another_version_changes_nothing(make_job, monkeypatch):
    """Before, beside and after the job, it writes under names of its own."""
    whole = run_graph(make_job("one"))
    handle = make_job("two")
    opened = open_job(handle)
    first = read_references(handle)[:20]

    def write_late(shards):
        with monkeypatch.context() as patch:
            patch.setattr(job_module, "made_with", lambda: {**made_with(), "pillow": "1.0"})
            names = []
            for shard in shards:
                record = write_shard(opened.stem_of(shard), shard, 0, first, opened.job)
                save_record(record, opened)
                names.append(record.name)
            return names

    late = write_late([0])
    merges = graph.merge_group

    def merge_beside(number, of):
        late.extend(write_late([1]))
        return merges(number, of)

    with monkeypatch.context() as patch:
        patch.setattr(graph, "merge_group", merge_beside)
        run_graph(handle)
    late += write_late([2])
    found = read_files(handle)
    assert {name: found[name] for name in found.keys() - set(late)} == whole and set(late) <= found.keys()
    assert find_output_damage(handle.output_uri, ShardManifest.load(handle.output_uri)) is None


def test_a_deleted_shard_is_noticed_and_written_again(make_job, monkeypatch):
    whole = run_graph(make_job("one"))
    handle = make_job("two")
    summaries = manifest.load_summaries

    def delete_one(opened):
        for path in storage.local_path(handle.output_uri).glob("train-*-00001.tfrecord"):
            path.unlink()
        return summaries(opened)

    with monkeypatch.context() as patch:
        patch.setattr(manifest, "load_summaries", delete_one)
        with pytest.raises(TryAgain, match="was deleted or cut short"):
            run_graph(handle)
    assert run_graph(handle) == whole


def test_a_step_that_was_refused_leaves_no_shard_without_its_files(make_job, monkeypatch):
    """Another run may delete the refusal before the shards are written."""
    handle = make_job("one")
    reads = graph.read_part_fields

    def refuse(folder_uri, number):
        if number == 3:
            raise StorageError("no permission", allowed="x", todo="x")
        return reads(folder_uri, number)

    with monkeypatch.context() as patch:
        patch.setattr(graph, "read_part_fields", refuse)
        with pytest.raises(RuntimeError, match="no permission"):
            run_graph(handle)
    refusal = storage.read_bytes(storage.join(handle.output_uri, "refusal.json"))
    assert ErrorDocument.model_validate_json(refusal).kind == "StorageError"
    storage.delete(storage.join(handle.output_uri, "refusal.json"))
    run_graph(handle)
    assert len(read_found(storage.local_path(handle.output_uri))) == 60


def test_whoever_comes_after_the_manifest_changes_nothing(make_job):
    handle = make_job("one")
    opened = open_job(handle)
    whole = run_graph(handle)
    # Its work folder is gone by now, and what is asked for is known from before.
    with fnapi_pipeline(1) as pipeline:
        build_graph(pipeline, handle, COMMIT, opened.planned.num_parts, len(opened.groups), 0)
    assert read_files(handle) == whole
