"""The demo's images: complete, the same every time, and left alone when they are there."""

import subprocess
import sys
from collections import Counter
from pathlib import Path

import numpy as np

from records.decode import decode

SCRIPT = Path(__file__).parents[2] / "examples" / "digits.py"


def run(folder):
    return subprocess.run([sys.executable, SCRIPT, folder], capture_output=True, text=True, check=False)


def test_all_digits_are_there_and_a_second_run_changes_nothing(tmp_path):
    folder = tmp_path / "raw" / "digits"
    done = run(folder)
    assert (done.returncode, done.stdout, done.stderr) == (0, f"{folder}: 1797 images written\n", "")
    digits = np.load(SCRIPT.with_name("digits.npz"))
    paths = sorted(folder.rglob("*"))
    assert Counter(path.parent.name for path in paths if path.is_file()) == {
        str(digit): count for digit, count in Counter(digits["labels"].tolist()).items()
    }
    assert list(folder.parent.iterdir()) == [folder]
    for number in (0, 1000, 1796):
        image = decode((folder / str(digits["labels"][number]) / f"{number:04d}.png").read_bytes())
        assert (image.pixels.shape, image.mode, image.image_format) == ((32, 32, 3), "L", "png")
        # Averaged back to 8x8 it is the scan it was made from, but for the resampling filter.
        small = image.pixels[..., 0].reshape(8, 4, 8, 4).mean(axis=(1, 3)) / 255 * 16
        assert np.corrcoef(small.ravel(), digits["images"][number].ravel())[0, 1] > 0.97
    before = [(path.read_bytes(), path.stat().st_mtime_ns) for path in paths if path.is_file()]
    done = run(folder)
    assert (done.returncode, done.stdout) == (0, f"{folder}: 1797 images are already there\n")
    assert [(path.read_bytes(), path.stat().st_mtime_ns) for path in paths if path.is_file()] == before


def test_other_files_are_not_touched(tmp_path):
    (tmp_path / "mine.txt").write_text("x")
    done = run(tmp_path)
    assert done.returncode != 0 and "holds other files" in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]
