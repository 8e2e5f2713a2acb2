"""The same bytes on every engine: in this process, and in worker processes."""

import json
import os
import tempfile
from collections import Counter
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, assume, given, settings
from hypothesis import strategies as st

from contracts import storage
from contracts.artifacts import ShardManifest
from contracts.config import SPLITS, SplitFractions
from contracts.stage import run_stage
from sharding.names import is_ignored
from sharding.reference import make_key
from sharding.splits import Splitter
from sharding.task import shard
from tests.sharding.reading import read_found

PROCESSES = {"beam_workers": 2}
# Every name a file system allows, and few enough of them to hold two classes; many share their first byte, the group.
NAMES = st.one_of(
    st.binary(min_size=1, max_size=6),
    st.tuples(st.sampled_from([b"p", b"q", b"\xff", b"\n"]), st.binary(max_size=5)).map(b"".join),
).filter(lambda name: not set(name) & set(b"/\0") and not is_ignored(name))
GROUP_BY = r"/([\s\S])"
SOURCES = st.dictionaries(NAMES, st.tuples(st.integers(0, 1), st.integers(0, 40)), min_size=8, max_size=30)
FORMATS = st.sampled_from(["webdataset", "tfrecord"])
# An example is a run of the stage: shrinking one would take longer than reading it.
WHOLE_STAGE = {
    "deadline": None,
    "suppress_health_check": list(HealthCheck),
    "phases": [Phase.explicit, Phase.generate],
}
SEEDS = st.integers(0, 2**63 - 1)


def write_source(root, files, make_image):
    """Write files by name, class and content number; return the accepted ones as (label, content, key)."""
    expected = []
    for name, (label, number) in files.items():
        path = (b"a", b"b")[label] + b"/" + name
        content = make_image(number, ("png", "jpg")[number % 2]) if number else b"no image"
        full = Path(root) / os.fsdecode(path)
        full.parent.mkdir(parents=True, exist_ok=True)
        full.write_bytes(content)
        if number:
            expected.append((label, content, make_key(path).hex()))
    return sorted(expected)


def choose_splits(files, grouped):
    """Return the split of every file, by key."""
    splitter = Splitter(SplitFractions())
    paths = {(b"a", b"b")[label] + b"/" + name: name for name, (label, _) in files.items()}
    return {
        make_key(path).hex(): SPLITS[splitter.choose(path, name[:1] if grouped else None, None)]
        for path, name in paths.items()
    }


def can_train(files, expected, split_of):
    """Whether there are two classes, each with an accepted image in training."""
    classes = {label for label, _ in files.values()}
    return len(classes) == 2 and {label for label, _, key in expected if split_of[key] == "train"} == classes


def run_in(folder, source, seed, shard_format, resources, grouped):
    """Run the stage; return its folder, or None where it refuses."""
    section = {"source": str(source), "format": shard_format, "target_shard_bytes": 1024, "max_rejected_fraction": 1.0}
    section["group_by"] = GROUP_BY if grouped else ""
    config = {"sharding": {**section, "seed": seed}, "resources": resources}
    code = run_stage("shard", shard, ["--config-json", json.dumps(config), "--output", str(folder)])
    assert code in (0, 2)
    return Path(folder) if code == 0 else None


def check_accepted_once(folder, expected, split_of):
    """Check that each accepted sample is there once, in its split, at the place that the index says."""
    manifest = ShardManifest.load(storage.normalise(folder))
    found = []
    for one in read_found(folder):
        found.append((one.label, one.content, one.key))
        assert one.split == split_of[one.key]
    assert sorted(found) == expected
    assert Counter(sample[2] for sample in found).most_common(1)[0][1] == 1
    splits = [manifest.splits[name] for name in SPLITS]
    ranges = [(split.first, split.first + split.samples) for split in splits]
    assert ranges[0][0] == 0 and ranges[-1][1] == len(found)
    assert all(one[1] == other[0] for one, other in pairwise(ranges))
    assert {path.name for path in folder.iterdir()} - {".stage"} == {"manifest.json"} | {
        entry.name for entry in manifest.owned_files()
    }


def read_folder(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def check_engine(files, seed, shard_format, make_image, resources, grouped):
    """Shard a source in this process and, where `resources` are given, on another engine; compare every byte."""
    with tempfile.TemporaryDirectory() as place:
        source = Path(place) / "raw"
        expected = write_source(source, files, make_image)
        split_of = choose_splits(files, grouped)
        # On another engine an example that is refused by its listing alone shows nothing.
        assume(resources is None or can_train(files, expected, split_of))
        whole = run_in(Path(place) / "o" / "one", source, seed, shard_format, {"beam_workers": 1}, grouped)
        assert (whole is not None) == can_train(files, expected, split_of)
        if whole is not None:
            check_accepted_once(whole, expected, split_of)
        if resources is not None:
            other = run_in(Path(place) / "o" / "other", source, seed, shard_format, resources, grouped)
            assert (other is None) == (whole is None)
            assert other is None or read_folder(other) == read_folder(whole)


@settings(max_examples=10, **WHOLE_STAGE)
@given(SOURCES, SEEDS, FORMATS, st.booleans())
def test_accepted_samples_are_sharded_once(make_image, files, seed, shard_format, grouped):
    check_engine(files, seed, shard_format, make_image, None, grouped)


@pytest.mark.slow
@pytest.mark.timeout(1200)
# One in twenty is refused, as it should be.
@settings(max_examples=240, **WHOLE_STAGE)
@given(SOURCES, SEEDS, FORMATS, st.booleans())
def test_accepted_samples_are_sharded_once_in_many_sources(make_image, files, seed, shard_format, grouped):
    check_engine(files, seed, shard_format, make_image, None, grouped)


@pytest.mark.slow
@settings(max_examples=5, **WHOLE_STAGE)
@given(SOURCES, SEEDS, FORMATS, st.booleans())
def test_worker_processes_write_the_same_bytes_for_any_source(make_image, files, seed, shard_format, grouped):
    check_engine(files, seed, shard_format, make_image, PROCESSES, grouped)


@pytest.fixture
def writers(tmp_path, monkeypatch):
    """Return the shards that each process published, as every process of the test notes them."""
    folder = tmp_path / "writers"
    folder.mkdir()
    monkeypatch.setenv("SHARDLINE_TEST_WRITERS", str(folder))
    spy = tmp_path / "spy"
    spy.mkdir()
    (spy / "sitecustomize.py").write_text(SPY)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(spy), os.environ.get("PYTHONPATH", "")]))
    return lambda: {path.name: path.read_text().split() for path in folder.iterdir()}


# Runs in every process that is started with it on its path, and notes each shard that it publishes.
SPY = """
import os, sys

def note(event, arguments):
    name = os.path.basename(os.fspath(arguments[1])) if event == "os.link" else ""
    if name.endswith(".tar"):
        with open(os.path.join(os.environ["SHARDLINE_TEST_WRITERS"], str(os.getpid())), "a") as notes:
            notes.write(name + " ")

sys.addaudithook(note)
"""


def check_work_is_shared(process, writers, whole):
    """Check a finished process: its bytes, and that two workers wrote each shard once, two or more apiece."""
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    folder = storage.local_path(out.strip())
    assert read_folder(folder) == whole
    by_process = writers()
    assert len(by_process) == 2 and all(len(shards) >= 2 for shards in by_process.values()), by_process
    assert max(Counter(shard for shards in by_process.values() for shard in shards).values()) == 1


def test_worker_processes_share_the_shards_and_write_each_once(run_shard, in_process, start_shard, writers):
    whole = run_shard(root="one").content
    check_work_is_shared(start_shard("two", PROCESSES), writers, whole)
