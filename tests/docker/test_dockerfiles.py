"""What the Dockerfiles and the Cloud Build file name is there: nothing here can build an image."""

import importlib.util
import json
import re
import shlex
import subprocess
import tomllib
from pathlib import Path

import pytest
import yaml

from contracts import PACKAGES
from contracts.config import MachineSection
from pipelines.images.build import _build_arguments, stage_context
from pipelines.images.cloud_build import BUILD_FILE
from pipelines.images.record import ROLES, find_tensorrt

ROOT = Path(__file__).resolve().parents[2]
SETTINGS = tomllib.loads((ROOT / "pyproject.toml").read_text())
PROJECT = SETTINGS["project"]
CONSTRAINTS = dict(
    line.split("==") for line in (ROOT / "constraints" / "constraints.txt").read_text().splitlines() if "==" in line
)


def instructions(role: str) -> list[tuple[str, str]]:
    """Return the instructions of a Dockerfile, in order, continued lines joined."""
    text = (ROOT / "docker" / f"{role}.Dockerfile").read_text()
    lines = [line for line in text.splitlines() if not line.lstrip().startswith("#")]
    joined = "\n".join(lines).replace("\\\n", " ")
    found = [line.partition(" ") for line in joined.splitlines() if line.strip()]
    return [(name, rest.strip()) for name, _, rest in found]


def all_of(role: str, name: str) -> list[str]:
    return [rest for instruction, rest in instructions(role) if instruction == name]


@pytest.fixture(scope="module")
def context(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("images") / "context"
    stage_context(ROOT, folder)
    return folder


@pytest.mark.parametrize("role", ROLES)
def test_what_is_copied_is_there(role: str, context: Path) -> None:
    copies = [shlex.split(rest) for rest in all_of(role, "COPY")]
    sources = [source for words in copies if not words[0].startswith("--from") for source in words[:-1]]
    assert sources
    assert [source for source in sources if not (context / source).exists()] == []
    assert set(PACKAGES) <= set(sources)


@pytest.mark.parametrize("role", ROLES)
def test_the_extras_exist_and_constraints_are_those_of_the_local_install(role: str) -> None:
    (install, *_) = [rest for rest in all_of(role, "RUN") if re.search(r'pip install .*"\.\[', rest)]
    assert "--constraint constraints/constraints.txt" in install
    for extras in re.findall(r'"\.\[([a-z,]+)\]"', install):
        assert set(extras.split(",")) <= set(PROJECT["optional-dependencies"])


@pytest.mark.parametrize(
    ("given", "installed"),
    [
        ({}, ["[export,bucket,vertex]", "tensorrt_cu12==11.3.0.*"]),
        ({"CUDA": "cu130", "RTX": "rtx"}, ["[export,bucket,vertex]", "[rtx]", "tensorrt_cu13==11.3.0.*"]),
        ({"TENSORRT": ""}, ["[export,bucket,vertex]"]),
        ({"TENSORRT": "11.2.1", "CUDA": "cu126"}, ["[export,bucket,vertex]", "tensorrt_cu12==11.2.1.*"]),
    ],
)
def test_the_export_has_the_tensorrt_of_its_torch_s_cuda(
    given: dict[str, str], installed: list[str], tmp_path: Path
) -> None:
    """Docker's own shell runs the line; only `python` is another one, which notes what pip is to install."""
    (line,) = [rest for rest in all_of("export", "RUN") if '".[' in rest]
    tool = tmp_path / "python"
    tool.write_text('#!/bin/sh\nfor last; do :; done\necho "$last"\n')
    tool.chmod(0o755)
    defaults = dict(argument.split("=", 1) for argument in all_of("export", "ARG"))
    done = subprocess.run(
        ["/bin/sh", "-c", line],
        env={**defaults, **given, "PATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert [word.removeprefix(".") for word in done.stdout.splitlines()[:-1]] == installed
    assert defaults["TENSORRT"] == find_tensorrt(MachineSection(type="g2-standard-12"))
    # Wheels of both CUDAs are NVIDIA's own packages; the extra is of CUDA 13.
    (extra,) = PROJECT["optional-dependencies"]["tensorrt"]
    assert extra == f"tensorrt=={defaults['TENSORRT']}.*"


@pytest.mark.parametrize("role", ROLES)
def test_images_run_as_root_unless_another_user_is_given(role: str) -> None:
    order = [(name, rest) for name, rest in instructions(role) if name in ("USER", "RUN", "COPY")]
    assert order[-1] == ("USER", "${USER}")
    assert all_of(role, "ARG")[-1] == "USER=root"
    assert any("useradd" in rest and rest.endswith("shardline") for rest in all_of(role, "RUN"))


@pytest.mark.parametrize(("role", "module"), [("trainer", "trainer.task"), ("export", "trainer.export.task")])
def test_the_entry_point_is_the_stage_s_command(role: str, module: str) -> None:
    (entry,) = all_of(role, "ENTRYPOINT")
    assert json.loads(entry) == ["python", "-m", module]
    assert importlib.util.find_spec(module) is not None


def test_workers_of_dataflow_start_by_beam_s_boot_program() -> None:
    (entry,) = all_of("pipeline", "ENTRYPOINT")
    (program,) = json.loads(entry)
    copied = [shlex.split(rest) for rest in all_of("pipeline", "COPY") if rest.startswith("--from=beam")]
    assert any(program.startswith(words[-1] + "/") for words in copied)
    assert any("RUN_PYTHON_SDK_IN_DEFAULT_ENVIRONMENT=1" in rest for rest in all_of("pipeline", "ENV"))


def test_versions_are_those_of_the_constraints() -> None:
    beam = CONSTRAINTS["apache-beam"]
    assert f"BEAM={beam}" in all_of("pipeline", "ARG")
    assert any(f"'{beam}'" in rest for rest in all_of("pipeline", "RUN"))
    sdk, base = all_of("pipeline", "FROM")
    assert sdk.startswith("apache/beam_python3.11_sdk:")
    assert base.startswith("python:3.11-")
    for role in ("trainer", "export"):
        assert f"TORCH={CONSTRAINTS['torch']}" in all_of(role, "ARG") and "CUDA=cu126" in all_of(role, "ARG")
        assert all_of(role, "FROM") == [base]


@pytest.mark.parametrize("role", ["trainer", "export"])
def test_the_driver_s_libraries_are_the_machine_s(role: str) -> None:
    (variables,) = all_of(role, "ENV")
    assert "LD_LIBRARY_PATH=/usr/local/nvidia/lib64 " in variables + " "
    assert "compat" not in variables


def test_cloud_build_builds_every_role(context: Path) -> None:
    build = yaml.safe_load((context / BUILD_FILE).read_text())
    assert build["options"]["logging"] == "CLOUD_LOGGING_ONLY"
    steps = {step["id"]: step for step in build["steps"]}
    assert set(steps) == set(ROLES)
    for role, step in steps.items():
        arguments = step["args"]
        file = arguments[arguments.index("--file") + 1]
        assert file == f"docker/{role}.Dockerfile"
        assert (context / file).is_file()
        assert arguments[-1] == "."
        tag = arguments[arguments.index("--tag") + 1]
        assert tag in build["images"]
        assert tag == f"${{_REPOSITORY}}/{role}:${{_TAG}}"
        assert set(step["waitFor"]) <= {"-", *ROLES}
    used = set(re.findall(r"\$\{(_[A-Z_]+)\}", (context / BUILD_FILE).read_text()))
    assert used == set(build["substitutions"])
    given = {argument for step in steps.values() for argument in step["args"] if argument.startswith("TENSORRT=")}
    assert given
    options = dict.fromkeys(("_TENSORRT", "_RTX", "_USER", "_CUDA_TRAINER", "_CUDA_EXPORT"), "x")
    for role, step in steps.items():
        here = [word.partition("=")[0] for word in _build_arguments(role, options) if "=" in word]
        there = [word.partition("=")[0] for word in step["args"] if re.fullmatch(r"[A-Z]+=\$\{\w+\}", word)]
        assert here == there
        assert set(there) <= {word.partition("=")[0] for word in all_of(role, "ARG")}
