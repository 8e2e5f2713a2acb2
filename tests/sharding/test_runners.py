"""What the graph runs on: the choice, the flags, and what a missing or a dead part of it means."""

import json
import os
import subprocess
import sys
import threading
import time

import apache_beam as beam
import pytest
from apache_beam.runners.dataflow.internal.apiclient import DataflowJobAlreadyExistsError
from apache_beam.runners.worker import data_plane
from apache_beam.testing.util import assert_that, equal_to

from contracts import storage
from contracts.config import ResourcesSection, RunConfig
from contracts.config.load import parse_config
from contracts.errors import ConfigError, TryAgain
from contracts.fingerprint import shard_inputs
from sharding import dataflow
from sharding import runners as work_module
from sharding.dataflow import dataflow_flags
from sharding.runners import Work, choose_processes, fnapi_pipeline, run_graph
from tests.conftest import small_config, write_pictures

GIB = 1 << 30


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("dask", "wrong data"),
        ("DaskRunner", "wrong data"),
        ("DirectRunner", "Prism"),
        ("prism", "downloads"),
        ("FlinkRunner", "no job service"),
        ("nonsense", "fnapi"),
    ],
)
def test_other_runners_are_refused_with_the_reason(name, reason):
    with pytest.raises(ConfigError, match=reason) as refusal:
        parse_config({"resources": {"beam_runner": name}}, where="test")
    assert name in str(refusal.value)


def test_engines_move_no_fingerprint():
    plain, other = (
        parse_config(values, where="test")
        for values in (
            {},
            {
                "resources": {
                    "beam_runner": "dataflow",
                    "beam_workers": 3,
                },
                "cloud": {"project": "p", "region": "r", "labels": {"a": "b"}},
                "dataflow": {"max_workers": 3},
            },
        )
    )
    assert shard_inputs(plain, "listing") == shard_inputs(other, "listing")


@pytest.mark.parametrize(
    ("section", "key", "value"),
    [
        ("resources", "beam_workers", 0),
        ("resources", "beam_workers", 1025),
        ("cloud", "labels", {"a": 1}),
        ("dataflow", "max_workers", 0),
        ("dataflow", "machine", "n1"),
    ],
)
def test_ranges(section, key, value):
    with pytest.raises(ConfigError, match=key):
        parse_config({section: {key: value}}, where="test")


@pytest.mark.parametrize(
    ("work", "processes"),
    [
        (Work(GIB // 100, 100, decodes=True), 1),
        (Work(GIB // 8, 100, decodes=False), 1),
        (Work(GIB, 100, decodes=True), 4),
        (Work(10 * GIB, 100, decodes=False), 4),
        (Work(10 * GIB, 3, decodes=False), 3),
        (Work(10 * GIB, 1, decodes=True), 1),
        (Work(0, 0, decodes=True), 1),
    ],
)
def test_processes_are_used_where_they_save_more_than_their_start(monkeypatch, work, processes):
    monkeypatch.setattr(work_module, "available_cores", lambda: 4)
    assert choose_processes(ResourcesSection(), work) == processes
    assert choose_processes(ResourcesSection(beam_workers=7), work) == 7


# A failed graph closes the channels of bundles that still run.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize("workers", [1, 2])
def test_an_error_for_another_attempt_keeps_its_kind_on_its_way_back(tmp_path, workers):
    """As when a bucket does not answer a worker that asks whose turn it is."""
    (tmp_path / "a").write_bytes(b"x")
    wanted = storage.ReadRequest(storage.normalise(tmp_path / "a"), crc32c="00000000")
    config = RunConfig(resources=ResourcesSection(beam_workers=workers))
    with pytest.raises(TryAgain, match=r"crc32c"):
        run_graph(
            lambda pipeline: pipeline | beam.Create([[wanted]]) | beam.Map(storage.read_many),
            config,
            Work(1, 1, decodes=False),
            job_name="job",
            work_uri=storage.normalise(tmp_path),
        )
    # They end with an error of their own: here, not in a later test.
    for thread in threading.enumerate():
        if thread.name == "read_grpc_client_inputs":
            thread.join(30)


def test_a_dataflow_job_of_another_run_is_joined(monkeypatch):
    def refuse(*_, **__):
        raise DataflowJobAlreadyExistsError("There is already active job named shardline-1")

    monkeypatch.setattr(dataflow, "submit", refuse)
    config = RunConfig(resources=ResourcesSection(beam_runner="dataflow"))
    waited_for = []
    monkeypatch.setattr(dataflow, "wait_for", lambda _, job_id: waited_for.append(job_id))

    def run():
        return run_graph(None, config, Work(1, 1, decodes=False), job_name="shardline-1", work_uri="gs://b/o")

    monkeypatch.setattr(dataflow, "find_job", lambda *_: "there")
    assert "job there of this name runs already" in run()
    assert waited_for == ["there"]
    monkeypatch.setattr(dataflow, "find_job", lambda *_: None)
    with pytest.raises(TryAgain, match="shardline-1 has just ended"):
        run()


def test_flags_for_dataflow():
    with pytest.raises(ConfigError, match=r"cloud.project, cloud.region, cloud.images.cpu"):
        dataflow_flags(RunConfig(), job_name="job", output_uri="gs://b/o")
    cloud = {"project": "p", "region": "r", "images": {"cpu": f"a.io/i@sha256:{64 * '0'}"}}
    config = parse_config({"cloud": cloud}, where="test")
    flags = dataflow_flags(config, job_name="job", output_uri="gs://bucket/o/x")
    assert "--temp_location=gs://bucket/dataflow/temp" in flags
    assert "--staging_location=gs://bucket/dataflow/temp" in flags
    assert not [flag for flag in flags if flag.endswith("=") or "save_main_session" in flag]
    with pytest.raises(ConfigError, match="gs://BUCKET"):
        dataflow_flags(config, job_name="job", output_uri="file:///o")
    private = parse_config(
        {"cloud": {**cloud, "labels": {"b": "2", "a": "1"}}, "dataflow": {"public_ips": False}},
        where="test",
    )
    flags = dataflow_flags(private, job_name="job", output_uri="gs://bucket/o/x")
    assert "--no_use_public_ips" in flags
    assert [flag for flag in flags if flag.startswith("--labels")] == ["--labels=a=1", "--labels=b=2"]


def _wait_and_say(number):
    time.sleep(1.3)
    return [(0, threading.current_thread().name + str(number))]


def test_no_other_thread_empties_the_buffers_of_a_bundle(monkeypatch):
    """Beam clears a buffer that it has read without a lock: what was written in between is lost (runners/run.py)."""
    flushed_by = []
    flush = data_plane.SizeBasedBufferingClosableOutputStream.flush

    def spy(stream):
        flushed_by.append(type(threading.current_thread()))
        flush(stream)

    monkeypatch.setattr(data_plane.SizeBasedBufferingClosableOutputStream, "flush", spy)
    with fnapi_pipeline(2) as pipeline:
        grouped = pipeline | beam.Create([1, 2]) | beam.FlatMap(_wait_and_say) | beam.GroupByKey()
        assert_that(grouped | beam.Map(lambda one: len(one[1])), equal_to([2]))
    assert data_plane.PeriodicThread not in flushed_by


def test_workers_are_not_asked_for_behind_a_proxy(tmp_path):
    write_pictures(tmp_path / "source", per_class=8)
    sections = small_config(sharding={"source": str(tmp_path / "source")}, resources={"beam_workers": 2})
    command = ["-m", "sharding.task", "--output", str(tmp_path / "out"), "--config-json", json.dumps(sections)]
    # Nobody listens there. gRPC would try for a minute, and end with "FutureTimeoutError:".
    proxies = dict.fromkeys(("http_proxy", "https_proxy"), "http://127.0.0.1:9")
    unspared = {name: text for name, text in os.environ.items() if name.lower() != "no_proxy"}
    done = subprocess.run([sys.executable, *command], env={**unspared, **proxies}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "2 processes" in done.stderr
