"""A full disk: the checkpoint before stands, room is made, and the reason is said."""

import subprocess
import sys
from pathlib import Path

from contracts import storage
from tests.trainer.checkpoint.attempts import Attempt, committed

# A limit on the size of files stands for a full disk where no file system may be mounted: the write comes back short,
# then fails.
PROGRAM = """
import resource, signal, sys
import torch
from contracts.errors import StorageError
from tests.trainer.checkpoint.attempts import Attempt, groups, manifest

signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
attempt = Attempt(sys.argv[1])
attempt.save(1)
soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, hard))
big = {"model": {"w": torch.zeros(1 << 20)}, "optimizer": {}}
attempt.manager.save(manifest(2), big)
try:
    attempt.manager.wait()
except StorageError as error:
    print("REFUSED", error)
resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
print(attempt.said[-1])
attempt.save(3)
"""


def test_a_full_disk_costs_one_checkpoint(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path)], capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "REFUSED" in done.stdout
    assert "make room" in done.stdout
    assert "step-00000002.000001 could not be written (OSError: [Errno 27] File too large)" in done.stdout
    assert not list(tmp_path.glob("checkpoints/step-00000002*"))
    assert committed(tmp_path) == [1, 3]
    assert Attempt(tmp_path).resumed_at == 3
    assert not [item.name for item in storage.list_objects(storage.normalise(tmp_path)) if ".tmp-" in item.name]
