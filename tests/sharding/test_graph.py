"""The graph on the FnApiRunner: only references travel, their order changes nothing, what is done is not repeated."""

import random

import apache_beam as beam
import pytest
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.runners.portability.fn_api_runner import FnApiRunner

from contracts import storage
from contracts.artifacts import MANIFEST_NAME, ShardManifest
from contracts.errors import ConfigError, ErrorDocument, StorageError, TryAgain
from contracts.stage import find_output_damage
from sharding import commit, graph
from sharding import job as job_module
from sharding.graph import build_graph, read_references
from sharding.job import JobHandle, PlannedJob, made_with, open_job, plan_uri
from sharding.limits import Limits
from sharding.reference import write_part
from sharding.runners import fnapi_pipeline
from sharding.write import write_shard
from tests.sharding.reading import read_found

LIMITS = Limits(0.0, "warn")
FORMAT = {"format": "tfrecord", "target_shard_bytes": 2000}


def run_graph(handle, *, flags=(), num_parts=None, processes=1):
    planned = open_job(handle).planned
    with fnapi_pipeline(processes, flags) as pipeline:
        build_graph(pipeline, handle, LIMITS, num_parts or planned.num_parts)
    return read_files(handle)


def read_files(handle):
    folder = storage.local_path(handle.output_uri)
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


_WHOLE: dict[str, bytes] = {}


@pytest.fixture
def whole(make_job):
    """The files of an undisturbed run, which is made once: sources of all tests have equal content and times."""
    if not _WHOLE:
        _WHOLE.update(run_graph(make_job("one", **FORMAT)[0]))
    return _WHOLE


def test_order_of_references_and_bundles_that_run_twice_change_nothing(make_job, whole, tmp_path):
    assert MANIFEST_NAME in whole and len(whole) > 15
    handle, _ = make_job("two", **FORMAT)
    job = open_job(handle)
    references = read_references(job, 0)
    random.Random(5).shuffle(references)
    for number in range(3):
        write_part(tmp_path / "part", references[number * 20 : number * 20 + 20])
        storage.replace(job.part_uri(number), (tmp_path / "part").read_bytes())
    assert run_graph(handle, num_parts=3, flags=("--direct_runner_bundle_repeat=2",)) == whole


def test_neither_content_nor_references_nor_shards_are_in_the_graph(make_job):
    sizes = []
    for count in (10, 100_000):
        pipeline = beam.Pipeline(runner=FnApiRunner(), options=PipelineOptions([]))
        build_graph(pipeline, make_job(f"n{count}")[0], LIMITS, count // 50 + 1)
        serialised = pipeline.to_runner_api().SerializeToString()
        assert b"ant/00.png" not in serialised
        sizes.append(len(serialised))
    assert sizes[1] - sizes[0] < 100_000


def test_a_worker_of_another_revision_is_refused(make_job):
    handle, _ = make_job()
    with pytest.raises(ConfigError, match=f"has revision {job_module.REVISION}"):
        open_job(JobHandle(handle.output_uri, handle.fingerprint, handle.listing, job_module.REVISION - 1))


def test_a_late_worker_of_another_version_changes_nothing(make_job, whole, monkeypatch):
    """Before, beside and after the job, it writes under names of its own."""
    handle, references = make_job("two", **FORMAT)

    def write_late(shard):
        with monkeypatch.context() as patch:
            patch.setattr(job_module, "made_with", lambda: {**made_with(), "pillow": "1.0"})
            planned = PlannedJob.model_validate_json(
                storage.read_bytes(plan_uri(handle.output_uri, handle.fingerprint))
            )
            job = job_module.Job(handle.output_uri, planned)
            (entry,) = write_shard(job, shard, references[:20]).shards
            return {entry.name, entry.index.name}

    late = write_late(0)
    late |= write_late(1)
    run_graph(handle)
    found = read_files(handle)
    assert {name: found[name] for name in found.keys() - late} == whole and late <= found.keys()
    assert find_output_damage(handle.output_uri, ShardManifest.load(handle.output_uri)) is None


def test_a_deleted_file_is_noticed_and_written_again(make_job, whole, monkeypatch):
    handle, _ = make_job("two", **FORMAT)

    def delete_one(*_, **__):
        for path in storage.local_path(handle.output_uri).glob("train-*-00001.idx.npy"):
            path.unlink()

    # Behind the last shard, and before the files are looked for.
    with monkeypatch.context() as patch:
        patch.setattr(commit, "check_training_classes", delete_one)
        with pytest.raises((TryAgain, RuntimeError), match="is missing, since it was written"):
            run_graph(handle)
    assert run_graph(handle) == whole


def test_a_shard_of_other_bytes_without_a_record_is_written_again(make_job, whole):
    """An attempt that rejected other files, by a crash or the time limit, was killed before it left its record."""
    handle, references = make_job("two", **FORMAT)
    write_shard(open_job(handle), 0, references[:1], {})
    with pytest.raises((TryAgain, RuntimeError), match="it is written again"):
        run_graph(handle)
    assert run_graph(handle) == whole


def test_a_step_that_was_refused_leaves_no_shard_without_its_files(make_job, monkeypatch):
    """Another run may delete the refusal before the shards are written."""
    handle, _ = make_job(**FORMAT)

    def refuse(job, number):
        raise StorageError("no permission", allowed="x", todo="x")

    with monkeypatch.context() as patch:
        patch.setattr(graph, "read_references", refuse)
        with pytest.raises(RuntimeError, match="no permission"):
            run_graph(handle)
    refusal = storage.read_bytes(storage.join(handle.output_uri, "refusal.json"))
    assert ErrorDocument.model_validate_json(refusal).kind == "StorageError"
    storage.delete(storage.join(handle.output_uri, "refusal.json"))
    run_graph(handle)
    assert len(read_found(storage.local_path(handle.output_uri))) == 60


def test_whoever_comes_after_the_manifest_changes_nothing(make_job):
    handle, _ = make_job(**FORMAT)
    planned = open_job(handle).planned
    whole = run_graph(handle)
    # Its work folder is gone by now, and what is asked for is known from before.
    with fnapi_pipeline(1) as pipeline:
        build_graph(pipeline, handle, LIMITS, planned.num_parts)
    assert read_files(handle) == whole
