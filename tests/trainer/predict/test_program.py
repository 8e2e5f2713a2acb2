"""The shipped programs alone: the trainer's pixels to the bit, rows, and nothing but three packages needed."""

from __future__ import annotations

import csv
import io
import json
import struct
import subprocess
import sys
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import simplejpeg
import torch
from PIL import Image

from contracts.config import ShardingSection
from records.decode import decode_rgb
from records.pixels import centre_square
from sharding.images import Checks, check
from sharding.names import IGNORED_NAMES
from tests.trainer.export import colours
from tests.trainer.export.colours import CLASSES, MEAN, SIZE, STD
from tests.trainer.predict import words
from trainer.predict import program
from trainer.tasks import multilabel
from trainer.tasks.image_transforms import normalise

RANDOM = np.random.default_rng(0)
PIXELS = RANDOM.integers(0, 256, (7, 5, 3), dtype=np.uint8).repeat(5, axis=0).repeat(9, axis=1)  # 35 x 45
NOISE = RANDOM.integers(0, 256, (33, 21, 3), dtype=np.uint8)
IMAGE = Image.fromarray(PIXELS)
EVERYTHING = {"background": "#20c080", "convert": ["cmyk", "depth", "orientation"], "resize": 24}


def save(image: Image.Image, name: str, **options: Any) -> bytes:
    stream = io.BytesIO()
    image.save(stream, name, **options)
    return stream.getvalue()


def turned(name: str, tag: int) -> bytes:
    exif = Image.Exif()
    exif[0x0112] = tag
    return save(IMAGE, name, exif=exif)


def see_through() -> Image.Image:
    image = IMAGE.convert("RGBA")
    image.putalpha(Image.fromarray(np.linspace(0, 255, 35 * 45).reshape(35, 45).astype(np.uint8)))
    return image


def png_of_16_bit_rgb() -> bytes:
    values = RANDOM.integers(0, 1 << 16, (29, 34, 3)).astype(">u2")
    rows = b"".join(b"\0" + row.tobytes() for row in values)
    header = struct.pack(">IIBBBBB", 34, 29, 16, 2, 0, 0, 0)
    chunks = [(b"IHDR", header), (b"IDAT", zlib.compress(rows)), (b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data)) for kind, data in chunks
    )


FILES: dict[str, bytes] = {
    "transparent png": save(see_through(), "PNG"),
    "transparent webp": save(see_through(), "WEBP", lossless=True),
    "palette with a transparent colour": save(IMAGE.quantize(16), "PNG", transparency=3),
    "palette with alpha": save(IMAGE.convert("P"), "PNG", transparency=bytes(range(256))),
    "16-bit grey png": save(Image.fromarray(RANDOM.integers(0, 1 << 16, (40, 32)).astype(np.uint16)), "PNG"),
    "16-bit rgb png": png_of_16_bit_rgb(),
    "4:2:0 of odd size": simplejpeg.encode_jpeg(np.ascontiguousarray(NOISE), quality=60, colorsubsampling="420"),
    "progressive": save(Image.fromarray(NOISE), "JPEG", progressive=True, quality=70),
    "cmyk": save(IMAGE.convert("CMYK"), "JPEG"),
    **{f"jpeg, orientation {tag}": turned("JPEG", tag) for tag in (2, 5, 6, 8)},
    "gif with transparency": save(IMAGE.convert("P"), "GIF", transparency=0),
    "webp": save(IMAGE, "WEBP", quality=60),
    "bmp": save(IMAGE, "BMP"),
    "one pixel": save(Image.fromarray(NOISE[:1, :1]), "PNG"),
}


def open_image_model(folder: Path, sharding: dict[str, Any]) -> program.ImageModel:
    """Return the model of an export from shards that were made with these settings."""
    section = ShardingSection.model_validate(sharding)
    colours.write_export(folder)
    path = folder / "preprocess.json"
    values = {
        "background": section.background,
        "convert": section.convert,
        "resize": section.resize,
        "max_pixels": section.max_pixels,
    }
    path.write_text(json.dumps(json.loads(path.read_text()) | values))
    return program.ImageModel(folder)


@pytest.mark.parametrize("sharding", [{}, EVERYTHING], ids=["defaults", "everything"])
@pytest.mark.parametrize("name", FILES)
def test_inputs_of_a_source_file_are_those_of_its_shard_to_the_bit(
    name: str, sharding: dict[str, Any], tmp_path: Path
) -> None:
    content, checks = FILES[name], Checks.of(ShardingSection.model_validate(sharding))
    stored = check(content, checks).content
    pixels = torch.from_numpy(centre_square(decode_rgb(stored), SIZE).copy())
    expected = normalise(pixels[None], tuple(MEAN), tuple(STD)).numpy()
    model = open_image_model(tmp_path, sharding)
    for given in (content, stored):
        inputs = model.collate([model.prepare(given)])["images"]
        assert (inputs.shape, inputs.dtype) == ((1, 3, SIZE, SIZE), np.float32)
        assert inputs.tobytes() == expected.tobytes()


def test_an_image_has_at_most_the_pixels_that_sharding_allows(tmp_path: Path) -> None:
    model = open_image_model(tmp_path, {"max_pixels": 35 * 45 - 1})
    with pytest.raises(ValueError, match="45 x 35 pixels are more than the limit of 1574"):
        model.prepare(FILES["bmp"])


# Runs a file as a program, and says which packages it has imported.
ALONE = """
import runpy, sys
sys.argv.pop(0)
try:
    runpy.run_path(sys.argv[0], run_name="__main__")
finally:
    names = {name.partition(".")[0] for name in sys.modules}
    print(*sorted(names - sys.stdlib_module_names), file=sys.stderr)
"""


def run(folder: Path, *arguments: str | Path, stdin: str = "") -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-I", str(folder / "predict.py"), *map(str, arguments)]
    return subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=120, check=False)


def run_json(folder: Path, *arguments: str | Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in run(folder, *arguments, "-o", "json").stdout.splitlines()]


@pytest.fixture(scope="module", params=["images", "texts"])
def export(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[str]]:
    """An export of each kind, and two samples."""
    folder = tmp_path_factory.mktemp("export")
    if request.param == "texts":
        words.write_export(folder)
        return folder, ["red red blue", "green"]
    colours.write_export(folder)
    samples = []
    for name, colour in (("red", (230, 25, 50)), ("green", (50, 205, 25))):
        samples.append(str(folder.parent / f"{name}-{folder.name}.png"))
        Image.new("RGB", (30, 20), colour).save(samples[-1])
    return folder, samples


def test_a_program_needs_three_packages_and_leaves_nothing(export: tuple[Path, list[str]]) -> None:
    folder, samples = export
    before = sorted(folder.iterdir())
    command = [sys.executable, "-I", "-c", ALONE, str(folder / "predict.py"), *samples]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert not {"records", "trainer", "contracts", "torch"} & set(done.stderr.split())
    assert sorted(folder.iterdir()) == before


def test_a_row_is_a_sample_with_its_labels_and_scores(export: tuple[Path, list[str]]) -> None:
    folder, samples = export
    name = "text" if (folder / "tokenizer.json").exists() else "file"
    found = run_json(folder, *samples, "--top", "2")
    assert [row[name] for row in found] == samples
    assert [row["labels"][0] for row in found] == ["red", "green"]
    for row in found:
        assert len(row["labels"]) == len(row["scores"]) == 2 and row["scores"] == sorted(row["scores"], reverse=True)
    rows = list(csv.reader(io.StringIO(run(folder, *samples, "-o", "csv").stdout)))
    assert rows[0] == [name, "labels", "scores"]
    assert [row[:2] for row in rows[1:]] == [[samples[0], "red"], [samples[1], "green"]]
    assert [float(row[2]) for row in rows[1:]] == pytest.approx([row["scores"][0] for row in found], rel=1e-8)
    table = run(folder, *samples).stdout.splitlines()
    width = min(60, max(map(len, samples)))
    assert table[1] == f"{samples[0].ljust(width)}  red     {found[0]['scores'][0]:.4f}"


def test_a_file_that_cannot_be_used_is_named_and_others_are_answered(tmp_path: Path) -> None:
    assert {name.encode() for name in program.IGNORED_NAMES} == IGNORED_NAMES
    colours.write_export(tmp_path / "export")
    images = tmp_path / "images"
    (images / "below").mkdir(parents=True)
    for name in ("b.png", "below/a.PNG", ".hidden.png", "Thumbs.db"):
        Image.new("RGB", (30, 20), (230, 25, 50)).save(images / name, "PNG")
    (tmp_path / "empty").mkdir()
    (tmp_path / "none.txt").write_text("no image")
    (tmp_path / "cut.jpg").write_bytes(FILES["progressive"][:200])
    reasons = {
        "empty": "the folder has no file that sharding takes",
        "none.txt": "not an image of a known",
        "cut.jpg": "damaged jpeg",
        "missing.png": "No such",
    }
    done = run(tmp_path / "export", images, *(tmp_path / name for name in reasons), "-o", "json")
    assert done.returncode == 2
    rows = [json.loads(line)["file"] for line in done.stdout.splitlines()]
    assert rows == [f"{images}/b.png", f"{images}/below/a.PNG"]
    assert "2 files were left out by their names" in done.stderr
    for name, reason in reasons.items():
        assert f"error: {tmp_path / name}: {reason}" in done.stderr


def test_several_labels_are_those_at_their_threshold(tmp_path: Path) -> None:
    colours.write_export(tmp_path, thresholds=[0.0, 1.0, 0.4999, 0.5001, 1.0, 0.0])
    model = program.ImageModel(tmp_path)
    outputs = {"logits": np.array([[-800.0, 9.0, 0.0, 0.0, 3.0, 800.0]], np.float32)}
    assert model.answer(outputs, None) == [([CLASSES[5], CLASSES[2], CLASSES[0]], [1.0, 0.5, 0.0])]
    assert model.answer(outputs, 2)[0][0] == [CLASSES[5], CLASSES[1]]


def test_scores_at_a_threshold_are_answered_as_in_training(tmp_path: Path) -> None:
    """Thresholds are edges of bins."""
    colours.write_export(tmp_path)
    edges, names = multilabel.edge_probabilities(1024), [str(place) for place in range(1024)]
    model = program.ImageModel(tmp_path)
    model.labels, model.thresholds = names, edges.tolist()
    logits = multilabel.bin_edges(1024)
    for row in (logits, np.nextafter(logits, -99), logits.astype(np.float32)):
        (answer,) = model.answer({"logits": row[None]}, None)
        assert answer is not None
        assert sorted(map(int, answer[0])) == np.flatnonzero(multilabel.sigmoid(row) >= edges).tolist()


def test_outputs_that_are_no_numbers_are_no_answers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words.write_export(tmp_path)
    model = program.TextModel(tmp_path)
    logits = np.array([[0, 1, 2], [0, np.nan, 2]], np.float32)
    unusable: list[str] = []
    rows = list(program.predict(model, lambda inputs: {"logits": logits}, ["red", "green"], str, None, unusable))
    assert ([row[0] for row in rows], unusable) == (["red"], ["green"])
    assert "are not finite" in capsys.readouterr().err


def test_texts_come_as_lines(tmp_path: Path) -> None:
    words.write_export(tmp_path)
    (tmp_path / "texts").write_bytes("red\r\n\nü blue\n".encode() + b"\xff\n")
    for name, stdin in ((str(tmp_path / "texts"), ""), ("-", "red\n\nü blue\n")):
        done = run(tmp_path, "green", "--lines", name, "-o", "json", stdin=stdin)
        rows = [json.loads(line) for line in done.stdout.splitlines()]
        assert [row["text"] for row in rows] == ["green", "red", "", "ü blue"]
        assert [row["labels"] for row in rows if row["text"]] == [["green"], ["red"], ["blue"]]
        assert (done.returncode, "no UTF-8" in done.stderr) == ((2, True) if name != "-" else (0, False))
    assert run(tmp_path).returncode == 2
    done = run(tmp_path, "red", str(tmp_path / "texts"))
    assert (done.returncode, done.stdout, f"pass --lines {tmp_path / 'texts'}" in done.stderr) == (2, "", True)
