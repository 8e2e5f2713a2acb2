"""The graph on the FnApiRunner: only references travel, and their order changes nothing."""

import random
import sys

import apache_beam as beam
import pytest
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.runners.portability.fn_api_runner import FnApiRunner

from contracts import storage
from contracts.config import ShardingSection
from contracts.errors import TryAgain
from contracts.refusal import find_refusal
from records.index import INDEX_NAME, open_index
from sharding import graph, manifest
from sharding.attempt import WORK_NAME, take_over
from sharding.commit.manifest import Commit
from sharding.graph import build_graph
from sharding.plan import make_plan, place
from sharding.references import pack, place_part, unpack, write_parts
from sharding.runners.run import fnapi_pipeline
from sharding.sources import list_source
from sharding.write.shard import Job


@pytest.fixture
def make_commit(source, tmp_path):
    listing = list_source(ShardingSection(source=str(source)))
    samples = [(reference.path, reference.split, reference.size) for reference in listing.references]
    plan = make_plan(samples, seed=3, target_shard_bytes=2000, min_shards=1)

    def make(name, **fields):
        job = Job(listing.uri, storage.normalise(tmp_path / name), listing.classes, "tfrecord", plan, **fields)
        return list(listing.references), Commit(job, "f" * 16, {"listing": listing.sha256}, 0.0)

    return make


def run_graph(references, commit, *, flags=(), part_references=7):
    num_parts = write_parts(commit.job.work_uri, references, part_references)
    with fnapi_pipeline(1, flags) as pipeline:
        build_graph(pipeline, num_parts, commit)
    return read_files(commit)


def read_files(commit):
    folder = storage.local_path(commit.job.output_uri)
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.name != WORK_NAME}


def test_order_of_references_changes_nothing_and_a_second_run_adds_nothing(make_commit):
    references, commit = make_commit("one")
    whole = run_graph(references, commit)
    assert "manifest.json" in whole and "index.bin" in whole and len(whole) > 8
    # The same output again, as after a lost answer: everything is there already.
    assert run_graph(references, commit) == whole
    references, commit = make_commit("two")
    random.Random(5).shuffle(references)
    assert run_graph(references, commit, part_references=50) == whole


def test_bundles_that_run_twice_change_nothing(make_commit):
    references, commit = make_commit("one")
    whole = run_graph(references, commit)
    references, commit = make_commit("two")
    assert run_graph(references, commit, flags=("--direct_runner_bundle_repeat=2",)) == whole


def test_neither_content_nor_references_are_in_the_graph(make_commit, source):
    references, commit = make_commit("one")
    sizes = []
    for many in (references, references * 50):
        pipeline = beam.Pipeline(runner=FnApiRunner(), options=PipelineOptions([]))
        build_graph(pipeline, write_parts(commit.job.work_uri + "/x" * len(sizes), many), commit)
        serialised = pipeline.to_runner_api().SerializeToString()
        assert references[0].path not in serialised
        sizes.append(len(serialised))
    # Attributes hold ids of their own, so sizes are equal up to digits.
    assert abs(sizes[0] - sizes[1]) < 100


def test_the_command_line_of_the_process_is_not_read(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["stage", "--runner=DataflowRunner", "--streaming"])
    with fnapi_pipeline() as pipeline:
        assert isinstance(pipeline.runner, FnApiRunner)
    options = pipeline.options.view_as(beam.options.pipeline_options.StandardOptions)
    assert not options.streaming and options.runner is None


def test_an_older_job_leaves_the_manifest_to_its_successor(make_commit):
    references, commit = make_commit("one", attempt="older")
    take_over(commit.job.output_uri, commit.fingerprint, "newer")
    assert set(run_graph(references, commit)) == {".writing"}
    references, newer = make_commit("one", attempt="newer")
    whole = run_graph(references, newer)
    assert "manifest.json" in whole
    assert run_graph(references, commit) == whole


@pytest.mark.parametrize("error", [TryAgain("gone"), storage.AlreadyPublished("x"), FileNotFoundError("references")])
def test_what_goes_wrong_in_an_overtaken_job_is_nothing_to_its_successor(make_commit, monkeypatch, error):
    references, commit = make_commit("one", attempt="older")
    take_over(commit.job.output_uri, commit.fingerprint, "older")

    def overtaken(*_):
        take_over(commit.job.output_uri, commit.fingerprint, "newer")
        raise error

    monkeypatch.setattr(graph, "write_shard", overtaken)
    assert set(run_graph(references, commit)) == {".writing"}


def test_another_jobs_content_under_the_same_name_is_for_another_attempt(make_commit):
    references, commit = make_commit("one", attempt="mine")
    take_over(commit.job.output_uri, commit.fingerprint, "mine")
    storage.publish(storage.join(commit.job.output_uri, "train-00000.tfrecord"), b"other")
    files = run_graph(references, commit)
    assert "manifest.json" not in files and isinstance(find_refusal(commit.job.output_uri), TryAgain)


def test_a_job_that_is_overtaken_while_it_looks_for_copies_commits_nothing(make_commit, monkeypatch):
    references, commit = make_commit("one", attempt="older")
    take_over(commit.job.output_uri, commit.fingerprint, "older")
    monkeypatch.setattr(
        manifest, "find_duplicates", lambda *_: take_over(commit.job.output_uri, commit.fingerprint, "newer")
    )
    assert "manifest.json" not in run_graph(references, commit)


def test_parts_hold_every_reference_once_whatever_its_name(make_commit, tmp_path):
    references, commit = make_commit("one")
    references = [references[0]._replace(path=b"\xff\n\0 odd"), *references]
    work, plan = storage.normalise(tmp_path / "work"), commit.job.plan
    assert write_parts(work, iter(references), 25) == 3
    found = [
        (shard, one) for number in range(3) for shard, blob in place_part(work, number, plan) for one in unpack(blob)
    ]
    assert sorted(one for _, one in found) == sorted(references)
    assert all(shard == place(plan, one.path, one.split) for shard, one in found)
    assert unpack(pack([])) == [] and write_parts(storage.normalise(tmp_path / "none"), []) == 0


def test_the_index_is_in_the_order_of_the_shards(make_commit):
    references, commit = make_commit("one")
    run_graph(references, commit)
    index = open_index(storage.local_path(commit.job.output_uri) / INDEX_NAME)
    assert len(index) == len(references)
    assert index["shard"].tolist() == sorted(index["shard"].tolist())
