"""The images of real collections that go wrong, each through the whole stage."""

import io
import json
import tarfile

import numpy as np
import pytest
import simplejpeg
from PIL import Image, ImageOps

from contracts.config import ShardingSection
from records.decode import MAX_PIXELS, decode_rgb, library_versions
from records.pixels import Changes
from sharding.images import Checks, check
from tests.sharding.reading import read_found


def encode(image, name, **options):
    stream = io.BytesIO()
    image.save(stream, name, **options)
    return stream.getvalue()


def read_members(result):
    """Return (JSON member, image bytes, name of the image's member) of every sample in tar shards, by path."""
    found = {}
    for entry in result.manifest.shards:
        with tarfile.open(result.folder / entry.name) as archive:
            members = {member.name: archive.extractfile(member).read() for member in archive}
        for name in members:
            if name.endswith(".json"):
                (image,) = (one for one in members if one.startswith(name[:-5]) and not one.endswith((".json", ".cls")))
                description = json.loads(members[name])
                found[description["path"]] = (description, members[image], image)
    return found


BOTTOM_CUT = simplejpeg.encode_jpeg(np.zeros((64, 64, 3), np.uint8))[:-40]


def test_verify_none_copies_bytes_and_knows_no_mean(run_shard, source, write_file):
    write_file(source, b"ant/cut.jpg", BOTTOM_CUT)
    write_file(source, b"ant/empty.jpg", b"")
    result = run_shard(verify="none", max_rejected_fraction=0.1)
    assert result.code == 0, result.stderr
    manifest = result.manifest
    assert [one.path for one in manifest.rejected] == ["ant/empty.jpg"]
    assert (manifest.verify, manifest.mean, manifest.std) == ("none", None, None)
    assert manifest.images.width is None and manifest.images.formats == {"jpeg": 31, "png": 30}
    stored = {one.content for one in read_found(result.folder)}
    assert stored == {path.read_bytes() for path in source.rglob("*.*")} - {b""}
    assert read_members(result)["ant/cut.jpg"][0] == {"path": "ant/cut.jpg", "label": 0, "class": "ant"}


# --- convert and resize -----------------------------------------------------------------------------------------------


def turned_jpeg(orientation):
    pixels = np.zeros((40, 60, 3), np.uint8)
    pixels[:20, :30] = 250
    exif = Image.Exif()
    exif[0x0112] = orientation
    return encode(Image.fromarray(pixels), "JPEG", quality=95, exif=exif.tobytes())


def test_convert_changes_what_needs_it_once_and_says_so(run_shard, source, write_file):
    cmyk = encode(Image.new("CMYK", (16, 24), (0, 255, 255, 0)), "JPEG")
    deep = encode(Image.fromarray(np.full((9, 8), 257 * 77, np.uint16)), "PNG")
    for name, content in ((b"cmyk.jpg", cmyk), (b"deep.png", deep), (b"turned.jpg", turned_jpeg(6))):
        write_file(source, b"ant/" + name, content)
    plain = run_shard(root="none")
    untouched = read_members(plain)
    assert untouched["ant/cmyk.jpg"][1] == cmyk and untouched["ant/cmyk.jpg"][0]["mode"] == "CMYK"
    result = run_shard(convert=["orientation", "cmyk", "depth"])
    assert result.code == 0, result.stderr
    assert result.manifest.prepared.model_dump() == {
        "background": "white",
        "convert": ["cmyk", "depth", "orientation"],
        "resize": None,
        "jpeg_quality": 90,
        "max_pixels": MAX_PIXELS,
        "changed": {"cmyk": 1, "depth": 1, "orientation": 1},
        "made_with": library_versions(),
    }
    assert {"pillow", "simplejpeg", "libjpeg_turbo", "zlib"} <= set(library_versions())
    assert result.manifest.images.modes["CMYK"] == 1
    members = read_members(result)
    assert members["ant/cmyk.jpg"][0]["mode"] == "RGB"
    assert np.abs(decode_rgb(members["ant/cmyk.jpg"][1]).astype(int) - decode_rgb(cmyk)).max() < 30
    with Image.open(io.BytesIO(members["ant/deep.png"][1])) as image:
        assert image.mode == "L" and image.getpixel((3, 3)) == 77
    assert (members["ant/turned.jpg"][0]["width"], members["ant/turned.jpg"][0]["height"]) == (40, 60)
    others = [path for path in untouched if path[4:] not in ("cmyk.jpg", "deep.png", "turned.jpg")]
    assert all(members[path][1] == untouched[path][1] for path in others) and len(others) == 60
    for split in ("train", "validation", "test"):
        # Bytes of the source, whatever was written.
        assert result.manifest.splits[split].source_bytes == plain.manifest.splits[split].source_bytes


def test_every_orientation_is_that_of_pillow():
    for orientation in range(1, 9):
        content = turned_jpeg(orientation)
        with Image.open(io.BytesIO(content)) as image:
            expected = np.asarray(ImageOps.exif_transpose(image))
        found = check(content, Checks(changes=Changes(orientation=True, jpeg_quality=100)))
        assert found.pixels.shape == expected.shape
        assert np.abs(found.pixels.astype(int) - expected).mean() < 3
        assert check(found.content, Checks(changes=Changes(orientation=True))).content == found.content


@pytest.mark.parametrize(("background", "colour"), [("white", (255, 255, 255)), ("#0ac81e", (10, 200, 30))])
def test_transparent_images_lie_on_the_background_of_the_configuration(background, colour):
    content = encode(Image.new("RGBA", (9, 4), (200, 10, 10, 0)), "PNG")
    checks = Checks.of(ShardingSection(background=background))
    found = check(content, checks)
    assert found.changes == ("transparent",) and (found.source_mode, found.mode) == ("RGBA", "RGB")
    assert (found.pixels == colour).all() and (decode_rgb(found.content) == colour).all()
    # What was made of it needs nothing any more.
    assert check(found.content, checks)[:5] == found[:5]
    opaque = encode(Image.new("RGBA", (9, 4), (200, 10, 10, 255)), "PNG")
    kept = check(opaque, checks)
    assert kept.content == opaque and kept.changes == ()
    kept = check(content, Checks("none"))
    assert kept.content == content and kept.changes == ()


def test_resize_shrinks_the_shorter_side_and_an_upgrade_of_a_library_reuses_shards(
    run_shard, source, write_file, monkeypatch
):
    gradient = np.linspace(0, 255, 300 * 200 * 3).reshape(200, 300, 3).astype(np.uint8)
    write_file(source, b"ant/wide.png", encode(Image.fromarray(gradient), "PNG"))
    write_file(source, b"ant/tall.jpg", encode(Image.fromarray(gradient.transpose(1, 0, 2)), "JPEG"))
    result = run_shard(resize=50)
    members = read_members(result)
    assert decode_rgb(members["ant/wide.png"][1]).shape == (50, 75, 3)
    assert decode_rgb(members["ant/tall.jpg"][1]).shape == (75, 50, 3)
    assert members["ant/wide.png"][2].endswith(".png") and members["ant/tall.jpg"][2].endswith(".jpg")
    assert result.manifest.prepared.changed == {"resize": 2} and result.manifest.prepared.resize == 50
    assert result.manifest.images.width == [10, 75]
    monkeypatch.setattr("sharding.job.made_with", lambda: {"pillow": "99"})
    assert run_shard(resize=50).folder == result.folder
