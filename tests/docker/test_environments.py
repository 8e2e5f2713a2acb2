"""Each image's Python set resolves, installs, and every stage's entry point answers in it: what can be seen of an image
where none can be built. The set is installed as the Dockerfile says, into a fresh environment.
"""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from pipelines.images.build import stage_context
from tests.docker.test_dockerfiles import ROOT, all_of

# What runs in each image: the commands of components, jobs and workers; and what they import only once they work.
COMMANDS = {
    "pipeline": ["components.entry", "sharding.task"],
    "trainer": ["components.entry", "trainer.task", "trainer.profiling.task"],
    "export": ["components.entry", "trainer.export.task"],
}
IMPORTS = {
    "pipeline": [
        "apache_beam.io.gcp.gcsio",
        "sharding.graph",
        "sharding.runners.dataflow",
        "gcsfs",
        "google.cloud.aiplatform",
        "components.describe",
        "components.record_run",
        "components.experiment",
    ],
    "trainer": [
        "torch",
        "transformers",
        "trainer.worker",
        "trainer.train",
        "tensorboard",
        "gcsfs",
        "google.cloud.storage",
        "components.describe",
    ],
    "export": [
        "torch",
        "onnx",
        "onnxruntime",
        "trainer.export.graph.onnx_graph",
        "trainer.export.engines.engine",
        "tensorrt_rtx",
        "gcsfs",
        "google.cloud.aiplatform",
        "components.describe",
        "components.register_model",
    ],
}
# Of the bases: an image has it before the set is installed.
BASES = {"pipeline": [], "trainer": ["torch==2.13.0"], "export": ["torch==2.13.0"]}


@pytest.fixture(params=sorted(COMMANDS))
def environment(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[str, Path]]:
    """A role, and the interpreter of a fresh environment with its set."""
    role = request.param
    stage_context(ROOT, tmp_path / "context")
    subprocess.run([sys.executable, "-m", "venv", str(tmp_path / "venv")], check=True, timeout=300)
    python = tmp_path / "venv" / "bin" / "python"
    (install,) = [rest for rest in all_of(role, "RUN") if '".[' in rest]
    targets = re.findall(r'"(\.\[[a-z,]+\])"', install)
    pip = [str(python), "-m", "pip", "install", "--quiet", "--constraint", "constraints/constraints.txt"]
    for wanted in (BASES[role], *([target] for target in targets)):
        if wanted:
            answer = subprocess.run(
                [*pip, *wanted], cwd=tmp_path / "context", capture_output=True, text=True, timeout=1500, check=False
            )
            assert answer.returncode == 0, answer.stderr[-3000:]
    yield role, python
    shutil.rmtree(tmp_path / "venv")


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_entry_points_answer_in_a_fresh_environment(environment: tuple[str, Path], tmp_path: Path) -> None:
    role, python = environment
    clean = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    clean |= {"PYTHONSAFEPATH": "1", "GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT": "false", "OMP_NUM_THREADS": "1"}

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [str(python), *arguments], cwd=tmp_path, env=clean, capture_output=True, text=True, timeout=300, check=False
        )

    checked = run("-m", "pip", "check")
    assert checked.returncode == 0, checked.stdout
    for module in COMMANDS[role]:
        answer = run("-m", module, "--help")
        assert answer.returncode == 0, f"{module}: {answer.stderr}"
        assert "usage:" in answer.stdout
    for module in IMPORTS[role]:
        answer = run("-c", f"import {module}")
        assert answer.returncode == 0, f"{module}: {answer.stderr[-2000:]}"
    installed = run("-c", "import contracts; print(contracts.__file__)")
    assert str(tmp_path / "venv") in installed.stdout
