"""What containers find first in PATH: one Python."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from rehearsal.machines.commands import with_commands, write_commands


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return with_commands(dict(os.environ), write_commands(tmp_path_factory.mktemp("com mands")))


def run(script: str, environment: dict[str, str], folder: Path) -> tuple[int, str, str]:
    done = subprocess.run(
        ["sh", "-c", script], env=environment, cwd=folder, capture_output=True, text=True, timeout=60, check=False
    )
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize("name", ["python", "python3"])
def test_each_python_is_this_one(environment: dict[str, str], tmp_path: Path, name: str) -> None:
    assert run(f"{name} -Iu -c 'import sys; print(sys.prefix)'", environment, tmp_path) == (0, f"{sys.prefix}\n", "")
    (tmp_path / "a b.py").write_text("import sys; print(sys.argv[1:])")
    assert run(f"{name} 'a b.py' -m pip '' 'x  y'", environment, tmp_path) == (0, "['-m', 'pip', '', 'x  y']\n", "")
