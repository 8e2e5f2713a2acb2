from __future__ import annotations

import errno
import resource
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from trainer.export.arrays import make_array, write_array

REPOSITORY = Path(__file__).parents[3]


@pytest.mark.parametrize("array", [np.arange(12, dtype=np.float32).reshape(3, 4).T, np.zeros((0, 3), np.int64)])
def test_what_is_written_is_read_again(tmp_path: Path, array: np.ndarray) -> None:
    write_array(tmp_path / "a.npy", array)
    found = np.load(tmp_path / "a.npy")
    assert found.dtype == array.dtype
    assert np.array_equal(found, array)


def test_a_new_array_has_its_blocks(tmp_path: Path) -> None:
    array = make_array(tmp_path / "a.npy", (1000, 1000), np.uint8)
    assert (tmp_path / "a.npy").stat().st_blocks * 512 >= 1_000_000
    array[7] = 3
    del array
    assert np.load(tmp_path / "a.npy")[7].tolist() == [3] * 1000


def limit_file_size() -> None:
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))


@pytest.mark.parametrize(
    "call", ["write_array(path, np.zeros(10_000, np.uint8))", "make_array(path, (10_000,), np.uint8)"]
)
def test_a_full_disk_has_a_number(tmp_path: Path, call: str) -> None:
    program = (
        "import pathlib; import numpy as np\n"
        "from trainer.export.arrays import make_array, write_array\n"
        f"path = pathlib.Path({str(tmp_path / 'a.npy')!r})\n"
        f"try: {call}\n"
        "except OSError as error: print(error.errno)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=REPOSITORY, capture_output=True, text=True, preexec_fn=limit_file_size
    )
    assert (done.stdout.strip(), done.stderr) == (str(errno.EFBIG), "")
