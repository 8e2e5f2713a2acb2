"""Other libraries read the shards: equal content, whatever the names of the files."""

import hashlib
import json
import tarfile
from urllib.parse import unquote_to_bytes

import pytest
import webdataset

from sharding.reference import make_key

ODD_NAMES = (
    b"ant/with space.png",
    b"ant/two.dots.in.png",
    b"ant/new\nline.png",
    b"ant/not-utf8-\xff\xfe.png",
    b"ant/percent%41.png",
    b"ant/deep/er/" + "käfer".encode() + b".png",
    *(b"b\xe9e 2/no extension %d" % number for number in range(12)),
)


@pytest.fixture
def odd_source(source, write_file, make_image):
    for number, name in enumerate(ODD_NAMES):
        write_file(source, name, make_image(300 + number, "png"))
    return source


def digests(contents):
    return sorted(hashlib.sha256(content).hexdigest() for content in contents)


def source_digests(source):
    return digests(path.read_bytes() for path in source.rglob("*") if path.is_file())


def test_tarfile_and_webdataset_read_the_same_content(run_shard, odd_source):
    result = run_shard()
    assert result.manifest.classes == ["ant", "bee", "percent-encoded:b%E9e 2", "cow"]
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
    names = {}
    for one in samples:
        description = json.loads(one["json"])
        assert int(one["cls"]) == description["label"]
        assert result.manifest.classes[description["label"]] == description["class"]
        names[unquote_to_bytes(description["path"])] = one["__key__"]
    assert all(names[name] == make_key(name).hex() for name in ODD_NAMES)


def test_beam_reads_the_same_content_from_tfrecords(run_shard, odd_source):
    """Beam's own reader checks the length and both checksums of each record; the files' bytes stand in the examples."""
    from apache_beam.io.tfrecordio import _TFRecordUtil

    result = run_shard(format="tfrecord")
    found = []
    for entry in result.manifest.shards:
        with (result.folder / entry.name).open("rb") as stream:
            while (record := _TFRecordUtil.read_record(stream)) is not None:
                found.append(record)
    contents = [path.read_bytes() for path in odd_source.rglob("*") if path.is_file()]
    assert sum(entry.samples for entry in result.manifest.shards) == len(found) == len(contents)
    assert all(any(content in record for record in found) for content in contents)
