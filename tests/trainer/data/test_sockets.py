"""Loader processes hand over tensors also where the temporary folder's path is long."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

CODE = """
import torch
from torch.utils.data import DataLoader
from trainer.data.sockets import shorten_socket_paths
from multiprocessing import util
shorten_socket_paths()
loader = DataLoader(torch.arange(8.0).reshape(8, 1), batch_size=2, num_workers=1)
assert sum(batch.sum().item() for batch in loader) == 28
print(util.get_temp_dir())
"""


@pytest.mark.parametrize("length", [10, 120])
def test_batches_arrive_whatever_the_length_of_the_temporary_folder(tmp_path: Path, length: int) -> None:
    folder = tmp_path / ("x" * length)
    folder.mkdir()
    environment = {**os.environ, "TMPDIR": str(folder), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", CODE], env=environment, capture_output=True, text=True, timeout=120, check=True
    )
    used = Path(done.stdout.strip())
    assert len(os.fsencode(used / "listener-xxxxxxxx")) <= 107
    # It goes with the process.
    assert not used.exists()
