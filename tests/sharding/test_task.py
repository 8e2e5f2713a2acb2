"""The whole stage on real files: what goes in comes out, once, in the same bytes every time."""

import json
import subprocess
import sys
import time

import numpy as np

from records.decode import decode_rgb
from sharding.reference import make_key
from tests.sharding.reading import read_found


def read_samples(result):
    """Return (split, label, content, key) of every sample, through the index."""
    return [(one.split, one.label, one.content, one.key) for one in read_found(result.folder)]


def read_source(source):
    """Return label, content and key of every file, by relative path."""
    classes = sorted(path.name for path in source.iterdir())
    paths = [path.relative_to(source).as_posix() for path in sorted(source.rglob("*")) if path.is_file()]
    return sorted(
        (classes.index(path.partition("/")[0]), (source / path).read_bytes(), make_key(path.encode()).hex())
        for path in paths
    )


def test_samples_are_exactly_the_input_once_each(run_shard, source, tmp_path):
    result = run_shard(seed=0)
    assert result.code == 0
    manifest, samples = result.manifest, read_samples(result)
    assert sorted(sample[1:] for sample in samples) == read_source(source)
    assert len({sample[3] for sample in samples}) == 60
    # A split is a contiguous range, and says what is in it.
    for name, split in manifest.splits.items():
        of_split = samples[split.first : split.first + split.samples]
        assert {sample[0] for sample in of_split} <= {name}
        assert split.source_bytes == sum(len(sample[2]) for sample in of_split)
        assert split.samples_by_class == np.bincount([sample[1] for sample in of_split], minlength=3).tolist()
    assert sum(split.samples for split in manifest.splits.values()) == 60
    assert manifest.classes == ["ant", "bee", "cow"] and manifest.rejected == []
    assert len(manifest.shards) > 4
    pixels = [decode_rgb(sample[2]).reshape(-1, 3) for sample in samples if sample[0] == "train"]
    every = np.concatenate(pixels).astype(np.float64) / 255
    assert np.allclose(manifest.mean, every.mean(axis=0), rtol=1e-12)
    assert np.allclose(manifest.std, every.std(axis=0), rtol=1e-12)
    # Nothing of time, host or place is in the manifest.
    text = result.content["manifest.json"].decode()
    assert str(tmp_path) not in text and time.strftime("%Y") + "-" not in text
    # A new seed moves samples, but never between splits.
    other = read_samples(run_shard(seed=1))
    assert {sample[3]: sample[0] for sample in other} == {sample[3]: sample[0] for sample in samples}
    assert [sample[3] for sample in other] != [sample[3] for sample in samples]


def test_a_finished_output_is_reused_and_a_damaged_one_is_made_again(run_shard, source, tmp_path):
    first = run_shard()
    content = first.content
    before = {path.name: path.stat().st_mtime_ns for path in first.folder.iterdir()}
    second = run_shard()
    assert second.folder == first.folder
    assert [event["event"] for event in second.events if event["event"] != "log"] == ["start", "folder", "reused"]
    assert {path.name: path.stat().st_mtime_ns for path in first.folder.iterdir()} == before
    # Before a run, a dry run says the same.
    dry = run_shard("--dry-run", printed=True)
    assert dry.stdout.startswith(f"nothing: {first.folder.name} holds this state") and "60 samples" in dry.stdout
    # Reuse is quick: it imports neither Beam nor NumPy.
    config = json.dumps({"sharding": {"source": str(source), "target_shard_bytes": 4096}})
    code = (
        "import sys; from contracts.stage import run_stage; from sharding.task import shard;"
        f"assert run_stage('shard', shard, ['--config-json', {config!r}, '--root', {str(tmp_path / 'out')!r}]) == 0;"
        "assert not {'apache_beam', 'numpy', 'PIL'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)
    path = next(first.folder.glob("train-*"))
    path.write_bytes(b"x" * path.stat().st_size)
    third = run_shard()
    assert "is damaged" in third.stderr and third.content == content
