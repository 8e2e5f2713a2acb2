"""The dry run: it names what the run then writes, and does nothing."""

import json
import re

import pytest

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


def test_a_price_file_gives_the_cost(run_shard, tmp_path):
    prices = tmp_path / "prices.yaml"
    prices.write_text("vcpu_hour: 3600e6\ngb_hour: 0\nshuffle_gib: 0\ncurrency: EUR\n")
    dry = run_shard("--dry-run", "--prices", str(prices), printed=True)
    source_bytes = int(re.search(r"from 60 files of (\d+) bytes", dry.stdout)[1])
    cost = float(re.search(r"([\d.]+) EUR by the prices given", dry.stdout)[1])
    assert cost == pytest.approx(source_bytes / 30, rel=1e-3)
    assert "EUR" not in run_shard("--dry-run", printed=True).stdout


@pytest.mark.parametrize("content", ["vcpu_hour: 1\n", "vcpu_hour: [1]\ngb_hour: 1\nshuffle_gib: 1\n", "- 1\n"])
def test_a_bad_price_file_is_refused(run_shard, tmp_path, content):
    prices = tmp_path / "prices.yaml"
    prices.write_text(content)
    dry = run_shard("--dry-run", "--prices", str(prices), printed=True)
    assert dry.code == 2 and "prices.yaml" in dry.stderr


def test_a_missing_source_is_refused(run_shard, tmp_path):
    dry = run_shard("--dry-run", source=str(tmp_path / "nowhere"), printed=True)
    assert dry.code == 2 and "does not exist" in dry.stderr
