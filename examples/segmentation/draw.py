"""Draw images of shapes and their masks: `python examples/segmentation/draw.py raw/shapes`.

FOLDER/images/N.png is a noisy RGB image, FOLDER/masks/N.png its class by pixel, FOLDER/shapes.csv the list of both.
"""

import sys
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw

SAMPLES, SIDE, SHAPES = 600, 64, 3


def draw(random: np.random.Generator) -> tuple[Image.Image, Image.Image]:
    """Return an image and its mask: 0 background, 1 disc, 2 square, 3 triangle."""
    image = Image.fromarray(random.integers(0, 90, (SIDE, SIDE, 3), dtype=np.uint8))
    mask = Image.new("L", (SIDE, SIDE))
    for _ in range(SHAPES):
        kind, radius = int(random.integers(1, 4)), int(random.integers(7, 15))
        x, y = (int(random.integers(radius, SIDE - radius)) for _ in range(2))
        box = (x - radius, y - radius, x + radius, y + radius)
        colour = tuple(int(value) for value in random.integers(110, 256, 3))
        for target, fill in ((image, colour), (mask, kind)):
            pen = ImageDraw.Draw(target)
            if kind == 1:
                pen.ellipse(box, fill)
            elif kind == 2:
                pen.rectangle(box, fill)
            else:
                pen.polygon([(x, box[1]), (box[2], box[3]), (box[0], box[3])], fill)
    return image, mask


if __name__ == "__main__":
    folder, random = Path(sys.argv[1]), np.random.default_rng(0)
    for kind in ("images", "masks"):
        (folder / kind).mkdir(parents=True, exist_ok=True)
    for number in range(SAMPLES):
        for kind, picture in zip(("images", "masks"), draw(random), strict=True):
            picture.save(folder / kind / f"{number:04d}.png")
    lines = (f"images/{number:04d}.png,masks/{number:04d}.png" for number in range(SAMPLES))
    (folder / "shapes.csv").write_text("image,mask\n" + "\n".join(lines) + "\n")
