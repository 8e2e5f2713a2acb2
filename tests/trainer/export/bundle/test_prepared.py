"""What sharding does to pixels, the shipped predict.py does: else a model answers other images than it has learnt."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from contracts import storage
from contracts.artifacts import ShardManifest
from contracts.config import ShardingSection
from contracts.stage import run_stage
from records.decode import decode_rgb
from records.source import SOURCE_NAME
from sharding.images import Checks, check
from sharding.task import shard
from tests.trainer.export import colours
from tests.trainer.export.bundle.test_bundle import Export, edit_program, make_known
from trainer.predict.serving import BadSample
from trainer.tasks.images.predict import PREPROCESS_NAME, Preprocessing

EVERYTHING = {
    "background": "#20c080",
    "convert": {"cmyk": True, "depth": True, "orientation": True},
    "resize": 24,
}


def encode(image: Image.Image, name: str, **options: Any) -> bytes:
    stream = io.BytesIO()
    image.save(stream, name, **options)
    return stream.getvalue()


def picture(height: int = 40, width: int = 60) -> Image.Image:
    """Return a smooth RGB picture, of no symmetry."""
    small = np.random.default_rng(0).integers(0, 256, (5, 7, 3), dtype=np.uint8)
    return Image.fromarray(small).resize((width, height), Image.Resampling.BICUBIC)


def see_through(name: str) -> bytes:
    image = picture().convert("RGBA")
    alpha = np.linspace(0, 255, 40 * 60).reshape(40, 60).astype(np.uint8)
    image.putalpha(Image.fromarray(alpha))
    return encode(image, name, **({"lossless": True} if name == "WebP" else {}))


def turned(name: str, tag: int, **options: Any) -> bytes:
    exif = Image.Exif()
    exif[0x0112] = tag
    return encode(picture(20, 30), name, exif=exif, **options)


def deep() -> bytes:
    return encode(Image.fromarray(np.arange(40 * 60, dtype=np.uint16).reshape(40, 60) * 27), "PNG")


FILES: dict[str, Callable[[], bytes]] = {
    "transparent png": lambda: see_through("PNG"),
    "transparent webp": lambda: see_through("WebP"),
    "transparent grey": lambda: encode(Image.open(io.BytesIO(see_through("PNG"))).convert("LA"), "PNG"),
    "transparent palette": lambda: encode(picture().quantize(16), "PNG", transparency=3),
    **{f"jpeg, orientation {tag}": (lambda tag=tag: turned("JPEG", tag)) for tag in range(1, 9)},
    "png, orientation 6": lambda: turned("PNG", 6),
    "tiff, orientation 6": lambda: turned("TIFF", 6),
    "cmyk": lambda: encode(picture(20, 30).convert("CMYK"), "JPEG"),
    "16-bit grey": deep,
    "large jpeg": lambda: encode(picture(), "JPEG"),
    "large grey jpeg": lambda: encode(picture().convert("L"), "JPEG"),
    "large webp": lambda: encode(picture(), "WebP"),
    "small jpeg": lambda: encode(picture(16, 16), "JPEG"),
}


@pytest.mark.parametrize("sharding", [{}, EVERYTHING], ids=["defaults", "everything"])
@pytest.mark.parametrize("name", FILES)
def test_a_file_has_the_pixels_that_its_shard_has(name: str, sharding: dict[str, Any], tmp_path: Path) -> None:
    content, section = FILES[name](), ShardingSection.model_validate(sharding)
    stored = check(content, Checks.of(section), with_pixels=False).content
    preprocessing = read_preprocessing(tmp_path, section)
    assert np.array_equal(preprocessing.prepare(content), decode_rgb(stored))
    assert np.array_equal(preprocessing.prepare(stored), decode_rgb(stored)), "what is in the shard is answered alike"


def test_the_most_pixels_of_a_source_are_those_of_a_question(tmp_path: Path) -> None:
    content = encode(picture(40, 60), "PNG")
    assert read_preprocessing(tmp_path, ShardingSection(max_pixels=2400)).prepare(content).shape == (40, 60, 3)
    with pytest.raises(BadSample, match="60 x 40 pixels are more than the limit of 2399"):
        read_preprocessing(tmp_path, ShardingSection(max_pixels=2399)).prepare(content)


def read_preprocessing(folder: Path, section: ShardingSection) -> Preprocessing:
    colours.write_export(folder)
    path = folder / PREPROCESS_NAME
    convert = [name for name, wanted in section.convert.model_dump().items() if wanted]
    own = {"background": section.background, "convert": convert, "resize": section.resize}
    own |= {"jpeg_quality": 90, "max_pixels": section.max_pixels}
    path.write_text(json.dumps(json.loads(path.read_text()) | own))
    return Preprocessing.read(path)


@pytest.fixture(scope="module")
def transparent(tmp_path_factory: pytest.TempPathFactory) -> Export:
    """An export and shards of pictures of which a half is transparent, black below: the rest tells the class."""
    place = tmp_path_factory.mktemp("transparent")
    for label, name in enumerate(colours.CLASSES):
        (place / "raw" / name).mkdir(parents=True)
        for number in range(4):
            image = Image.fromarray(colours.draw(label, number)).convert("RGBA")
            pixels = np.array(image)
            pixels[: image.height // 2] = 0
            Image.fromarray(pixels).save(place / "raw" / name / f"{number}.png")
    shares = {"train": 0.3, "validation": 0.1, "test": 0.6}
    section = {"source": str(place / "raw"), "splits": shares, "stratify": "exact"}
    arguments = ["--output", str(place / "shards"), "--config-json", json.dumps({"sharding": section})]
    assert run_stage("shard", shard, arguments) == 0
    shards = ShardManifest.load(storage.normalise(place / "shards"))
    colours.write_export(place / "export", shards)
    return make_known(place, shards)


def test_the_gate_asks_about_the_source_s_own_files(transparent: Export) -> None:
    gate = transparent.check(score=transparent.score)
    assert (gate.status, gate.figures["changed_images"]) == ("passed", gate.figures["images"])


def test_a_program_that_drops_transparency_fails_the_gate(transparent: Export, tmp_path: Path) -> None:
    """With all defaults a run said 98 %, `predict` on the same files 33 %, and the gate said passed."""
    colours.write_export(tmp_path, transparent.shards)
    edit_program(
        tmp_path, "decode(content, self.background, self.max_pixels)", "decode(content, None, self.max_pixels)"
    )
    assert transparent.check(tmp_path, score=transparent.score).status == "failed"


def test_files_that_are_no_longer_what_was_sharded_are_asked_about_as_stored(transparent: Export) -> None:
    source = storage.local_path(transparent.shards_uri) / SOURCE_NAME
    there = source.read_text()
    source.write_text(transparent.shards_uri)
    gate = transparent.check(score=transparent.score)
    source.write_text(there)
    assert (gate.status, gate.figures["changed_images"]) == ("passed", 0)
