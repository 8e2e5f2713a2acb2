"""`resources.container: prebuilt`: Vertex AI's own PyTorch container, where the project is installed at every start.

For those who cannot build an image. Slower to start: every machine of every job installs everything again. The wheel
and the constraints lie in the bucket, named by their content; what installs them is pipelines/prebuilt_start.py.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import io
import re
import subprocess
import sys
import tempfile
import tomllib
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from contracts import storage
from contracts.config import RunConfig
from contracts.errors import ConfigError, TryAgain
from contracts.machines import find_machine
from pipelines.build import find_checkout
from pipelines.images import OWN_CODE_ROLES, STAGE_ROLES, hash_requirements, requirements_of
from pipelines.workers import serving_section

PACKAGES_FOLDER = "packages"
_CONSTRAINTS = "constraints/constraints.txt"
_START = "prebuilt_start.py"


@dataclass(frozen=True)
class PrebuiltImage:
    """A row of Vertex AI's list of prebuilt PyTorch containers."""

    path: str
    """Behind HOST/vertex-ai/training/. Only the tag `latest` is supported: no digest can be pinned."""
    pytorch: str
    python: str
    patched_until: str
    available_until: str


AS_OF = "2026-11-22"
SOURCE = "https://docs.cloud.google.com/gemini-enterprise-agent-platform/machine-learning/training/pre-built-containers"
# The newest of the list; all of it has Python 3.10, which the project does not run on: the start brings another Python.
GPU_IMAGE = PrebuiltImage("pytorch-gpu.2-4.py310:latest", "2.4", "3.10", "2025-07-24", "2026-07-24")
CPU_IMAGE = PrebuiltImage("pytorch-cpu.2-4.py310:latest", "2.4", "3.10", "2025-07-24", "2026-07-24")

WHEEL_TIMEOUT_S = 600.0

BEAM_IMAGE = "apache/beam_python3.11_sdk:2.77.0"
"""Beam's own workers, which know nothing of this project."""

# What each stage needs, as the Dockerfiles have it; `pipeline` are the pipeline's own tasks.
EXTRAS = {
    "pipeline": "shard,gcp",
    "shard": "shard,gcp",
    "profile": "train,bucket",
    "train": "train,bucket",
    "export": "export,bucket,rtx",
}


@dataclass(frozen=True)
class PrebuiltContainer:
    """How a stage starts in it."""

    image: str
    start: tuple[str, ...]
    """What comes before the stage's own command."""
    documents: Mapping[str, bytes]
    """By URI: what must be in the bucket before a submission."""
    identity: str
    """Stands for all that is installed: the hashes of wheel, constraints and code.requirements."""


def prebuilt_container(config: RunConfig, stage: str) -> PrebuiltContainer:
    """Return the prebuilt container of a stage (`pipeline`: of the pipeline's own tasks).

    Raises:
        ConfigError: This is no checkout, or its wheel cannot be built.
    """
    line = storage.join(storage.normalise(config.run.root), config.run.name)
    root = find_checkout()
    name, wheel = build_wheel(root)
    constraints = (root / _CONSTRAINTS).read_bytes()
    wheel_sha256, constraints_sha256 = (hashlib.sha256(content).hexdigest() for content in (wheel, constraints))
    wheel_uri = storage.join(line, PACKAGES_FOLDER, wheel_sha256[:16], name)
    constraints_uri = storage.join(line, PACKAGES_FOLDER, constraints_sha256[:16], "constraints.txt")
    program = (Path(__file__).parent / _START).read_text(encoding="utf-8")
    packages = (wheel_uri, wheel_sha256, constraints_uri, constraints_sha256)
    documents = {wheel_uri: wheel, constraints_uri: constraints}
    identity = f"wheel sha256:{wheel_sha256}, constraints sha256:{constraints_sha256}"
    own: tuple[str, ...] = ()
    content = requirements_of(config) if STAGE_ROLES.get(stage) in OWN_CODE_ROLES else None
    if content is not None:
        sha256 = hash_requirements(content)
        own = (storage.join(line, PACKAGES_FOLDER, sha256[:16], "own-requirements.txt"), sha256)
        documents[own[0]] = content
        identity += f", code.requirements sha256:{sha256}"
    return PrebuiltContainer(
        image=image_uri(config, stage),
        start=("python3", "-c", program, *packages, EXTRAS[stage], *own, "--"),
        documents=documents,
        identity=identity,
    )


@dataclass(frozen=True)
class WorkerPackages:
    """What makes Beam's own SDK image a worker of the shard stage."""

    image: str
    options: tuple[str, ...]
    """Flags for Beam: it stages these packages, and each worker installs them when it starts."""
    documents: Mapping[str, bytes]


def worker_packages(config: RunConfig) -> WorkerPackages:
    """Return what Dataflow's workers install at their start: the wheel, and one that only requires what it needs.

    Beam's boot program installs a package with what it requires but without an extra, in an order that is not given:
    so the second wheel holds nothing and names the requirements, each as the constraints pin it.

    Raises:
        ConfigError: This is no checkout, or its wheel cannot be built.
    """
    found = prebuilt_container(config, "shard")
    line = storage.join(storage.normalise(config.run.root), config.run.name)
    name, content = requirements_wheel(find_checkout())
    uri = storage.join(line, PACKAGES_FOLDER, hashlib.sha256(content).hexdigest()[:16], name)
    wheel_uri = found.start[3]
    return WorkerPackages(
        image=BEAM_IMAGE,
        options=(f"--extra_package={wheel_uri}", f"--extra_package={uri}"),
        documents={wheel_uri: found.documents[wheel_uri], uri: content},
    )


def requirements_wheel(root: Path) -> tuple[str, bytes]:
    """Return name and content of a wheel without files that requires what sharding needs; always the same bytes."""
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    lines = (root / _CONSTRAINTS).read_text(encoding="utf-8").splitlines()
    pinned = {_canonical(line.partition("==")[0]): line for line in lines if "==" in line}
    extras = project["optional-dependencies"]
    wanted = [*project["dependencies"], *extras["shard"], *extras["bucket"]]
    names = dict.fromkeys(_canonical(re.split(r"[^A-Za-z0-9._-]", line, maxsplit=1)[0]) for line in wanted)
    # Beam itself is the image's.
    requires = [pinned[name] for name in names if name != "apache-beam"]
    distribution = "shardline_shard_requirements"
    folder = f"{distribution}-{project['version']}.dist-info"
    head = ["Metadata-Version: 2.1", "Name: shardline-shard-requirements", f"Version: {project['version']}"]
    files = {
        f"{folder}/METADATA": "\n".join([*head, *(f"Requires-Dist: {line}" for line in requires)]) + "\n",
        f"{folder}/WHEEL": "Wheel-Version: 1.0\nGenerator: shardline\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = "".join(f"{path},,\n" for path in [*files, f"{folder}/RECORD"])
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        for path, text in {**files, f"{folder}/RECORD": record}.items():
            # Without a time the archive's bytes are those of its content.
            archive.writestr(zipfile.ZipInfo(path), text)
    return f"{distribution}-{project['version']}-py3-none-any.whl", stream.getvalue()


def _canonical(name: str) -> str:
    """Return a package's name as indexes compare it (PEP 503)."""
    return re.sub(r"[-_.]+", "-", name.strip()).lower()


def image_uri(config: RunConfig, stage: str) -> str:
    """Return the image, from the registry nearest to the jobs' region."""
    has_gpus = False
    if stage in ("profile", "train", "export"):
        section = serving_section(config) if stage == "export" else config.resources.machine
        has_gpus = find_machine(section).gpus > 0
    image = GPU_IMAGE if has_gpus else CPU_IMAGE
    continent = config.vertex.region.partition("-")[0]
    host = {"europe": "europe", "asia": "asia", "australia": "asia", "me": "europe"}.get(continent, "us")
    return f"{host}-docker.pkg.dev/vertex-ai/training/{image.path}"


@functools.cache
def build_wheel(root: Path) -> tuple[str, bytes]:
    """Return name and content of the checkout's wheel; the same files give the same bytes.

    Raises:
        ConfigError: It cannot be built.
        TryAgain: That did not end.
    """
    with tempfile.TemporaryDirectory(prefix="shardline-wheel-") as folder:
        if importlib.util.find_spec("hatchling") is not None:
            command = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", folder]
        else:
            command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", folder, str(root)]
        try:
            answer = subprocess.run(
                command, cwd=root, capture_output=True, text=True, check=False, timeout=WHEEL_TIMEOUT_S
            )
        except subprocess.TimeoutExpired:
            raise TryAgain(
                f"the project's wheel is not built after {WHEEL_TIMEOUT_S:g} s\n  to do: run the command again; "
                "install hatchling, and no package index is asked"
            ) from None
        wheels = list(Path(folder).glob("*.whl"))
        if answer.returncode or len(wheels) != 1:
            raise ConfigError(
                f"the project's wheel cannot be built: {' '.join(answer.stderr.split())[-500:]}",
                allowed="a checkout, with hatchling installed or pip and a package index",
                todo="install hatchling, or build images (`shardline images build`) and set resources.container=image",
            )
        return wheels[0].name, wheels[0].read_bytes()


def uses_prebuilt(config: RunConfig, role: str) -> bool:
    """Return whether a role's image is the prebuilt one: an image that the configuration names is taken as it is."""
    return config.resources.container == "prebuilt" and not getattr(config.vertex.images, role)
