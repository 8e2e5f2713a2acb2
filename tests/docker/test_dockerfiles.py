"""What the Dockerfiles and the Cloud Build file name is there: nothing here can build an image."""

import re
import shlex
import subprocess
import tomllib
from pathlib import Path

import pytest
import yaml

import contracts
from pipelines.images import PACKAGES, ROLES, list_sources

ROOT = Path(__file__).resolve().parents[2]


def instructions(role: str) -> list[tuple[str, str]]:
    """Return the instructions of a Dockerfile, in order, continued lines joined."""
    text = (ROOT / "deploy" / "docker" / f"{role}.Dockerfile").read_text()
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("#")]
    found = [line.partition(" ") for line in "\n".join(lines).replace("\\\n", " ").splitlines()]
    return [(name, rest.strip()) for name, _, rest in found]


def all_of(role: str, name: str) -> list[str]:
    return [rest for instruction, rest in instructions(role) if instruction == name]


def copied(role: str) -> set[str]:
    """Return what a Dockerfile copies out of the context."""
    copies = [shlex.split(rest) for rest in all_of(role, "COPY") if not rest.startswith("--from")]
    return {source for words in copies for source in words[:-1]}


def test_what_is_copied_is_there_and_nothing_else_is_sent() -> None:
    names, used = set(list_sources()), copied("cpu") | copied("gpu")
    assert {name for name in used - names if not any(sent.startswith(f"{name}/") for sent in names)} == set()
    files = {*used, "deploy/docker/cloudbuild.yaml", *(f"deploy/docker/{role}.Dockerfile" for role in ROLES)}
    assert {name for name in names if name not in files and name.partition("/")[0] not in used} == set()


@pytest.mark.parametrize("role", ROLES)
def test_an_image_holds_all_packages_that_are_imported_in_it(role: str) -> None:
    held, ours = copied(role) & set(PACKAGES), "|".join(contracts.PACKAGES)
    for name, path in list_sources().items():
        if name.partition("/")[0] in held and name.endswith(".py"):
            assert set(re.findall(rf"^ *(?:from|import) ({ours})\b", path.read_text(), re.MULTILINE)) <= held, name


@pytest.mark.parametrize("role", ROLES)
def test_an_edit_of_the_sources_installs_no_dependency_again(role: str) -> None:
    lines = [f"{name} {rest}" for name, rest in instructions(role)]
    first = next(number for number, line in enumerate(lines) if line.split()[1] in PACKAGES)
    assert not [line for line in lines[:first] if "README" in line or "LICENSE" in line]
    installs = [line for line in lines if "pip install" in line]
    assert [line for line in installs if line not in lines[:first]] == installs[-1:] and "--no-deps" in installs[-1]
    assert all("--constraint constraints.txt" in line or '"torch==' in line for line in installs[:-1])


@pytest.mark.parametrize(
    ("given", "installed"),
    [
        ({}, ["tensorrt_cu12==11.3.0.*"]),
        ({"CUDA": "cu130", "RTX": "rtx"}, ["tensorrt_cu13==11.3.0.*", "rtx", "rtx.txt"]),
    ],
)
def test_the_gpu_image_has_the_tensorrt_of_its_torch_s_cuda(
    given: dict[str, str], installed: list[str], tmp_path: Path
) -> None:
    """Docker's own shell runs the line; only `python` is another one, which notes what it is asked for."""
    (line,) = [rest for rest in all_of("gpu", "RUN") if "tensorrt_" in rest]
    (tmp_path / "log").touch()
    (tmp_path / "python").write_text('#!/bin/sh\nfor last; do :; done\necho "$last" >> log\n')
    (tmp_path / "python").chmod(0o755)
    defaults = dict(argument.split("=", 1) for argument in all_of("gpu", "ARG"))
    environment = {**defaults, **given, "PATH": str(tmp_path)}
    subprocess.run(["/bin/sh", "-c", line], env=environment, cwd=tmp_path, check=True, timeout=60)
    assert (tmp_path / "log").read_text().split() == installed


def test_versions_are_those_of_the_constraints() -> None:
    pinned = (ROOT / "constraints" / "constraints.txt").read_text().splitlines()
    (beam,) = [line.partition("==")[2] for line in pinned if line.startswith("apache-beam==")]
    assert f"BEAM={beam}" in all_of("cpu", "ARG") and any(f"'{beam}'" in rest for rest in all_of("cpu", "RUN"))
    arguments = dict(argument.split("=", 1) for argument in all_of("gpu", "ARG"))
    assert f"torch=={arguments['TORCH']}" in pinned
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert extras["tensorrt"] == [f"tensorrt=={arguments['TENSORRT']}.*"]


def test_cloud_build_builds_both() -> None:
    text = (ROOT / "deploy" / "docker" / "cloudbuild.yaml").read_text()
    build = yaml.safe_load(text)
    assert [step["id"] for step in build["steps"]] == list(ROLES)
    for step in build["steps"]:
        role, words = step["id"], step["args"]
        tags = [f"${{_REPOSITORY}}/{role}:{tag}" for tag in ("latest", "${_TAG}")]
        assert {f"--file=deploy/docker/{role}.Dockerfile", *(f"--tag={tag}" for tag in tags)} <= set(words)
        assert set(tags) <= set(build["images"]) and f"--cache-from={tags[0]}" in words
        given = re.findall(r"--build-arg=([A-Z]+)=\$", " ".join(words))
        assert set(given) <= {word.partition("=")[0] for word in all_of(role, "ARG")}
    assert set(re.findall(r"\$\{(_[A-Z]+)\}", text)) == set(build["substitutions"])
