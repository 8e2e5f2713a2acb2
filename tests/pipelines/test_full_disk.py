"""A disk that is full when a stage starts: exit code 2, and what to do."""

import subprocess
import sys
from pathlib import Path

import yaml

from tests.conftest import small_config, write_pictures

# A limit on the size of files stands for a full disk where no file system may be mounted.
FULL = """
import os, resource, signal, sys
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[1]), resource.getrlimit(resource.RLIMIT_FSIZE)[1]))
os.execv(sys.executable, [sys.executable, *sys.argv[2:]])
"""


def test_a_stage_does_not_start_on_a_full_disk(tmp_path: Path) -> None:
    config = small_config(
        run={"root": str(tmp_path / "runs"), "name": "line"},
        sharding={"source": str(write_pictures(tmp_path / "source", per_class=4))},
        profile={"method": "off"},
    )
    (tmp_path / "line.yaml").write_text(yaml.safe_dump(config))
    done = subprocess.run(
        [sys.executable, "-c", FULL, "0", "-m", "pipelines.cli", "run", str(tmp_path / "line.yaml")],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        check=False,
    )
    assert done.returncode == 2, done.stderr
    assert "error: runs/line" in done.stderr and "cannot be written: File too large" in done.stderr
    assert "to do: free space there (df -h " in done.stderr and "AssertionError" not in done.stderr
    assert not any((tmp_path / "runs").rglob("*.tar"))
