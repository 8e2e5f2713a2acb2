"""Arrays in files of the work folder, written so that a full disk is an error with its number, not a signal.

numpy itself tells a short write without errno, and a file that is mapped before it has its blocks ends the process with
SIGBUS when the disk is full.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt


def write_array(path: Path, array: npt.NDArray[Any]) -> None:
    """Write a .npy file.

    Raises:
        OSError: ENOSPC or its like, when it does not fit.
    """
    whole = np.ascontiguousarray(array)
    with path.open("wb") as stream:
        np.lib.format.write_array_header_1_0(stream, np.lib.format.header_data_from_array_1_0(whole))
        stream.write(whole.data)


def make_array(path: Path, shape: tuple[int, ...], dtype: npt.DTypeLike) -> np.memmap[Any, Any]:
    """Return a new .npy file as an array that is mapped into memory; its blocks are the file's already.

    Raises:
        OSError: ENOSPC or its like, when it does not fit.
    """
    array = np.lib.format.open_memmap(path, "w+", np.dtype(dtype), shape)
    with path.open("r+b") as stream:
        os.posix_fallocate(stream.fileno(), 0, path.stat().st_size)
    return array
