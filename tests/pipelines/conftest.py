import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from PIL import Image

Shardline = Callable[..., subprocess.CompletedProcess[str]]

# All that the stages need to be quick.
CONFIG = {
    "run": {"name": "tiny", "root": "runs"},
    "sharding": {"source": "raw", "splits": {"train": 0.6, "validation": 0.2, "test": 0.2}},
    "data": {"image_size": 8},
    "train": {"global_batch_size": 8, "epochs": 1},
}


@pytest.fixture(scope="session")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a configuration and the images it names; its path holds all that a command may stumble over."""
    folder = tmp_path_factory.mktemp("it's a python3 project")
    (folder / "tiny.yaml").write_text(yaml.safe_dump(CONFIG))
    for label in ("left", "right"):
        (folder / "raw" / label).mkdir(parents=True)
        for number in range(24):
            shade = number * 10 + (5 if label == "left" else 0)
            Image.new("RGB", (8, 8), (shade, 255 - shade, number)).save(folder / "raw" / label / f"{number}.png")
    return folder


@pytest.fixture(scope="session")
def environment(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Environment of a command; its folder for temporary files has a difficult name too."""
    return {**os.environ, "OMP_NUM_THREADS": "1", "TMPDIR": str(tmp_path_factory.mktemp("python3 tmp"))}


@pytest.fixture(scope="session")
def shardline(project: Path, environment: dict[str, str]) -> Shardline:
    """Runs the command line in the project's folder."""

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "pipelines.cli", *arguments],
            cwd=project,
            env=environment,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )

    return run
