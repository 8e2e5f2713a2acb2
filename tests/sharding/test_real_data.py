"""Sources as people have them: encodings, names that look alike, phones' photos, deep images, gzip, parts of tables."""

import base64
import gzip
import http.server
import io
import json
import threading
import unicodedata
import urllib.parse

import google_crc32c
import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
from PIL import Image

from contracts import storage
from contracts.config import ShardingSection
from contracts.errors import DataError, StorageError
from contracts.stores import gcs
from records.classes import sort_classes
from records.decode import UndecodableImage, decode, decode_rgb, reducible_size
from records.pixels import Changes
from sharding.images import REPAIRED, Checks, check, inflate
from sharding.listing_warnings import describe_lookalikes

TEXTS = {"text": {"column": "text", "kind": "text"}, "label": {"column": "label", "kind": "class"}}


def encode(image, name, **options):
    stream = io.BytesIO()
    image.save(stream, name, **options)
    return stream.getvalue()


# --- labels and texts -------------------------------------------------------------------------------------------------


def test_labels_that_are_not_utf8_are_refused_with_what_to_do(tmp_path, listing_of):
    path = tmp_path / "drinks.csv"
    path.write_bytes("uri,label\na.png,thé\nb.png,café\n".encode("cp1252"))
    with pytest.raises(DataError, match=r"column 'label' \(class\) .* is not UTF-8") as raised:
        listing_of(path)
    assert "iconv" in raised.value.todo


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (unicodedata.normalize("NFC", "café"), unicodedata.normalize("NFD", "café")),
        ("tea", "tea "),
        ("tea", "\u200btea"),
        ("ﬁg", "fig"),
    ],
)
def test_classes_that_look_the_same_are_named(one, other):
    (warning,) = describe_lookalikes([one.encode(), b"milk", other.encode()])
    assert warning == f"classes {one!a} and {other!a} are the same to a reader, or nearly"
    assert describe_lookalikes([b"tea", b"te a", "thé".encode(), b"caf\xe9"]) == []


@pytest.mark.parametrize(
    ("names", "ordered"),
    [("b 10 2", "10 2 b"), ("10 2 1", "1 2 10"), ("-1 12 007 7", "-1 007 7 12")],
)
def test_classes_are_in_the_order_of_their_numbers_if_all_have_one(names, ordered):
    assert sort_classes(names.encode().split()) == ordered.encode().split()


def test_half_of_a_character_is_refused(tmp_path, listing_of):
    (tmp_path / "p.jsonl").write_text(json.dumps({"text": "a skull \ud83d", "label": "1"}))
    for kind in ("text", "json"):
        with pytest.raises(DataError, match=rf"line 1, column 'text' \({kind}\) .* is not UTF-8"):
            listing_of(tmp_path / "p.jsonl", fields={**TEXTS, "text": {"column": "text", "kind": kind}})


def test_the_order_of_classes_does_not_depend_on_the_file_type(tmp_path, listing_of, write_file, make_image):
    for number in range(36):
        write_file(tmp_path, f"raw/{number % 12}/{number}.png".encode(), make_image(number, "png"))
    rows = [{"uri": f"{number % 12}/{number}.png", "label": number % 12} for number in range(36)]
    text = "uri,label\n" + "".join(f"{row['uri']},{row['label']}\n" for row in rows)
    found = {}
    for name, content in (("l.csv", text), ("l.jsonl", "\n".join(map(json.dumps, rows)))):
        (tmp_path / "raw" / name).write_text(content)
        found[name] = listing_of(tmp_path / "raw" / name, splits={"train": 1, "validation": 0, "test": 0})
    found["folders"] = listing_of(tmp_path / "raw", splits={"train": 1, "validation": 0, "test": 0})
    assert {one.classes for one in found.values()} == {tuple(b"%d" % number for number in range(12))}
    assert len({one.sha256 for one in found.values()}) == 1
    booleans = [{**row, "label": row["label"] % 2 == 0} for row in rows]
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(booleans), tmp_path / "raw/l.parquet")
    assert listing_of(tmp_path / "raw/l.parquet").classes == (b"false", b"true")


# --- parts of tables --------------------------------------------------------------------------------------------------


def write_parts(folder, rows, suffix):
    for number in range(3):
        path = folder / f"part-{number:05d}{suffix}"
        if suffix == ".parquet":
            pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows[number::3]), path)
        else:
            path.write_text("".join(json.dumps(row) + "\n" for row in rows[number::3]))
    (folder / "_SUCCESS").touch()
    (folder / ".part-00000.crc").touch()


@pytest.mark.parametrize("suffix", [".parquet", ".jsonl"])
def test_a_folder_of_parts_is_one_table(tmp_path, listing_of, suffix):
    rows = [{"text": f"row {number}", "label": "ab"[number % 2]} for number in range(90)]
    (tmp_path / "table.parquet").mkdir()
    write_parts(tmp_path / "table.parquet", rows, suffix)
    listing = listing_of(tmp_path / "table.parquet", fields=TEXTS)
    (tmp_path / "whole.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    whole = listing_of(tmp_path / "whole.jsonl", fields=TEXTS)
    assert (listing.sha256, listing.num_files) == (whole.sha256, 90)
    (tmp_path / "table.parquet" / "notes.txt").touch()
    with pytest.raises(DataError, match=rf"holds part-00000\{suffix} beside notes.txt"):
        listing_of(tmp_path / "table.parquet", fields=TEXTS)


# --- images -----------------------------------------------------------------------------------------------------------


def make_jpeg(**options):
    noise = np.random.default_rng(1).integers(0, 80, (48, 40, 3), np.uint8)
    return encode(Image.fromarray(noise + np.uint8(60)), "JPEG", quality=90, **options)


def with_odd_scan(content):
    at = content.rfind(b"\xff\xda")
    end = at + 2 + int.from_bytes(content[at + 2 : at + 4], "big")
    return content[: end - 3] + b"\0\0\0" + content[end:]


ODD_JPEGS = {
    "scan parameters": with_odd_scan,
    "zeros before the end": lambda content: content[:-2] + bytes(258) + content[-2:],
    "bytes before the end": lambda content: content[:-2] + b"\xaa" * 17 + content[-2:],
    "bytes between segments": lambda content: content[:20] + b"\x12\x34" + content[20:],
    "no end": lambda content: content[:-2],
    "all": lambda content: with_odd_scan(content[:20] + b"\x12\x34" + content[20:-2]),
}


@pytest.mark.parametrize("kind", ODD_JPEGS)
def test_jpegs_of_phones_are_decoded_and_counted(kind):
    whole = make_jpeg()
    odd = ODD_JPEGS[kind](whole)
    found = decode(odd)
    assert found.repaired is not None and np.array_equal(found.pixels, decode(whole).pixels)
    assert np.array_equal(decode_rgb(odd, reduction=2), decode_rgb(whole, reduction=2))
    assert reducible_size(odd) == (48, 40)
    checked = check(odd, Checks())
    assert checked.changes == (REPAIRED,) and check(odd, Checks().without_changes()).content == checked.content
    # Every reader takes what is stored.
    with Image.open(io.BytesIO(checked.content)) as image:
        image.load()
    stored = decode(checked.content)
    assert stored.repaired is None and np.array_equal(stored.pixels, found.pixels)
    assert check(odd, Checks(changes=Changes(shorter_side=16))).changes == (REPAIRED, "resize")


@pytest.mark.parametrize("kind", ["scan parameters", "bytes between segments", "no end"])
def test_an_oddity_hides_no_damage(kind):
    for content in (make_jpeg(), make_jpeg(progressive=True)):
        odd = ODD_JPEGS[kind](content)
        # Also between the scans of a progressive one.
        for end in range(300, len(odd) - 10, 25):
            with pytest.raises(UndecodableImage):
                decode(odd[:end])
    # A flipped bit of coded data, after which some of it is left over.
    whole = make_jpeg()
    damaged = bytearray(whole)
    damaged[-900] ^= 4
    with pytest.raises(UndecodableImage, match="damaged jpeg"):
        decode(ODD_JPEGS[kind](bytes(damaged)))


def test_the_most_pixels_are_a_setting():
    content = make_jpeg()
    section = ShardingSection(max_pixels=1000, resize=16)
    with pytest.raises(UndecodableImage, match=r"48 pixels are more than the limit of 1000 \(sharding.max_pixels\)"):
        check(content, Checks.of(section))
    assert check(content, Checks(max_pixels=40 * 48)).width == 40
    # What sharding has accepted is decoded in training whatever its size.
    with pytest.raises(UndecodableImage, match="more than the limit"):
        decode(content, max_pixels=1000)
    assert decode(content, max_pixels=None).pixels.shape == (48, 40, 3)


def test_content_that_gzip_has_packed_is_read_unpacked(source, listing_of):
    content = make_jpeg()
    assert inflate(gzip.compress(content)) == inflate(content) == content
    for damaged in (gzip.compress(content)[:-20], b"\x1f\x8b" + content):
        with pytest.raises(UndecodableImage, match="gzip"):
            inflate(damaged)
    rows = [f"{path.relative_to(source)},{path.parent.name}\n" for path in sorted(source.glob("*/*.*"))]
    packed = gzip.compress(("uri,label\n" + "".join(rows)).encode())
    (source / "list.csv").write_bytes(packed)
    assert listing_of(source / "list.csv").num_files == 60
    (source / "list.csv").write_bytes(packed[:-30])
    with pytest.raises(DataError, match=r"list\.csv cannot be read after line"):
        listing_of(source / "list.csv")


def test_what_is_odd_in_files_is_written_and_warned_of(run_shard, source, write_file):
    values = np.random.default_rng(0).normal(900, 20, (12, 10)).astype(np.uint16)
    for path in sorted(source.glob("bee/*.*"))[:3]:
        write_file(source, path.relative_to(source).as_posix().encode(), encode(Image.fromarray(values), "PNG"))
        values = values + 1
    write_file(source, b"ant/odd.jpg", with_odd_scan(make_jpeg()))
    write_file(source, b"ant/packed.png", gzip.compress((source / "ant/00.png").read_bytes()))
    result = run_shard(max_rejected_fraction=0)
    assert result.code == 0, result.stderr
    assert "warning: 3 of 3 images with 16 bits per channel use less than a quarter" in result.stderr
    assert "warning: 1 JPEG file has odd scan parameters" in result.stderr
    assert "ant/00.png" in result.stderr and "ant/packed.png" in result.stderr and "are copies" in result.stderr


# --- splits and copies ------------------------------------------------------------------------------------------------


def test_shares_that_are_off_are_warned_of_under_groups_too(tmp_path, listing_of):
    rows = [{"text": f"{number}", "label": "abc"[number % 3], "burst": f"{number // 30}"} for number in range(300)]
    path = tmp_path / "list.jsonl"

    def warnings(**settings):
        path.write_text("\n".join(map(json.dumps, rows)))
        return [one for one in listing_of(path, fields=TEXTS, **settings).warnings if "instead of" in one]

    shares = {"train": 0.5, "validation": 0.25, "test": 0.25}
    splits, classes = warnings(group_by="burst", splits=shares)
    assert splits.startswith("splits are not as large") and "instead of 25 %" in splits
    assert classes.startswith("classes are not divided") and classes.count("instead of") == 3
    assert classes.endswith(" more")
    # One of so few is more than two points.
    few, rows = rows[:49], [{**row, "split": "train"} for row in rows]
    assert warnings() == []
    rows = few
    assert warnings() == []


# --- buckets that bill readers ----------------------------------------------------------------------------------------


class _RequesterPays(http.server.BaseHTTPRequestHandler):
    """Answers as Cloud Storage does: 400 where no project is named that pays."""

    def do_GET(self):
        url = urllib.parse.urlparse(self.path)
        is_named = "userProject" in urllib.parse.parse_qs(url.query) or self.headers.get("x-goog-user-project")
        self.server.billed.add((url.path.partition("/b/")[2].partition("/")[0], bool(is_named)))
        answer = {"kind": "storage#objects", "items": []}
        if not is_named:
            answer = {"error": {"message": "Bucket is a requester pays bucket but no user project provided."}}
        content = json.dumps(answer).encode()
        self.send_response(200 if is_named else 400)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.send_header("x-goog-hash", f"crc32c={base64.b64encode(google_crc32c.Checksum(content).digest()).decode()}")
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_):
        pass


def read_two(*roots):
    return storage.read_many([storage.ReadRequest(f"{root}/photo.jpg") for root in roots])


def test_a_bucket_with_requester_pays_names_the_key_and_is_read_with_it(monkeypatch):
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), _RequesterPays) as server:
        server.billed = set()
        threading.Thread(target=server.serve_forever, daemon=True).start()
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", f"http://127.0.0.1:{server.server_port}")
        monkeypatch.setenv("NO_PROXY", "127.0.0.1")
        try:
            with pytest.raises(StorageError, match="requester pays") as raised:
                list(storage.list_objects("gs://shop/photos"))
            assert "cloud.billing_project=PROJECT: sharding reads the bucket of sharding.source" in raised.value.todo
            storage.bill("payer", "gs://shop/photos")
            server.billed.clear()
            assert list(storage.list_objects("gs://shop/photos")) == []
            assert gcs.list_folders("gs://shop/photos") == []
            # Of another bucket its own project pays, whoever asks.
            for ask in (
                lambda: list(storage.list_objects("gs://mine/shards")),
                lambda: read_two("gs://shop", "gs://mine"),
            ):
                with pytest.raises(StorageError, match=r"gs://mine/.* requester pays"):
                    ask()
            assert server.billed == {("shop", True), ("mine", False)}
        finally:
            storage.bill("", "")
            gcs.close()
            server.shutdown()
