"""The images of real collections that go wrong, each through the whole stage."""

import importlib.metadata
import io
import json
import os
import struct
import tarfile

import numpy as np
import pytest
import simplejpeg
from PIL import Image

from records.decode import MAX_PIXELS, decode_rgb, library_versions
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


def test_no_member_of_a_tar_leads_out_of_it(run_shard, source, write_file, make_image, tmp_path):
    write_file(tmp_path, b"outside/x.png", make_image(81, "png"))
    rows = [f"{path.relative_to(source)},{path.parent.name}" for path in sorted(source.rglob("*.*"))]
    (source / "list.csv").write_text("\n".join(["uri,label", "../outside/x.png,ant", *rows]))
    members = read_members(run_shard(source=str(source / "list.csv")))
    assert len(members) == 61 and "../outside/x.png" in members
    assert all(name[:32].isalnum() and name[32] == "." for _, _, name in members.values())


@pytest.mark.parametrize("shard_format", ["webdataset", "tfrecord"])
def test_verify_none_copies_bytes_and_knows_no_mean(run_shard, source, write_file, shard_format):
    write_file(source, b"ant/cut.jpg", BOTTOM_CUT)
    write_file(source, b"ant/empty.jpg", b"")
    result = run_shard(verify="none", format=shard_format, max_rejected_fraction=0.1)
    assert result.code == 0, result.stderr
    manifest = result.manifest
    assert [one.path for one in manifest.rejected] == ["ant/empty.jpg"]
    assert (manifest.verify, manifest.mean, manifest.std) == ("none", None, None)
    assert manifest.images.width is None and manifest.images.formats == {"jpeg": 31, "png": 30}
    stored = {one.content for one in read_found(result.folder)}
    assert stored == {path.read_bytes() for path in source.rglob("*.*")} - {b""}
    if shard_format == "webdataset":
        assert read_members(result)["ant/cut.jpg"][0] == {"path": "ant/cut.jpg", "label": 0, "class": "ant"}


def test_verify_header_knows_the_same_mean_and_sizes(run_shard):
    decoded, header = run_shard().manifest, run_shard(verify="header").manifest
    assert (header.mean, header.std, header.images) == (decoded.mean, decoded.std, decoded.images)
    assert decoded.images.width == [10, 10] and decoded.images.height == [12, 12]
    assert decoded.images.modes == {"RGB": 60}


def test_only_some_images_are_summed_up_when_there_are_many(run_shard, monkeypatch):
    from records import statistics

    everything = run_shard(root="all").manifest
    monkeypatch.setattr(statistics, "MAX_SUMMED_IMAGES", 20)
    monkeypatch.setattr(statistics, "_DRAWN_IMAGES", 20)
    some = run_shard(root="some").manifest
    assert some.mean != everything.mean and np.allclose(some.mean, everything.mean, atol=0.02)
    assert run_shard(root="other").manifest.to_json() == some.to_json()


def test_png_with_a_jpeg_name_is_stored_by_its_content(run_shard, source, write_file, make_image):
    write_file(source, b"ant/wrong.jpg", make_image(70, "png"))
    write_file(source, b"ant/a.b.c.jpeg", make_image(71, "jpg"))
    members = read_members(run_shard())
    assert members["ant/wrong.jpg"][2].endswith(".png")
    for _, _, name in members.values():
        # One dot: WebDataset takes what follows the first one for the extension.
        assert name.count(".") == 1 and "/" not in name


def test_one_large_image_among_thumbnails(run_shard, source, write_file):
    noise = np.random.default_rng(0).integers(0, 256, (1500, 1500, 3), np.uint8)
    write_file(source, b"ant/huge.tif", encode(Image.fromarray(noise), "TIFF"))
    result = run_shard()
    assert result.code == 0, result.stderr
    assert result.manifest.images.width == [10, 1500]
    assert max(entry.bytes for entry in result.manifest.shards) > 6_000_000


def test_a_tiff_of_400_mb_among_thumbnails(run_shard, source, write_file):
    width, height = 11_500, 11_600
    # Baseline fields (TIFF 6.0, part 1): width, length, bits, compression, photometric, strip, samples, rows, bytes.
    fields = [(256, width), (257, height), (258, 8), (259, 1), (262, 1), (273, 4096), (277, 1), (278, height)]
    fields = [*fields, (279, width * height)]
    header = b"II*\0" + struct.pack("<IH", 8, len(fields))
    header += b"".join(struct.pack("<HHII", tag, 4, 1, value) for tag, value in fields) + bytes(4)
    write_file(source, b"ant/huge.tif", header)
    os.truncate(source / "ant" / "huge.tif", 3 * width * height)
    (rejected,) = run_shard(max_rejected_fraction=0.1).manifest.rejected
    assert rejected.path == "ant/huge.tif" and "11500 x 11600 pixels are more than" in rejected.reason


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
    untouched = read_members(run_shard(root="none"))
    assert untouched["ant/cmyk.jpg"][1] == cmyk and untouched["ant/cmyk.jpg"][0]["mode"] == "CMYK"
    result = run_shard(convert={"cmyk": True, "depth": True, "orientation": True})
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
        assert result.manifest.splits[split].source_bytes == run_shard(root="none").manifest.splits[split].source_bytes


@pytest.mark.parametrize("orientation", range(1, 9))
def test_every_orientation_is_that_of_pillow(orientation):
    from PIL import ImageOps

    from records.pixels import Changes

    content = turned_jpeg(orientation)
    with Image.open(io.BytesIO(content)) as image:
        expected = np.asarray(ImageOps.exif_transpose(image))
    found = check(content, Checks(changes=Changes(orientation=True, jpeg_quality=100)), with_pixels=True)
    assert found.pixels.shape == expected.shape
    assert np.abs(found.pixels.astype(int) - expected).mean() < 3
    again = check(found.content, Checks(changes=Changes(orientation=True)), with_pixels=True)
    assert again.content == found.content


def test_resize_shrinks_the_shorter_side(run_shard, source, write_file):
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
    assert run_shard(resize=50, root="again").content == result.content


def test_versions_are_those_of_what_changed_something_and_decide_no_folder(run_shard, monkeypatch):
    assert run_shard(resize=50).manifest.prepared.made_with == {}
    first = run_shard(resize=8)
    assert first.manifest.prepared.made_with["simplejpeg"] == importlib.metadata.version("simplejpeg")
    monkeypatch.setattr("sharding.commit.library_versions", lambda: {"pillow": "99"})
    assert run_shard(resize=8).folder == first.folder
    other = run_shard(resize=8, root="again")
    assert other.manifest.prepared.made_with == {"pillow": "99"}
    assert other.manifest.fingerprint == first.manifest.fingerprint


def test_changes_need_decoded_images(run_shard):
    for section in ({"resize": 50}, {"convert": {"cmyk": True}}):
        result = run_shard(verify="header", **section)
        assert result.code == 2 and "verify=decode" in result.stderr
