"""Container images: build by Cloud Build (`shardline images build`), record of digests, choice for a submission.

The record, images-PROJECT.json in the current folder, has the images of the last build and their contents. Images set
in the configuration (`cloud.images.cpu`, `cloud.images.gpu`) are used unchecked.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import re
import tarfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from contracts import storage
from contracts.config import RunConfig
from contracts.config.cloud import PinnedImage
from contracts.errors import ConfigError, TryAgain
from contracts.machines import ACCELERATORS, LEAST_FOR_CUDA_13, find_machine, serving_section
from contracts.serving import RELEASES, TENSORRT, TENSORRT_RTX
from pipelines.google import CALL_TIMEOUT_S, explained

ROLES: tuple[Literal["cpu", "gpu"], ...] = ("cpu", "gpu")
PACKAGES = ("contracts", "records", "sharding", "trainer", "inspection", "components")
"""Packages of this project in the images."""
# Build context: the Dockerfiles and their inputs. In an installed wheel all but the packages is in IMAGE_FILES.
CONTEXT = ("pyproject.toml", "constraints", "deploy/docker", *PACKAGES)
IMAGE_FILES = "pipelines/image_files"
# The gpu image installs these requirements: code.requirements; empty in the checkout.
_REQUIREMENTS_FILE = "deploy/docker/own-requirements.txt"

Cuda = Literal["cu126", "cu130"]
# CUDA of torch's wheels -> compute capabilities (times ten) that it has code for. Drivers of older machines run 12.6.
_CAPABILITIES: dict[Cuda, range] = {"cu126": range(50, 91), "cu130": range(LEAST_FOR_CUDA_13, 1000)}
_REPOSITORY = re.compile(r"([a-z0-9-]+)-docker\.pkg\.dev/([^/]+)/([^/]+)(?:/[^/]+)*")
# No registry has it.
_NOT_BUILT = "not-built.invalid/shardline"
_BUILD = "run `shardline images build CONFIG`"

_SCOPE = "https://www.googleapis.com/auth/cloud-platform"
_POLL_S = 10.0
_AT_WORK = ("STATUS_UNKNOWN", "PENDING", "QUEUED", "WORKING")

_Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
_Reference = Annotated[PinnedImage, Field(min_length=1)]


class ImageRecord(BaseModel):
    """Images of a build and their contents."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    cpu: _Reference
    """Runs list-source, shard and record, and Dataflow's workers."""
    gpu: _Reference
    """Runs profile, train, export and register."""
    sources_sha256: _Sha256
    requirements_sha256: _Sha256
    """Hash of own code's requirements in the gpu image; of nothing where it has none."""
    cuda: Cuda
    """CUDA of torch, as PyTorch names its wheels."""
    tensorrt: str
    """Version of TensorRT in the gpu image; empty: it has none."""
    tensorrt_rtx: bool
    """Whether TensorRT-RTX is in it."""


def record_path(config: RunConfig) -> Path:
    """Return the path of the record: one per project, in the current folder."""
    return Path(f"images-{config.cloud.project}.json" if config.cloud.project else "images.json")


def find_images(config: RunConfig) -> tuple[RunConfig, tuple[str, ...]]:
    """Return the configuration with both images, and one message per image that must be built before a submission.

    Missing images are replaced by placeholders, which count as unset.

    Args:
        config: The resolved configuration.

    Raises:
        ConfigError: The record is damaged, or code.requirements is not a file.
    """
    configured = {role: getattr(config.cloud.images, role) for role in ROLES}
    unset = [role for role in ROLES if not configured[role] or configured[role].startswith(_NOT_BUILT)]
    record, path = _read_record(config) if unset else None, record_path(config)
    images: dict[str, str] = {}
    missing = []
    for role in unset:
        lack = f"there is no {path}"
        if record is not None:
            images[role], lack = getattr(record, role), _find_lack(config, record) if role == "gpu" else ""
        if lack:
            images[role] = f"{_NOT_BUILT}/{role}@sha256:{hashlib.sha256(role.encode()).hexdigest()}"
            missing.append(f"cloud.images.{role} is not set, and {lack}")
    return config.with_keys(cloud={"images": config.cloud.images.model_copy(update=images)}), tuple(missing)


def require_images(config: RunConfig) -> RunConfig:
    """Return the configuration with both images.

    Raises:
        ConfigError: One has to be built first.
    """
    config, missing = find_images(config)
    for text in missing:
        raise ConfigError(text, allowed="images that were built for it", todo="run `shardline images build CONFIG`")
    return config


def find_stale(config: RunConfig) -> str:
    """Return a warning if the recorded images were built from other sources than this program; else empty."""
    is_used = not all(getattr(config.cloud.images, role) for role in ROLES)
    record = _read_record(config) if is_used else None
    if record is None or record.sources_sha256 == hash_sources():
        return ""
    return f"the images in {record_path(config)} are of other sources than this program; {_BUILD} to rebuild them"


def build_images(
    config: RunConfig, notify: Callable[[str], None], *, cuda: Cuda | None = None, tensorrt: str = ""
) -> ImageRecord:
    """Build and push both images by Cloud Build, and write the record of their digests.

    If the same build already runs, after a killed command, it waits for that one.

    Args:
        config: The resolved configuration.
        notify: Receives progress messages.
        cuda: CUDA of torch; None: what the GPUs of the configuration need.
        tensorrt: Version of TensorRT, or `none`; empty: that of the newest known Triton, where the machine that exports
            has a GPU.

    Raises:
        ConfigError: No repository, bucket or permission, or the build failed.
        TryAgain: A quota, no answer, or the service ended the build.
    """
    images, project = config.cloud.images, config.cloud.project
    if (place := _REPOSITORY.fullmatch(images.repository)) is None:
        raise ConfigError(
            f"cloud.images.repository = {images.repository or '(unset)'}",
            allowed="REGION-docker.pkg.dev/PROJECT/REPOSITORY",
            todo="make one: gcloud artifacts repositories create NAME --repository-format=docker --location=REGION",
        )
    if not config.run.root.startswith("gs://"):
        raise ConfigError(
            f"run.root = {config.run.root}", allowed="gs://BUCKET/FOLDER, where Cloud Build reads", todo="set run.root"
        )
    contents = _choose_contents(config, cuda, tensorrt)
    key = hashlib.sha256(json.dumps([images.repository, images.build_account, contents]).encode()).hexdigest()
    call = _open_session()
    # Without its repository a build ends at the last step.
    registry = "https://artifactregistry.googleapis.com/v1"
    call("GET", f"{registry}/projects/{place[2]}/locations/{place[1]}/repositories/{place[3]}")
    source = storage.join(storage.normalise(config.run.root), config.run.name, "images", f"{key}.tar.gz")
    # An existing archive has the same content: its name is the content's hash.
    with contextlib.suppress(storage.AlreadyPublished):
        storage.publish(source, _pack(_read_requirements(config)))
    bucket, _, name = source.removeprefix("gs://").partition("/")
    body: dict[str, Any] = yaml.safe_load(list_sources()["deploy/docker/cloudbuild.yaml"].read_text(encoding="utf-8"))
    body |= {
        "source": {"storageSource": {"bucket": bucket, "object": name}},
        "tags": [f"shardline-{key[:32]}"],
        "substitutions": {
            "_REPOSITORY": images.repository,
            "_TAG": key[:12],
            "_CUDA": contents["cuda"],
            "_TENSORRT": contents["tensorrt"],
            "_RTX": "rtx" if contents["tensorrt_rtx"] else "",
        },
    }
    if images.build_account:
        body["serviceAccount"] = f"projects/{project}/serviceAccounts/{images.build_account}"
    digests = _build(call, f"projects/{project}/locations/{config.cloud.region}", body, notify)
    built = {role: f"{images.repository}/{role}@{digests[f'{images.repository}/{role}:{key[:12]}']}" for role in ROLES}
    record = ImageRecord.model_validate({**built, **contents})
    storage.replace(storage.normalise(record_path(config)), (record.model_dump_json(indent=1) + "\n").encode())
    return record


def _choose_contents(config: RunConfig, cuda: Cuda | None, tensorrt: str) -> dict[str, Any]:
    """Return the contents of a build, as fields of ImageRecord."""
    fitting = [version for version in _CAPABILITIES if not _find_gpu_without_code(config, version)]
    chosen = cuda or (*fitting, "cu126")[0]
    if lack := _find_gpu_without_code(config, chosen):
        raise ConfigError(
            f"a gpu image {lack}", allowed=" or ".join(_CAPABILITIES), todo="take machines of one of them"
        )
    if not tensorrt:
        tensorrt = next(iter(RELEASES)) if find_machine(serving_section(config)).gpus else "none"
    return {
        "sources_sha256": hash_sources(),
        "requirements_sha256": hashlib.sha256(_read_requirements(config)).hexdigest(),
        "cuda": chosen,
        "tensorrt": "" if tensorrt == "none" else tensorrt,
        "tensorrt_rtx": config.export.runtime == TENSORRT_RTX,
    }


_Call = Callable[..., dict[str, Any]]


def _open_session() -> _Call:
    """Return a function that calls Google's REST APIs: (method, URL, requests' arguments) -> JSON."""
    with explained("Cloud Build"):
        import google.auth
        from google.auth.transport.requests import AuthorizedSession
        from requests.adapters import HTTPAdapter  # type: ignore[import-untyped]
        from urllib3 import Retry

        credentials, _ = google.auth.default(scopes=[_SCOPE])
        session: Any = AuthorizedSession(credentials)  # type: ignore[no-untyped-call]
    retries = Retry(3, backoff_factor=1, status_forcelist=(500, 502, 503, 504), allowed_methods=["GET"])
    retries.raise_on_status = False
    session.mount("https://", HTTPAdapter(max_retries=retries))

    def call(method: str, url: str, **arguments: Any) -> dict[str, Any]:
        with explained(f"{method} {url.partition('?')[0]}"):
            answer = session.request(method, url, timeout=CALL_TIMEOUT_S, **arguments)
            answer.raise_for_status()
            return dict(answer.json())

    return call


def _build(call: _Call, parent: str, body: dict[str, Any], notify: Callable[[str], None]) -> dict[str, str]:
    """Start a build, or find the running one, and wait for it; return the digests of its images by name and tag.

    https://docs.cloud.google.com/build/docs/api/reference/rest/v1/projects.locations.builds
    """
    api = "https://cloudbuild.googleapis.com/v1"
    builds = call("GET", f"{api}/{parent}/builds", params={"filter": f'tags="{body["tags"][0]}"'}).get("builds", [])
    build = next((entry for entry in builds if entry["status"] in _AT_WORK), None)
    try:
        build = build or call("POST", f"{api}/{parent}/builds", json=body)["metadata"]["build"]
    except ConfigError as error:
        if "cannot run builds in this region" not in error.given:
            raise
        todo = "give cloud.region=us-central1 or europe-west1: https://docs.cloud.google.com/build/docs/locations"
        raise ConfigError(error.given, allowed="a region in which the project may build", todo=todo) from None
    log, reported_steps = build.get("logUrl", build["name"]), ""
    notify(f"Cloud Build: {log}")
    while build["status"] in _AT_WORK:
        time.sleep(_POLL_S)
        build = call("GET", f"{api}/{build['name']}")
        steps = ", ".join(f"{step['id']} {step['status'].lower()}" for step in build["steps"] if "status" in step)
        if steps != reported_steps:
            notify(steps)
            reported_steps = steps
    if build["status"] == "SUCCESS":
        return {image["name"]: image["digest"] for image in build["results"]["images"]}
    detail = build.get("statusDetail") or build.get("failureInfo", {}).get("detail", "")
    message = f"the build ended: {build['status'].lower()}: {detail}; its log: {log}"
    if build["status"] != "FAILURE" or "quota" in detail:
        raise TryAgain(f"{message}\n  to do: run the same command again")
    raise ConfigError(message, allowed="a build that succeeds", todo="read the log; docs/images.md names the roles")


def list_sources() -> dict[str, Path]:
    """Return the files of the build context, by their path in it.

    Raises:
        ConfigError: Some of them are missing.
    """
    root, sources = Path(__file__).resolve().parents[1], {}
    shipped = root / IMAGE_FILES
    for name in CONTEXT:
        base = shipped if shipped.is_dir() and name not in PACKAGES else root
        paths = [base / name, *sorted((base / name).rglob("*"))]
        files = [path for path in paths if path.is_file() and path.suffix != ".pyc"]
        if not files:
            raise ConfigError(
                f"{base} has no {name}, which the images are built from",
                allowed="a checkout installed with pip's --editable, or a wheel of `make dist`",
                todo="run this in a checkout of your version, or install its wheel",
            )
        sources.update({path.relative_to(base).as_posix(): path for path in files})
    return sources


def hash_sources() -> str:
    """Return the sha256 over paths and contents of the build context."""
    digest = hashlib.sha256()
    for name, path in sorted(list_sources().items()):
        digest.update(f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {name}\n".encode())
    return digest.hexdigest()


def _pack(requirements: bytes) -> bytes:
    """Return the sources and the user's requirements as a .tar.gz."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz", compresslevel=6) as archive:
        for name, path in list_sources().items():
            content = requirements if requirements and name == _REQUIREMENTS_FILE else path.read_bytes()
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
    return packed.getvalue()


def _read_record(config: RunConfig) -> ImageRecord | None:
    path = record_path(config)
    try:
        return ImageRecord.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        return None
    except ValidationError as error:
        raise ConfigError(
            f"{path} is not a record of images: {error.errors(include_url=False)[0]['msg']}",
            allowed="the file that `shardline images build` writes",
            todo=f"{_BUILD}, or set cloud.images.cpu and cloud.images.gpu",
        ) from None


def _read_requirements(config: RunConfig) -> bytes:
    path = config.code.requirements
    if path and not Path(path).is_file():
        raise ConfigError(
            f"code.requirements {path} is not a file", allowed="a requirements file of pip", todo="correct the path"
        )
    return Path(path).read_bytes() if path else b""


def _find_lack(config: RunConfig, record: ImageRecord) -> str:
    """Return why the recorded gpu image does not fit the configuration; empty: it fits."""
    requirements, runtime = _read_requirements(config), config.export.runtime
    if requirements and record.requirements_sha256 != hashlib.sha256(requirements).hexdigest():
        lack = f"was built with another code.requirements than {config.code.requirements}"
    elif runtime == TENSORRT and not record.tensorrt:
        lack = "has no TensorRT, which export.runtime names"
    elif runtime == TENSORRT_RTX and not record.tensorrt_rtx:
        lack = "has no TensorRT-RTX, which export.runtime names"
    else:
        lack = _find_gpu_without_code(config, record.cuda)
    return lack and f"the one in {record_path(config)} {lack}"


def _find_gpu_without_code(config: RunConfig, cuda: Cuda) -> str:
    """Return an error if a CUDA version does not support a GPU of the configuration; empty for unknown machines."""
    for section in (config.resources.machine, serving_section(config)):
        with contextlib.suppress(ConfigError):
            machine = find_machine(section)
            if machine.gpus and ACCELERATORS[machine.accelerator_type].capability_x10 not in _CAPABILITIES[cuda]:
                return f"has CUDA {cuda[2:4]}.{cuda[4]}, which has no code for the GPU of {machine.label}"
    return ""
