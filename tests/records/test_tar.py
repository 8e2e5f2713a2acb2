"""frame() and scan() of tars, against Python's tarfile."""

import io
import json
import tarfile

import pytest

from contracts.errors import DataError
from records import tar
from records.sample import Sample
from records.tar import find_image, frame, scan
from tests.records.small_shards import make_sample

SAMPLES = [
    Sample(bytes([number]) * 16, bytes(range(256)) * number + b"x" * number, "png", number, f"clàss {number}",
           f"class {number}/a.b c%0A.png", 32, 16, "L")
    for number in range(4)
]  # fmt: skip


def archive_of(members, **options):
    """Return a tar of (name, content); content None: a folder."""
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w", **options) as archive:
        for name, content in members:
            member = tarfile.TarInfo(name)
            member.type = tarfile.REGTYPE if content is not None else tarfile.DIRTYPE
            member.size = len(content or b"")
            archive.addfile(member, io.BytesIO(content or b""))
    return stream.getvalue()


def test_tarfile_reads_adjacent_members_with_fixed_metadata():
    content = b"".join(b"".join(frame(sample)) for sample in SAMPLES) + tar.END
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


def test_the_bytes_of_a_sample_never_change():
    """Another version of Python would give its own headers otherwise, and two workers other bytes."""
    found = frame(SAMPLES[1]).body[:512]
    header = b"01" * 16 + b".png" + bytes(64) + b"0000644\0" + b"0000000\0" * 2 + b"00000000401\0" + b"0" * 11 + b"\0"
    expected = header + b"        " + b"0" + bytes(100) + b"ustar\x0000" + bytes(247)
    assert found == expected[:148] + b"%06o\0 " % sum(expected) + expected[156:]


@pytest.mark.parametrize("tar_format", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_scan_finds_whole_samples_of_others(tar_format):
    """Labels first, folders between, long names in headers of their own, what looks like an image and is none."""
    image = make_sample(1).content
    long = "BM" * 45 + "/" + "k" * 90 if tar_format != tarfile.USTAR_FORMAT else "d/k"
    members = [
        ("train", None),
        ("a.b/0.cls", b" 7\n"),
        ("a.b/0.txt", b"BMW"),
        ("a.b/0.PNG", image),
        ("a.b/1.seg.png", image),
        ("between", None),
        ("a.b/1.json", b'{"label": 3, "class": "cat"}'),
        (f"{long}.json", b'{"class": "dog"}'),
        (f"{long}.jpg", image),
    ]
    content = archive_of(members, format=tar_format)
    found = list(scan(io.BytesIO(content), "x.tar"))
    assert [(one.name, one.label, one.class_name) for one in found] == [
        ("a.b/0", 7, None),
        ("a.b/1", 3, "cat"),
        (long, "dog", "dog"),
    ]
    for one in found:
        assert one.image == image == find_image(one.body)
        assert one.body == content[one.offset : one.offset + len(one.body)] and len(one.body) % 512 == 0
        # A tar of its own, but for the empty blocks at its end.
        with tarfile.open(fileobj=io.BytesIO(one.body + tar.END)) as archive:
            assert {member.name.partition("0.")[0] or one.name for member in archive} and archive.getmembers()


def test_scan_names_what_is_wrong():
    image = make_sample(1).content
    good = archive_of([("0.png", image), ("0.cls", b"1"), ("1.png", image), ("1.cls", b"1")])
    second = good.index(b"1.png")

    def refused(content):
        with pytest.raises(DataError) as caught:
            list(scan(io.BytesIO(content), "x.tar"))
        return caught.value.given

    assert "sample 0: no label among 0.png" in refused(archive_of([("0.png", image), ("0.cls", b" ")]))
    assert "sample 0: no image among 0.cls, 0.png" in refused(archive_of([("0.cls", b"1"), ("0.png", b"text")]))
    twice = [("0.png", image), ("0.cls", b"1")] * 2
    assert "sample 0: a member twice among 0.png, 0.cls, 0.png, 0.cls" in refused(archive_of(twice))
    # tarfile itself would take this for the end.
    assert f"the header at {second} is damaged" in refused(good[:second] + b"?" + good[second + 1 :])
    assert "x.tar cannot be read as a tar" in refused(good[: second + 600])
    assert "x.tar cannot be read as a tar" in refused(b"\x1f\x8b" + bytes(600))
    huge = tarfile.TarInfo("0.png")
    huge.size = 3 << 30
    assert "sample 0: 2 GiB or more" in refused(huge.tobuf(tarfile.USTAR_FORMAT))
