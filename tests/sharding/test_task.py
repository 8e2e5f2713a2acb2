"""The whole stage on real files: what goes in comes out, once, in the same bytes every time."""

import json
import signal
import subprocess
import sys
import tarfile
import time
from urllib.parse import unquote_to_bytes

import numpy as np

from records.decode import decode_rgb
from sharding.reference import make_key
from tests.sharding.reading import read_found

FORMATS = ("webdataset", "tfrecord")


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


def test_samples_are_exactly_the_input_once_each(run_shard, source):
    result = run_shard()
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
    assert [manifest.splits[name].first for name in ("train", "validation", "test")] == [
        0,
        manifest.splits["train"].samples,
        manifest.splits["train"].samples + manifest.splits["validation"].samples,
    ]
    assert sum(split.samples for split in manifest.splits.values()) == 60
    assert sum(entry.samples for entry in manifest.shards) == 60
    assert manifest.classes == ["ant", "bee", "cow"]
    assert manifest.rejected == []
    assert len(manifest.shards) > 4


def test_statistics_are_those_of_the_training_pixels(run_shard):
    result = run_shard()
    pixels = [decode_rgb(sample[2]).reshape(-1, 3) for sample in read_samples(result) if sample[0] == "train"]
    every = np.concatenate(pixels).astype(np.float64) / 255
    assert np.allclose(result.manifest.mean, every.mean(axis=0), rtol=1e-12)
    assert np.allclose(result.manifest.std, every.std(axis=0), rtol=1e-12)


def test_a_new_seed_moves_samples_but_never_between_splits(run_shard):
    one, other = run_shard(seed=0), run_shard(seed=1)
    split_of = [{sample[3]: sample[0] for sample in read_samples(result)} for result in (one, other)]
    assert split_of[0] == split_of[1]
    assert [sample[3] for sample in read_samples(one)] != [sample[3] for sample in read_samples(other)]


def test_nothing_of_time_host_or_place_is_in_the_manifest(run_shard, tmp_path):
    text = run_shard().content["manifest.json"].decode()
    assert str(tmp_path) not in text
    assert time.strftime("%Y") + "-" not in text


ODD_NAMES = (
    b"ant/with space.png",
    b"ant/two.dots.in.png",
    b"ant/new\nline.png",
    b"ant/not-utf8-\xff\xfe.png",
    b"ant/percent%41.png",
    b"ant/deep/er/" + "käfer".encode() + b".png",
    b"b\xe9e 2/no extension",
    b"b\xe9e 2/jpeg in truth.png",
)


def test_odd_file_names(run_shard, source, make_image, write_file):
    for number, name in enumerate(ODD_NAMES):
        write_file(source, name, make_image(100 + number, "jpg" if b"truth" in name else "png"))
    for number in range(20):
        write_file(source, b"b\xe9e 2/%d.png" % number, make_image(200 + number, "png"))
    write_file(source, b"ant/.DS_Store", b"junk")
    write_file(source, b".ipynb_checkpoints/1.png", b"junk")
    write_file(source, b"README", b"top level")
    result = run_shard()
    assert result.code == 0, result.stderr
    assert result.manifest.rejected == []
    assert result.manifest.classes == ["ant", "bee", "percent-encoded:b%E9e 2", "cow"]
    keys = {sample[3] for sample in read_samples(result)}
    assert len(keys) == 60 + len(ODD_NAMES) + 20
    assert {make_key(name).hex() for name in ODD_NAMES} < keys
    found = set()
    for entry in result.manifest.shards:
        with tarfile.open(result.folder / entry.name) as archive:
            for member in archive.getmembers():
                if member.name.endswith(".json"):
                    found.add(unquote_to_bytes(json.load(archive.extractfile(member))["path"]))
    assert set(ODD_NAMES) < found


def test_second_run_reuses_and_says_so(run_shard):
    first = run_shard()
    before = {path.name: path.stat().st_mtime_ns for path in first.folder.iterdir()}
    second = run_shard()
    assert second.folder == first.folder
    assert [event["event"] for event in second.events if event["event"] != "log"] == ["start", "folder", "reused"]
    assert {path.name: path.stat().st_mtime_ns for path in first.folder.iterdir()} == before
    # Before a run, a dry run says the same.
    dry = run_shard("--dry-run", printed=True)
    assert dry.stdout.startswith(f"nothing: {first.folder.name} holds this state") and "60 samples" in dry.stdout


def test_reuse_imports_neither_beam_nor_numpy(run_shard, source, tmp_path):
    run_shard()
    config = json.dumps({"sharding": {"source": str(source), "target_shard_bytes": 4096}})
    code = (
        "import sys; from contracts.stage import run_stage; from sharding.task import shard;"
        f"assert run_stage('shard', shard, ['--config-json', {config!r}, '--root', {str(tmp_path / 'out')!r}]) == 0;"
        "assert not {'apache_beam', 'numpy', 'PIL'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)


def test_damaged_shard_is_made_again(run_shard):
    first = run_shard()
    content = first.content
    path = next(first.folder.glob("train-*"))
    path.write_bytes(b"x" * path.stat().st_size)
    second = run_shard()
    assert "is damaged" in second.stderr
    assert second.content == content


def test_kill_in_the_middle_and_rerun_gives_the_same_bytes(run_shard, start_shard, tmp_path):
    whole = run_shard(root="whole", target_shard_bytes=1024)
    root = tmp_path / "killed"
    process = start_shard("killed", {}, target_shard_bytes=1024)
    folder = root / whole.folder.name
    deadline = time.monotonic() + 60
    while not list(folder.glob("*-*.tar")) and time.monotonic() < deadline:
        time.sleep(0.001)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert list(folder.glob("*-*.tar")) and not (folder / "manifest.json").exists(), "killed too early or too late"
    # What a kill between writing and renaming leaves.
    (folder / ".tmp-0123").write_bytes(b"half")
    finished = {path: path.stat().st_mtime_ns for path in folder.glob("*-*.tar")}
    again = run_shard(root="killed", target_shard_bytes=1024)
    assert again.code == 0
    assert again.content == whole.content
    assert {path: path.stat().st_mtime_ns for path in finished} == finished
