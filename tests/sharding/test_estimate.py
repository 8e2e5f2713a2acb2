"""The dry run: it names what the run then writes, and does nothing."""

import json
import os
import re

import pytest

from contracts import storage
from contracts.config import RunConfig
from sharding.estimate import describe_probed
from sharding.probe import probe
from sharding.sources import Reference

FORMATS = ("webdataset", "tfrecord")


def read_estimate(text):
    """Return sizes by shard, and the line of totals."""
    sizes = dict(re.findall(r"^(\S+-\d{5}\.\w+)  (\d+) bytes$", text, re.MULTILINE))
    return {name: int(size) for name, size in sizes.items()}


@pytest.mark.parametrize("shard_format", FORMATS)
@pytest.mark.parametrize("verify", ["decode", "none"])
def test_the_run_writes_what_the_dry_run_names(run_shard, capsys, tmp_path, shard_format, verify):
    dry = run_shard("--dry-run", format=shard_format, verify=verify, printed=True)
    assert dry.code == 0, dry.stderr
    assert not (tmp_path / "out").exists()
    estimated = read_estimate(dry.stdout)
    written = {entry.name: entry.bytes for entry in run_shard(format=shard_format, verify=verify).manifest.shards}
    assert list(estimated) == sorted(estimated, key=lambda name: list(written).index(name))
    assert set(estimated) == set(written) and len(written) > 4
    if (shard_format, verify) == ("webdataset", "none"):
        assert estimated == written
    for name, size in written.items():
        assert abs(estimated[name] - size) <= 0.02 * size
    assert f"{len(written)} shards, {sum(estimated.values())} bytes, from 60 files" in dry.stdout


def test_several_labels_are_counted_as_they_are_written(run_shard, source):
    paths = sorted(path.relative_to(source).as_posix() for path in source.glob("*/*"))
    rows = [json.dumps({"uri": path, "label": [path[:3], "all of them"]}) for path in paths]
    (source / "list.jsonl").write_text("\n".join(rows))
    section = {"source": str(source / "list.jsonl"), "verify": "none"}
    estimated = read_estimate(run_shard("--dry-run", printed=True, **section).stdout)
    assert estimated == {entry.name: entry.bytes for entry in run_shard(**section).manifest.shards}


def test_a_probe_estimates_what_the_run_then_writes(run_shard, source):
    references = [
        Reference(os.fsencode(path), 0, 0, path.stat().st_size, path.stat().st_mtime_ns)
        for path in sorted(source.glob("*/*"))
    ]
    written = run_shard(format="webdataset").manifest
    config = RunConfig.model_validate({"sharding": {"source": str(source), "target_shard_bytes": 4096}})
    found = probe(iter(references), len(references), storage.normalise(source), config.sharding, (b"ant", b"bee"))
    told = describe_probed(found, config)
    shards, total = re.search(r"about (\d+) shards, (\d+) bytes, from 60 files", told).groups()
    assert abs(int(total) - sum(entry.bytes for entry in written.shards)) <= 0.1 * int(total)
    assert abs(int(shards) - len(written.shards)) <= 3, "shards of a split are counted by shares, not by draws"
    assert "60 of 60 files were looked at: 0 cannot be used" in told
    assert "GiB shuffled" in told


def test_the_dry_run_tells_what_it_found_and_refuses_what_is_certain_to_fail(run_shard, source):
    (source / "ant" / "00.png").write_bytes(b"no image")
    dry = run_shard("--dry-run", printed=True, max_rejected_fraction=0.1)
    assert dry.code == 0 and "60 of 60 files were looked at: 1 cannot be used" in dry.stdout
    assert "1: not an image of a known format" in dry.stdout and "(ant/00.png)" in dry.stdout
    assert "bytes of shards, if all files are like those that were read" in dry.stdout
    refused = run_shard("--dry-run", printed=True, max_rejected_fraction=0.01)
    assert refused.code == 2 and "ant/00.png: not an image" in refused.stderr


def test_a_missing_source_is_refused(run_shard, tmp_path):
    dry = run_shard("--dry-run", source=str(tmp_path / "nowhere"), printed=True)
    assert dry.code == 2 and "does not exist" in dry.stderr
