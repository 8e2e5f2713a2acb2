"""Folders of profiling runs that were killed go with the next run; those of runs that live stay."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from trainer.profiling.scratch import PREFIX, scratch_folder

HOLD = """
import time
from trainer.profiling.scratch import scratch_folder
with scratch_folder() as folder:
    print(folder, flush=True)
    time.sleep(600)
"""


def test_a_folder_goes_at_the_end_and_that_of_a_killed_run_with_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    with subprocess.Popen([sys.executable, "-c", HOLD], env=environment, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        theirs = Path(other.stdout.readline().strip())
        with scratch_folder() as ours:
            (ours / "file").write_text("1")
            assert theirs.is_dir() and ours != theirs
        assert not ours.exists() and theirs.is_dir()
        other.send_signal(signal.SIGKILL)
    assert theirs.is_dir()
    with scratch_folder():
        assert not theirs.exists()
    assert list(tmp_path.glob(f"{PREFIX}*")) == []
