"""`shardline images build`: the three images from these sources, by Cloud Build or a local engine, and their digests.

What is built is staged first: the files that the Dockerfiles name and nothing else, so that no key, data or environment
of the folder travels.
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import subprocess
import sys
import tempfile
import threading
from collections import deque
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path

from contracts import PACKAGES, storage
from contracts.config import RunConfig
from contracts.errors import EXIT_TRY_AGAIN, EXIT_USER_ERROR, ConfigError, ShardlineError, TryAgain
from contracts.machines import serving_section
from contracts.serving import TENSORRT_RTX
from pipelines.images.cloud_build import build_in_cloud
from pipelines.images.record import (
    OWN_CODE_ROLES,
    ROLES,
    ImageRecord,
    find_cuda,
    find_tensorrt,
    find_wrong,
    hash_requirements,
    is_pinned,
    read_record,
    record_path,
    requirements_of,
)
from pipelines.runs.diagnosis import Said, diagnose

REPOSITORY = re.compile(r"[a-z0-9.-]+\.[a-z]+(?::\d+)?(?:/[a-z0-9]+(?:[._-][a-z0-9]+)*)+")
# No build or push is meant to take longer; cloudbuild.yaml bounds the one in the cloud by itself.
TOOL_TIMEOUT_S = 4 * 3600.0
# Of what a tool says, enough to find why it failed.
_LAST_LINES = 200
# What the Dockerfiles copy, and they themselves: the context of a build.
CONTEXT = ("pyproject.toml", "README.md", "LICENSE", "constraints", *PACKAGES, "docker")
# Of own code: the Dockerfiles of trainer and export install what it names; in the checkout it names nothing.
REQUIREMENTS_FILE = "docker/own-requirements.txt"
# Below the packages of a wheel: all of CONTEXT that is no package (pyproject.toml puts it there).
IMAGE_FILES = "pipelines/image_files"
_LEFT_OUT = shutil.ignore_patterns("__pycache__", "*.pyc", "*.egg-info", Path(IMAGE_FILES).name)

Say = Callable[[str], None]


def build_images(
    config: RunConfig,
    *,
    tool: str,
    say: Say,
    tensorrt: str | None = None,
    rtx: bool = False,
    cuda: str = "",
    user: str = "root",
) -> ImageRecord:
    """Build and push all images, and write the record of their digests.

    Args:
        config: Names repository, project, region and the record's file.
        tool: cloud (Cloud Build) or docker.
        say: Told what is done.
        tensorrt: Version of TensorRT in the export's image; empty: none; None: that of the newest known Triton where
            the machine that exports has a GPU.
        rtx: Whether TensorRT-RTX is in it; `export.runtime: tensorrt_rtx` has it in any case.
        cuda: cu126 or cu130, of the wheels of torch; empty: what the machines of the configuration need.
        user: Whom containers run as: root or shardline.

    Raises:
        ConfigError: No repository, no checkout, no tool, or the tool refused.
    """
    repository = _require_repository(config)
    requirements = requirements_of(config)
    root = find_sources()
    chosen = _require_tool(tool)
    commit = find_commit(root)
    sources = hash_sources(root)
    tag = f"{commit[:12]}{'-dirty' if commit.endswith('-dirty') else ''}" or sources[:12]
    is_rtx = rtx or config.export.runtime == TENSORRT_RTX
    options = {
        "_TENSORRT": find_tensorrt(serving_section(config)) if tensorrt is None else tensorrt,
        "_RTX": "rtx" if is_rtx else "",
        "_USER": user,
        "_CUDA_TRAINER": cuda or find_cuda(config.resources.machine),
        "_CUDA_EXPORT": cuda or find_cuda(serving_section(config)),
    }
    with tempfile.TemporaryDirectory(prefix="shardline-images-") as folder:
        context = Path(folder) / "context"
        stage_context(root, context, requirements)
        if chosen == "cloud":
            say(f"Cloud Build builds {repository}/{{{','.join(ROLES)}}}:{tag}")
            digests = build_in_cloud(config, context, {"_REPOSITORY": repository, "_TAG": tag, **options}, say)
        else:
            digests = _build_here(context, repository, tag, options, say)
    references = {role: f"{repository}/{role}@{digests[role]}" for role in ROLES}
    for reference in references.values():
        if not is_pinned(reference):
            raise ShardlineError(f"{chosen} named no digest of an image: {reference}")
    record = ImageRecord.model_validate(
        {
            **references,
            "built_at": datetime.now(UTC).isoformat(timespec="seconds"),
            "commit": commit,
            "requirements_sha256": hash_requirements(requirements),
            "sources_sha256": sources,
            "cuda_trainer": options["_CUDA_TRAINER"],
            "cuda_export": options["_CUDA_EXPORT"],
            "tensorrt": options["_TENSORRT"],
            "tensorrt_rtx": is_rtx,
        }
    )
    storage.replace(storage.normalise(record_path(config)), (record.model_dump_json(indent=1) + "\n").encode())
    return record


def why_to_build(config: RunConfig, *, any_sources: bool = False) -> str:
    """Return why a submission needs images to be built; empty: it has some, or what is wrong is no matter of a build.

    Images that the configuration names are taken as they are. A record without a hash of its sources, of an earlier
    release, is taken too.

    Args:
        config: The resolved configuration.
        any_sources: Whether images of other sources do: each edit in a checkout makes its sources others.

    Raises:
        ConfigError: The record is damaged.
    """
    images = config.cloud.images
    given = [getattr(images, role) for role in ROLES]
    if all(given):
        return ""
    path = record_path(config)
    record = read_record(path)
    if record is None:
        return f"there is no {path}"
    if config.code.requirements and record.requirements_sha256 != hash_requirements(requirements_of(config)):
        return f"those in {path} have other code.requirements"
    for role in OWN_CODE_ROLES:
        if wrong := find_wrong(config, record, role):
            return wrong
    if not any_sources and record.sources_sha256 and record.sources_sha256 != hash_sources(find_sources()):
        return f"those in {path} are of other sources than this program (--keep-images takes them)"
    return ""


def hash_sources(root: Path) -> str:
    """Return the sha256 over the paths and contents of what images are built of."""
    with tempfile.TemporaryDirectory(prefix="shardline-images-") as folder:
        context = Path(folder) / "context"
        stage_context(root, context)
        digest = hashlib.sha256()
        for path in sorted(path for path in context.rglob("*") if path.is_file()):
            content = hashlib.sha256(path.read_bytes()).hexdigest()
            digest.update(f"{content}  {path.relative_to(context).as_posix()}\n".encode())
    return digest.hexdigest()


def stage_context(root: Path, context: Path, requirements: bytes | None = None) -> None:
    """Copy what a build needs into a new folder.

    Args:
        root: The checkout, or the folder that a wheel is installed in.
        context: The new folder.
        requirements: What own code needs besides: content of a requirements file; None: nothing.
    """
    context.mkdir(parents=True)
    for name in CONTEXT:
        source = _place_of(root, name)
        if source.is_dir():
            shutil.copytree(source, context / name, ignore=_LEFT_OUT)
        else:
            shutil.copy2(source, context / name)
    if requirements is not None:
        (context / REQUIREMENTS_FILE).write_bytes(requirements)


def find_sources() -> Path:
    """Return the folder of the packages that this program runs from: a checkout, or where a wheel is installed.

    Raises:
        ConfigError: What images are built of is not there.
    """
    root = Path(__file__).resolve().parents[2]
    if missing := [name for name in CONTEXT if not _place_of(root, name).exists()]:
        raise ConfigError(
            f"{root} holds not all that images are built of: {missing[0]} is not there",
            allowed="a checkout installed with pip's --editable, or a wheel of `make dist`",
            todo="run this in a checkout of the version that you use, or install its wheel",
        )
    return root


def _place_of(root: Path, name: str) -> Path:
    """Return the path of an entry of CONTEXT; beside an installed wheel, `docker` may be a package of somebody else."""
    shipped = root / IMAGE_FILES
    return shipped / name if shipped.is_dir() and name not in PACKAGES else root / name


def find_commit(root: Path) -> str:
    """Return the checkout's commit, with `-dirty` where files differ from it; empty: it is unknown."""
    if (root / IMAGE_FILES).is_dir():
        # Installed: a repository around the environment is the user's.
        return ""
    try:
        head = _git(root, "rev-parse", "HEAD")
        changed = _git(root, "status", "--porcelain", "--", *CONTEXT)
    except (OSError, subprocess.SubprocessError):
        return ""
    return f"{head}-dirty" if changed else head


def _git(root: Path, *arguments: str) -> str:
    command = ["git", "-C", str(root), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout.strip()


def _require_repository(config: RunConfig) -> str:
    repository = config.cloud.images.repository
    if not REPOSITORY.fullmatch(repository):
        raise ConfigError(
            f"cloud.images.repository = {repository}" if repository else "cloud.images.repository is not set",
            allowed="REGION-docker.pkg.dev/PROJECT/REPOSITORY",
            todo="make one: gcloud artifacts repositories create NAME --repository-format=docker --location=REGION",
        )
    return repository


def _require_tool(tool: str) -> str:
    if tool == "docker" and not shutil.which("docker"):
        raise ConfigError(
            "docker is not installed",
            allowed="docker with an engine that runs, or Cloud Build, which needs nothing here",
            todo="install it, leave --with out, or build elsewhere and set cloud.images",
        )
    return tool


def _build_here(context: Path, repository: str, tag: str, options: Mapping[str, str], say: Say) -> dict[str, str]:
    """Build and push by the local engine, and return the digests by role."""
    todo = "start the engine, log in to the registry (gcloud auth configure-docker HOST), and read what it printed"
    digests = {}
    for role in ROLES:
        name = f"{repository}/{role}:{tag}"
        given = _build_arguments(role, options)
        say(f"docker builds {name}")
        file = str(context / "docker" / f"{role}.Dockerfile")
        _run(["docker", "build", "--file", file, "--tag", name, *given, str(context)], todo)
        say(f"docker pushes {name}")
        _run(["docker", "push", name], todo)
        pushed = _run(["docker", "image", "inspect", "--format", "{{json .RepoDigests}}", name], todo)
        mine = [entry for entry in json.loads(pushed) if entry.startswith(f"{repository}/{role}@")]
        if not mine:
            raise ShardlineError(f"docker names no digest of {name}: {pushed.strip()}")
        digests[role] = mine[-1].partition("@")[2]
    return digests


def _build_arguments(role: str, options: Mapping[str, str]) -> list[str]:
    """Return the options of docker build, as cloudbuild.yaml has them."""
    values = {"USER": options["_USER"]}
    if role != "pipeline":
        values["CUDA"] = options[f"_CUDA_{role.upper()}"]
    if role == "export":
        values |= {"TENSORRT": options["_TENSORRT"], "RTX": options["_RTX"]}
    return [word for name, value in values.items() for word in ("--build-arg", f"{name}={value}")]


def _run(command: list[str], todo: str) -> str:
    """Run a tool whose messages go to stderr as they come, and return what it printed on stdout.

    Raises:
        ConfigError: It ended with an error.
        TryAgain: It did not end, or what it said is a failure that passes (a quota, no answer).
    """
    said: deque[str] = deque(maxlen=_LAST_LINES)
    overdue = threading.Event()
    with tempfile.TemporaryFile() as answer:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=answer, stderr=subprocess.PIPE, text=True)

        def end() -> None:
            overdue.set()
            process.kill()

        killer = threading.Timer(TOOL_TIMEOUT_S, end)
        killer.start()
        with process:
            try:
                for line in process.stderr or ():
                    said.append(line)
                    sys.stderr.write(line)
            except BaseException:
                process.kill()
                raise
            finally:
                killer.cancel()
        code = process.returncode
        if overdue.is_set():
            raise TryAgain(
                f"`{' '.join(command[:3])}` has not ended after {TOOL_TIMEOUT_S:g} s\n  to do: see what it said above, "
                "and run the same command again: layers that were built are found"
            )
        if code:
            given = f"`{' '.join(command[:3])}` ended with exit code {code}; what it said is above"
            found = diagnose([Said("".join(said))])
            if found.exit_code == EXIT_TRY_AGAIN:
                raise TryAgain(f"{given}: {found.cause}\n  to do: {found.advice}")
            advice = found.advice if found.exit_code == EXIT_USER_ERROR else todo
            raise ConfigError(given, allowed="a build that succeeds", todo=advice)
        answer.seek(0)
        return answer.read().decode()
