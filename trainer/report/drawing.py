"""Pictures for TensorBoard, light and of bounded size: a sheet of images with captions."""

from __future__ import annotations

import io
from collections.abc import Sequence

from PIL import Image, ImageDraw, ImageFont

from records.decode import Pixels

# Side of an image on a sheet: larger ones are made smaller, small ones larger by a whole factor.
THUMBNAIL = 128
COLUMNS = 4
_GAP, _LINE = 10, 15
PAPER, INK = (255, 255, 255), (22, 27, 34)


def png(image: Image.Image) -> bytes:
    """Return a picture as a PNG file; equal pictures are equal bytes."""
    stream = io.BytesIO()
    image.save(stream, "PNG")
    return stream.getvalue()


def draw_sheet(images: Sequence[Pixels], captions: Sequence[Sequence[str]]) -> Image.Image:
    """Return images in rows of four, each above its lines of text.

    Args:
        images: [H, W, 3] uint8 each.
        captions: Of each image, at most two lines.
    """
    font = font_of_size(12)
    columns, rows = min(COLUMNS, len(images)), -(-len(images) // COLUMNS)
    width, height = THUMBNAIL + _GAP, THUMBNAIL + 2 * _LINE + _GAP
    sheet = Image.new("RGB", (columns * width + _GAP, rows * height + _GAP), PAPER)
    draw = ImageDraw.Draw(sheet)
    for number, (pixels, lines) in enumerate(zip(images, captions, strict=True)):
        left, top = _GAP + number % COLUMNS * width, _GAP + number // COLUMNS * height
        thumbnail = _thumbnail(pixels)
        sheet.paste(thumbnail, (left + (THUMBNAIL - thumbnail.width) // 2, top + THUMBNAIL - thumbnail.height))
        for line, text in enumerate(lines[:2]):
            fitting = fit(draw, printable(text), font, THUMBNAIL)
            draw.text((left, top + THUMBNAIL + 2 + line * _LINE), fitting, INK, font)
    return sheet


def _thumbnail(pixels: Pixels) -> Image.Image:
    image = Image.fromarray(pixels)
    longest = max(image.size)
    if longest <= THUMBNAIL:
        # By a whole factor, each pixel as it is: what was trained on is to be seen.
        factor = THUMBNAIL // longest
        return image.resize((image.width * factor, image.height * factor), Image.Resampling.NEAREST)
    width, height = (max(1, side * THUMBNAIL // longest) for side in image.size)
    return image.resize((width, height), Image.Resampling.BOX)


def printable(text: str) -> str:
    """Return text on one line, without characters that turn or hide what stands beside them."""
    return "".join(character if character.isprintable() else "·" for character in text[:200])


def fit(draw: ImageDraw.ImageDraw, text: str, font: ImageFont.FreeTypeFont | ImageFont.ImageFont, width: int) -> str:
    """Return text, cut where it is wider than so many pixels."""
    if draw.textlength(text, font) <= width:
        return text
    while text and draw.textlength(text + "…", font) > width:
        text = text[:-1]
    return text + "…"


def font_of_size(size: int) -> ImageFont.FreeTypeFont | ImageFont.ImageFont:
    """Return Pillow's own font: the same on every machine."""
    return ImageFont.load_default(size)
