"""Write 1,797 handwritten digits as image files: `python examples/digits.py raw/digits`.

Real input for the demo: the 8x8 scans of examples/digits.npz upscaled to 32x32 grey PNG files, FOLDER/DIGIT/NUMBER.png.
The scans are the test set of Alpaydin and Kaynak, Optical Recognition of Handwritten Digits, UCI Machine Learning
Repository, 1998, https://doi.org/10.24432/C50P49 (CC BY 4.0).

A complete set that is already there is left alone, file times included, so that the line finds its shards again. A
folder that holds anything else is not touched.
"""

from __future__ import annotations

import shutil
import sys
import uuid
from pathlib import Path

SCANS = Path(__file__).with_name("digits.npz")
"""images [1797, 8, 8] uint8, from 0 to 16, and their labels [1797] uint8."""
SIDE_PIXELS = 32
SAMPLES = 1797
# Intensities of the scans go from 0 to 16.
LEVELS = 16


def names_of(targets: list[int]) -> list[str]:
    """Return the relative path of each digit, in the order of the scans."""
    return [f"{digit}/{number:04d}.png" for number, digit in enumerate(targets)]


def write_digits(folder: Path) -> str:
    """Write the images below `folder`, all of them or none; return one line that says what was done.

    Raises:
        SystemExit: The folder is there and holds something else.
    """
    if folder.exists():
        found = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())
        numbers = sorted(name.partition("/")[2] for name in found)
        if numbers == [f"{number:04d}.png" for number in range(SAMPLES)]:
            return f"{folder}: {SAMPLES} images are already there"
        if any(folder.iterdir()):
            raise SystemExit(f"{folder} holds other files than the digits: give an empty or a new folder")

    import numpy as np
    from PIL import Image

    digits = np.load(SCANS)
    folder.parent.mkdir(parents=True, exist_ok=True)
    temporary = folder.with_name(f".tmp-{uuid.uuid4().hex}")
    try:
        for name, scan in zip(names_of(digits["labels"].tolist()), digits["images"], strict=True):
            path = temporary / name
            path.parent.mkdir(parents=True, exist_ok=True)
            grey = np.rint(scan * (255 / LEVELS)).astype(np.uint8)
            image = Image.fromarray(grey).resize((SIDE_PIXELS, SIDE_PIXELS), Image.Resampling.BICUBIC)
            image.save(path, format="PNG")
        # Renaming over an empty folder is allowed; a half-written set never has the final name.
        temporary.replace(folder)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return f"{folder}: {SAMPLES} images written"


if __name__ == "__main__":
    if len(sys.argv) != 2:
        raise SystemExit("usage: python examples/digits.py FOLDER")
    print(write_digits(Path(sys.argv[1])))
