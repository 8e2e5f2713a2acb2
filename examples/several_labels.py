"""Draw images of coloured shapes and their list: `python examples/several_labels.py raw/colours [--images 300]`.

FOLDER/N.png has shapes of one to four colours on grey noise; FOLDER/labels.jsonl lists for each image which ones.
"""

import argparse
import json
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw

SIDE, SHAPES_PER_COLOUR = 32, 2
COLOURS = {"blue": (50, 90, 220), "green": (60, 190, 80), "red": (220, 60, 50), "yellow": (225, 205, 60)}


def draw(random: np.random.Generator) -> tuple[Image.Image, list[str]]:
    """Return an image, and the names of the colours in it: at least one."""
    image = Image.fromarray(np.repeat(random.integers(0, 160, (SIDE, SIDE, 1), dtype=np.uint8), 3, axis=2))
    pen = ImageDraw.Draw(image)
    names = [name for name in COLOURS if random.random() < 0.4] or [str(random.choice(list(COLOURS)))]
    for name in random.permutation(names * SHAPES_PER_COLOUR):
        radius = int(random.integers(2, 6))
        x, y = (int(random.integers(radius, SIDE - radius)) for _ in range(2))
        colour = tuple(int(value) for value in np.clip(COLOURS[name] + random.normal(0, 25, 3), 0, 255))
        shape = pen.ellipse if random.random() < 0.5 else pen.rectangle
        shape((x - radius, y - radius, x + radius, y + radius), colour)
    return image, names


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Draw images of coloured shapes and their list.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--images", type=int, default=300)
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    random = np.random.default_rng(0)
    rows = []
    for number in range(options.images):
        picture, labels = draw(random)
        picture.save(options.folder / f"{number:04d}.png")
        rows.append({"uri": f"{number:04d}.png", "label": labels})
    (options.folder / "labels.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
