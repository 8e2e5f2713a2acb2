"""Each image's Python set resolves, installs, and every stage's entry point answers in it: what can be seen of an image
where none can be built. The Dockerfile's own lines install it, into a fresh environment.
"""

import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from pipelines.images import list_sources
from tests.docker.test_dockerfiles import instructions

# The commands of components, jobs and workers; and what they import only once they work.
COMMANDS = {
    "cpu": "components.entry sharding.task",
    "gpu": "components.entry trainer.profiling.task trainer.task trainer.export.task",
}
IMPORTS = {
    "cpu": "apache_beam.io.gcp.gcsio sharding.graph sharding.dataflow gcsfs google.cloud.aiplatform "
    "components.begin components.describe components.record_run components.experiment inspection.report.page",
    "gpu": "trainer.worker trainer.train trainer.export.onnx_graph trainer.export.engine transformers "
    "tensorboard onnxruntime gcsfs google.cloud.aiplatform components.describe components.register_model "
    "inspection.report.page",
}


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("role", sorted(COMMANDS))
def test_entry_points_answer_in_a_fresh_environment(role: str, tmp_path: Path) -> None:
    context, place, python = tmp_path / "context", tmp_path / "opt", tmp_path / "venv" / "bin" / "python"
    clean = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    clean |= {"PYTHONSAFEPATH": "1", "GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT": "false", "OMP_NUM_THREADS": "1"}
    clean["PATH"] = f"{python.parent}:{clean['PATH']}"

    def run(line: str) -> str:
        done = subprocess.run(
            line, shell=True, cwd=place, env=clean, capture_output=True, text=True, timeout=1500, check=False
        )
        assert done.returncode == 0, f"{line}: {done.stdout[-2000:]}{done.stderr[-2000:]}"
        return done.stdout

    place.mkdir()
    for name, path in list_sources().items():
        (context / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, context / name)
    subprocess.run([sys.executable, "-m", "venv", str(tmp_path / "venv")], check=True, timeout=300)
    for name, rest in instructions(role):
        if name == "COPY" and not rest.startswith("--from"):
            *sources, target = shlex.split(rest)
            for source in sources:
                run(f"cp -r {context / source} {target}")
        elif name == "RUN" and "python" in rest and "--index-url" not in rest and "tensorrt_" not in rest:
            # The torch of these machines is the CPU's, and they have no TensorRT.
            run(rest.partition(" && python -c")[0])
    run("python -m pip check")
    shutil.rmtree(place)
    place.mkdir()
    for module in COMMANDS[role].split():
        assert "usage:" in run(f"python -m {module} --help")
    for module in IMPORTS[role].split():
        run(f"python -c 'import {module}'")
    assert str(tmp_path / "venv") in run("python -c 'import contracts; print(contracts.__file__)'")
    shutil.rmtree(tmp_path / "venv")
