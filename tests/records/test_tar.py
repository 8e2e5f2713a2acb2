"""The tar writer, read back by Python's tarfile and by WebDataset itself."""

import io
import json
import tarfile

import google_crc32c
import pytest
import webdataset
from hypothesis import given
from hypothesis import strategies as st

from records.sample import ChecksumStream, Piece, Sample
from records.tar import MAX_MEMBER_BYTES, TarWriter, pack_header

SAMPLES = [
    Sample(bytes([number]) * 16, bytes(range(256)) * number + b"x" * number, "png", number, f"class {number}",
           f"class {number}/a.b c%0A.png", 32, 16, "L")
    for number in range(4)
]  # fmt: skip


def write_tar():
    file = io.BytesIO()
    stream = ChecksumStream(file)
    writer = TarWriter(stream)
    places = [writer.write(sample) for sample in SAMPLES]
    writer.close()
    return file.getvalue(), places, stream


def test_places_are_those_of_whole_samples():
    content, places, _ = write_tar()
    at = 0
    for sample, place in zip(SAMPLES, places, strict=True):
        assert place.offset == at and place.size % 512 == 0
        at += place.size
        found = content[place.offset : at]
        assert place.crc32c == google_crc32c.value(found)
        # It is a tar of its own, but for the empty blocks at the end.
        with tarfile.open(fileobj=io.BytesIO(found + bytes(1024)), mode="r:") as archive:
            assert [member.name for member in archive] == [
                f"{sample.key.hex()}.{one}" for one in ("png", "cls", "json")
            ]
            assert archive.extractfile(f"{sample.key.hex()}.png").read() == sample.content
    assert content[at:] == bytes(1024)


def test_stream_counts_and_checksums_everything():
    content, _, stream = write_tar()
    assert stream.position == len(content)
    assert stream.crc32c == f"{google_crc32c.value(content):08x}"


@given(st.lists(st.lists(st.binary(max_size=5000), max_size=3), max_size=20))
def test_checksum_of_pieces_is_that_of_their_bytes(lists):
    stream = ChecksumStream(io.BytesIO())
    for parts in lists:
        stream.write(Piece.of(*parts))
    everything = b"".join(part for parts in lists for part in parts)
    assert (stream.position, stream.crc32c) == (len(everything), f"{google_crc32c.value(everything):08x}")


def test_tarfile_reads_adjacent_members_with_fixed_metadata():
    content, _, _ = write_tar()
    with tarfile.open(fileobj=io.BytesIO(content), mode="r:") as archive:
        members = archive.getmembers()
        assert [member.name for member in members] == [
            f"{sample.key.hex()}.{extension}" for sample in SAMPLES for extension in ("png", "cls", "json")
        ]
        assert {(m.mtime, m.uid, m.gid, m.mode, m.type) for m in members} == {(0, 0, 0, 0o644, tarfile.REGTYPE)}
        for sample in SAMPLES:
            assert archive.extractfile(f"{sample.key.hex()}.png").read() == sample.content
            assert archive.extractfile(f"{sample.key.hex()}.cls").read() == b"%d" % sample.label
            assert json.load(archive.extractfile(f"{sample.key.hex()}.json")) == {
                "path": sample.path,
                "label": sample.label,
                "class": sample.class_name,
                "width": 32,
                "height": 16,
                "mode": "L",
            }


def test_webdataset_reads_samples():
    content, _, _ = write_tar()
    # Its own reader on a stream of ours: given a path, it leaves the file open, which is a warning.
    members = webdataset.tariterators.tar_file_expander([{"url": "a.tar", "stream": io.BytesIO(content)}])
    found = list(webdataset.tariterators.group_by_keys(members))
    assert [(one["__key__"], one["png"], one["cls"]) for one in found] == [
        (sample.key.hex(), sample.content, b"%d" % sample.label) for sample in SAMPLES
    ]


def test_jpeg_gets_the_extension_that_decoders_know():
    file = io.BytesIO()
    TarWriter(ChecksumStream(file)).write(SAMPLES[1]._replace(image_format="jpeg"))
    assert file.getvalue().startswith(SAMPLES[1].key.hex().encode() + b".jpg\0")


@pytest.mark.parametrize("size", [0, 1, 511, 512, MAX_MEMBER_BYTES])
def test_header_equals_that_of_tarfile(size):
    info = tarfile.TarInfo("a" * 38)
    info.size = size
    assert tarfile.TarInfo.frombuf(pack_header(b"a" * 38, size), "ascii", "strict").size == size
    expected = info.tobuf(tarfile.USTAR_FORMAT)
    # Python writes the device numbers of a regular file as zeros in octal, we as zero bytes; both are allowed.
    ours = pack_header(b"a" * 38, size)
    assert ours[:148] == expected[:148]
    assert ours[156:329] == expected[156:329]
