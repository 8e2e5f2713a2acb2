"""Other libraries read the shards: equal content, and index files that say what their formats demand."""

import hashlib
import json
import re
import struct
import subprocess
import tarfile
import venv

import pytest
import webdataset
import wids

from contracts import storage
from data_tools.neighbours import export_index

ODD_NAMES = (
    b"ant/with space.png",
    b"ant/two.dots.in.png",
    b"ant/new\nline.png",
    b"ant/not-utf8-\xff\xfe.png",
    b"ant/deep/er/" + "käfer".encode() + b".png",
)


@pytest.fixture
def odd_source(source, write_file, make_image):
    for number, name in enumerate(ODD_NAMES):
        write_file(source, name, make_image(300 + number, "png"))
    return source


def digests(contents):
    return sorted(hashlib.sha256(content).hexdigest() for content in contents)


def run_exported(run_shard, **section):
    result = run_shard(**section)
    export_index(storage.normalise(result.folder), dali=True, wids=True)
    return result


def source_digests(source):
    return digests(path.read_bytes() for path in source.rglob("*") if path.is_file())


def test_tarfile_and_webdataset_read_the_same_content(run_shard, odd_source):
    result = run_shard()
    paths = [result.folder / entry.name for entry in result.manifest.shards]
    by_tarfile = []
    for path in paths:
        with tarfile.open(path) as archive:
            by_tarfile += [archive.extractfile(one).read() for one in archive if one.name.endswith(("jpg", "png"))]
    assert digests(by_tarfile) == source_digests(odd_source)

    samples = []
    for path in paths:
        # Its Dataset leaves files open, which is a warning here.
        with path.open("rb") as stream:
            members = webdataset.tariterators.tar_file_expander([{"url": path.name, "stream": stream}])
            samples += webdataset.tariterators.group_by_keys(members)
    assert digests(one.get("jpg") or one["png"] for one in samples) == source_digests(odd_source)
    for one in samples:
        description = json.loads(one["json"])
        assert int(one["cls"]) == description["label"]
        assert result.manifest.classes[description["label"]] == description["class"]


def test_wids_reads_each_split_by_number(run_shard, odd_source, tmp_path):
    result = run_exported(run_shard)
    found = []
    for split, entry in result.manifest.splits.items():
        spec = json.loads((result.folder / f"wids-{split}.json").read_text())
        assert spec["wids_version"] == 1
        dataset = wids.ShardListDataset(
            str(result.folder / f"wids-{split}.json"), cache_dir=str(tmp_path / f"cache-{split}"), transformations=[]
        )
        assert len(dataset) == entry.samples
        for number in range(len(dataset)):
            sample = dataset[number]
            found.append((sample[".jpg"] if ".jpg" in sample else sample[".png"]).read())
        dataset.close()
    assert digests(found) == source_digests(odd_source)


def test_the_dali_index_of_a_tar_is_right_byte_by_byte(run_shard, odd_source):
    result = run_exported(run_shard)
    for entry in result.manifest.shards:
        text = (result.folder / entry.name.replace(".tar", ".idx")).read_bytes().decode("ascii")
        header, *lines = text.removesuffix("\n").split("\n")
        assert header == f"v1.2 {entry.samples}" and len(lines) == entry.samples
        with tarfile.open(result.folder / entry.name) as archive:
            members = [(one.name.partition(".")[2], one.offset_data, one.size, one.name) for one in archive]
        # As DALI reads it: four words for each component.
        listed = [line.split()[at : at + 4] for line in lines for at in range(0, len(line.split()), 4)]
        assert [(ext, int(offset), int(size), name) for ext, offset, size, name in listed] == members
        assert all(re.fullmatch(r"[0-9a-z_]+\.[a-z]+", name) for *_, name in listed)
        assert all(len({name.partition(".")[0] for name in line.split()[3::4]}) == 1 for line in lines)


def test_the_index_of_a_tfrecord_leads_to_its_records(run_shard, odd_source):
    result = run_exported(run_shard, format="tfrecord")
    for entry in result.manifest.shards:
        content = (result.folder / entry.name).read_bytes()
        lines = (result.folder / entry.name.replace(".tfrecord", ".idx")).read_text().splitlines()
        places = [tuple(map(int, line.split(" "))) for line in lines]
        assert len(places) == entry.samples and places[0][0] == 0
        for (offset, size), following in zip(places, [*(place for place, _ in places[1:]), len(content)], strict=True):
            (length,) = struct.unpack_from("<Q", content, offset)
            assert size == length + 16 and offset + size == following


READER = """
import glob, hashlib, json, sys
from tfrecord.reader import tfrecord_loader
found = []
for path in sorted(glob.glob(sys.argv[1] + "/*.tfrecord")):
    for sample in tfrecord_loader(path, path.replace(".tfrecord", ".idx")):
        found.append((hashlib.sha256(bytes(sample["image/encoded"])).hexdigest(), int(sample["image/class/label"][0])))
print(json.dumps(sorted(found)))
"""


@pytest.mark.slow
def test_the_package_tfrecord_reads_the_same_content(run_shard, odd_source, tmp_path):
    result = run_exported(run_shard, format="tfrecord")
    venv.create(tmp_path / "env", with_pip=True)
    python = tmp_path / "env" / "bin" / "python"
    subprocess.run([python, "-m", "pip", "install", "--quiet", "tfrecord==1.14.6"], check=True, timeout=240)

    done = subprocess.run([python, "-c", READER, result.folder], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    classes = sorted(path.name for path in odd_source.iterdir())
    expected = sorted(
        [hashlib.sha256(path.read_bytes()).hexdigest(), classes.index(path.relative_to(odd_source).parts[0])]
        for path in odd_source.rglob("*")
        if path.is_file()
    )
    assert json.loads(done.stdout) == expected
