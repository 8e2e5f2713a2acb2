"""Draw gauges and what they read: `python examples/regression/draw.py raw/gauges`.

FOLDER/images/N.png is a dial with a hand, FOLDER/gauges.csv the list of images and readings from 0 to 100.
"""

import math
import sys
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw

SAMPLES, SIDE = 800, 32


def draw(random: np.random.Generator) -> tuple[Image.Image, float]:
    """Return an image and the reading of its hand: 0 points to the lower left, 50 up, 100 to the lower right."""
    image = Image.fromarray(random.integers(0, 90, (SIDE, SIDE, 3), dtype=np.uint8))
    pen, reading = ImageDraw.Draw(image), float(random.uniform(0, 100))
    x, y = (SIDE / 2 + float(random.uniform(-2, 2)) for _ in range(2))
    angle, length = math.radians(270 * reading / 100 - 225), float(random.uniform(9, 12))
    colour = tuple(int(value) for value in random.integers(110, 256, 3))
    pen.ellipse((x - 13, y - 13, x + 13, y + 13), outline=colour)
    pen.line((x, y, x + length * math.cos(angle), y + length * math.sin(angle)), colour, width=3)
    return image, reading


if __name__ == "__main__":
    folder, random = Path(sys.argv[1]), np.random.default_rng(0)
    (folder / "images").mkdir(parents=True, exist_ok=True)
    lines = ["image,reading"]
    for number in range(SAMPLES):
        image, reading = draw(random)
        image.save(folder / "images" / f"{number:04d}.png")
        lines.append(f"images/{number:04d}.png,{reading:.2f}")
    (folder / "gauges.csv").write_text("\n".join(lines) + "\n")
