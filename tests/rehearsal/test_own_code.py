"""Own network and own transform of a folder outside the repository, in rehearsed containers without that folder.

What it does not prove: rehearsed containers are processes of this machine, with the packages of this environment. So
shardline itself may come from the checkout (an editable installation), and nothing shows that code.requirements
installs into an image. Files are seen by their absolute paths: so the folder of the code is moved away once it was
submitted.
"""

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import yaml

from tests.conftest import small_config

# On import, in every process of a container: where this was found, and that nothing leads to the user's folder.
LOOK = """
import os, sys
_ways = [os.getcwd(), *sys.path, *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
if "CLOUD_ML_JOB_ID" in os.environ:
    assert not [way for way in _ways if os.path.abspath(way or ".").startswith({project!r})], _ways
    assert sys.path[-1] == os.path.dirname(__file__), (sys.path, __file__)
    assert "" not in sys.path, sys.path
    with open({project!r} + "/seen.txt", "a") as seen:
        print(__name__, os.environ["CLOUD_ML_JOB_ID"], file=seen)
"""
NET = """
from torch import nn
from own_parts import width
def build(num_classes):
    return nn.Sequential(nn.Conv2d(3, width.WIDTH, 3), nn.ReLU(), nn.Flatten(), nn.LazyLinear(num_classes))
"""
CHANGE = """
import numpy, pathlib, own_parts
CURVE = pathlib.Path(own_parts.__file__).with_name("curve.bin")
TABLE = numpy.frombuffer(CURVE.read_bytes(), "uint8")
def change(image):
    return TABLE[image]
"""
FILES = {
    "own_net.py": LOOK + NET,
    "own_change.py": LOOK + CHANGE,
    "own_parts/__init__.py": "",
    "own_parts/width.py": "WIDTH = 4\n",
}


def write_project(folder: Path, pictures: Path) -> Path:
    """Write a project of a user's, with its configuration; return the folder of its code."""
    code = folder / "models"
    (folder / "tools").mkdir(parents=True)
    for name, text in FILES.items():
        path = code / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text.replace("{project!r}", repr(str(folder))))
    (code / "own_parts" / "curve.bin").write_bytes(bytes(range(255, -1, -1)))
    values = small_config(
        run={"name": "own"},
        sharding={"source": str(pictures)},
        profile={"window_s": 0.05},
        resources={"machine": {"type": "n1-standard-4"}, "ranks": 1},
        model={"architecture": "own_net:build", "arguments": {}},
        data={"transform": "own_change:change", "num_workers": 1},
        code={"path": "models"},
    )
    (folder / "own.yaml").write_text(yaml.safe_dump(values))
    return code


def move_away_when_submitted(code: Path, kept: Path, ended: threading.Event) -> None:
    """Rename the user's folder of code as soon as its archive is in the bucket."""
    while not ended.wait(0.1):
        if list(kept.glob("buckets/*/*/own/code/*.tar.gz")):
            code.rename(code.with_name("gone"))
            return


@pytest.mark.slow  # A whole rehearsal: three minutes.
@pytest.mark.timeout(1800)
def test_own_code_runs_in_containers_without_the_user_s_folder(pictures: Path, tmp_path: Path) -> None:
    project, kept, ended = tmp_path / "project", tmp_path / "kept", threading.Event()
    code = write_project(project, pictures)
    mover = threading.Thread(target=move_away_when_submitted, args=(code, kept, ended))
    mover.start()
    try:
        done = subprocess.run(
            [sys.executable, "-m", "pipelines.cli", "rehearse", "own.yaml", "--keep", str(kept)],
            cwd=project,
            # As in the shell of somebody who works on that code.
            env={**os.environ, "PYTHONPATH": str(project / "tools")},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
    finally:
        ended.set()
        mover.join()
    assert done.returncode == 0, done.stdout + done.stderr
    assert not code.exists()
    # Profile, training and export: each imported both modules.
    seen = {tuple(line.split()) for line in (project / "seen.txt").read_text().splitlines()}
    jobs = {job for _, job in seen}
    assert len(jobs) == 3 and seen == {(module, job) for module in ("own_net", "own_change") for job in jobs}
