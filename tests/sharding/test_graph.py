"""The graph on the FnApiRunner: only references travel, and their order changes nothing."""

import random
import sys

import apache_beam as beam
import pytest
from apache_beam.runners.portability.fn_api_runner import FnApiRunner

from contracts import storage
from contracts.config import ShardingSection
from sharding.graph import build_graph
from sharding.manifest import Commit
from sharding.plan import make_plan
from sharding.runners import make_pipeline
from sharding.shard import Job
from sharding.sources import list_source


@pytest.fixture
def make_commit(source, tmp_path):
    listing = list_source(ShardingSection(source=str(source)))
    samples = [(reference.path, reference.split, reference.size) for reference in listing.references]
    plan = make_plan(samples, seed=3, target_shard_bytes=2000, min_shards=1)

    def make(name):
        job = Job(listing.uri, storage.normalise(tmp_path / name), listing.classes, "tfrecord", plan)
        return list(listing.references), Commit(job, "f" * 16, {"listing": listing.sha256}, 0.0)

    return make


def run_graph(references, commit):
    with make_pipeline() as pipeline:
        build_graph(pipeline, references, commit)
    folder = storage.local_path(commit.job.output_uri)
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_order_of_references_changes_nothing_and_a_second_run_adds_nothing(make_commit):
    references, commit = make_commit("one")
    whole = run_graph(references, commit)
    assert "manifest.json" in whole and "index.bin" in whole and len(whole) > 8
    # The same output again, as after a lost answer: everything is there already.
    assert run_graph(references, commit) == whole
    references, commit = make_commit("two")
    random.Random(5).shuffle(references)
    assert run_graph(references, commit) == whole


def test_content_never_travels(make_commit, source):
    references, commit = make_commit("one")
    pipeline = make_pipeline()
    build_graph(pipeline, references, commit)
    graph = pipeline.to_runner_api().SerializeToString()
    biggest = max(source.rglob("*.*"), key=lambda path: path.stat().st_size).read_bytes()
    assert biggest not in graph and len(graph) < 200_000
    assert isinstance(pipeline.runner, FnApiRunner)


def test_the_command_line_of_the_process_is_not_read(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["stage", "--runner=DataflowRunner", "--streaming"])
    pipeline = make_pipeline()
    assert isinstance(pipeline.runner, FnApiRunner)
    options = pipeline.options.view_as(beam.options.pipeline_options.StandardOptions)
    assert not options.streaming and options.runner is None
