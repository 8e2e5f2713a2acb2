"""Container images of the line, pinned by their digests: who is what, and where the record of a build lies.

`shardline images build` writes the record (pipelines/images/build.py); a configuration may name images itself, and
wins.
"""

from __future__ import annotations

import hashlib
import re
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from contracts.config import MachineSection, RunConfig
from contracts.errors import ConfigError
from contracts.machines import ACCELERATORS, LEAST_FOR_CUDA_13, Accelerator, find_machine, serving_section
from contracts.serving import RELEASES, TENSORRT, TENSORRT_RTX

ROLES = ("pipeline", "trainer", "export")
"""What an image is for: the pipeline's own tasks and Dataflow's workers; profiling and training; the export."""

OWN_CODE_ROLES = ("trainer", "export")
"""Those in which own code is imported, and in which code.requirements are installed."""

# HOST/PATH@sha256:HEX: a tag may move between two submissions, or between two machines of one job.
PINNED = re.compile(
    r"(?P<host>[a-z0-9.-]+\.[a-z]+(?::\d+)?)/(?P<path>[a-z0-9]+(?:[._/-][a-z0-9_]+)*)(?::[\w.-]+)?@sha256:[0-9a-f]{64}"
)


# Compute capability (times ten): the last that wheels of torch for CUDA 12.6 have code for.
_HOPPER = 90


class ImageRecord(BaseModel):
    """What a build left: images-PROJECT.json."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    pipeline: str
    trainer: str
    export: str
    built_at: str
    """UTC, ISO 8601."""
    commit: Annotated[str, Field(pattern=r"^([0-9a-f]{40}(-dirty)?)?$")] = ""
    """Commit of the sources; `-dirty`: with changes that it does not hold; empty: unknown."""
    requirements_sha256: Annotated[str, Field(pattern=r"^([0-9a-f]{64})?$")] = ""
    """Hash of the requirements of own code (code.requirements) in trainer and export; empty: they hold none."""
    cuda_trainer: Literal["", "cu126", "cu130"] = ""
    """CUDA of the trainer's torch, as PyTorch names its wheels; empty: unknown."""
    cuda_export: Literal["", "cu126", "cu130"] = ""
    """CUDA of the export's torch."""
    tensorrt: str | None = None
    """Version of TensorRT in the export's image; empty: it has none; None: unknown."""
    tensorrt_rtx: bool | None = None
    """Whether the export's image has TensorRT-RTX; None: unknown."""
    sources_sha256: Annotated[str, Field(pattern=r"^([0-9a-f]{64})?$")] = ""
    """Hash of the sources that they were built of; empty: unknown."""

    def in_words(self) -> str:
        """Return a line per image."""
        return "\n".join(f"{role}: {getattr(self, role)}" for role in ROLES)


def is_pinned(reference: str) -> bool:
    """Return whether a reference names one image for ever."""
    return PINNED.fullmatch(reference) is not None


def find_cuda(section: MachineSection) -> Literal["cu126", "cu130"]:
    """Return the CUDA that a machine's images need: 12.6 up to Hopper, since drivers of older machines run it; else 13.

    A machine that is none counts as one without a GPU: a rule has found it.
    """
    gpu = _find_gpu(section)
    return "cu130" if gpu is not None and gpu.capability_x10 > _HOPPER else "cu126"


def find_tensorrt(section: MachineSection) -> str:
    """Return the version of TensorRT for the export's image: that of the newest known Triton; empty: without a GPU."""
    return next(iter(RELEASES)) if _find_gpu(section) else ""


def _find_gpu(section: MachineSection) -> Accelerator | None:
    try:
        return ACCELERATORS.get(find_machine(section).accelerator_type)
    except ConfigError:
        return None


def read_record(path: Path) -> ImageRecord | None:
    """Return the record of a build; None: there is none.

    Raises:
        ConfigError: It is damaged.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise _damaged(path, str(error)) from None
    try:
        return ImageRecord.model_validate_json(text)
    except ValidationError as error:
        raise _damaged(path, str(error.errors(include_url=False)[0]["msg"])) from None


def record_path(config: RunConfig) -> Path:
    """Return where the record of a configuration's images is: each project of a folder has one of its own."""
    return Path(f"images-{config.cloud.project}.json" if config.cloud.project else "images.json")


def find_image(config: RunConfig, role: str) -> str:
    """Return the pinned reference of a role's image: the configuration's, else the record's.

    Raises:
        ConfigError: There is none, it is not pinned by its digest, or it was built with other code.requirements.
    """
    reference: str = getattr(config.cloud.images, role)
    where = f"cloud.images.{role}"
    if not reference:
        path = record_path(config)
        record = read_record(path)
        if record is None:
            raise _without_image(role, path)
        reference, where = getattr(record, role), f"{path}: {role}"
        if role in OWN_CODE_ROLES:
            _require_requirements(config, record, path)
            _require_fitting(config, record, path, role)
    if not is_pinned(reference):
        raise ConfigError(
            f"{where} = {reference} is not pinned by its digest",
            allowed="HOST/PATH@sha256: and 64 hex digits",
            todo="a tag may move under a running job: take the digest that `shardline images build`, or the "
            "registry, prints",
        )
    return reference


def _without_image(role: str, path: Path) -> ConfigError:
    return ConfigError(
        f"cloud.images.{role} is not set, and there is no {path}",
        allowed="HOST/PATH@sha256:HEX, or the record of `shardline images build`",
        todo="run `shardline submit CONFIG`, which builds them first, or `shardline images build CONFIG`, or set "
        "cloud.images",
    )


def requirements_of(config: RunConfig) -> bytes | None:
    """Return the content of code.requirements; None: it is not set.

    Raises:
        ConfigError: It is no file that can be read.
    """
    path = config.code.requirements
    if path and not Path(path).is_file():
        raise ConfigError(
            f"code.requirements {path} is no file", allowed="a requirements file of pip", todo="correct the path"
        )
    return Path(path).read_bytes() if path else None


def hash_requirements(content: bytes | None) -> str:
    """Return the sha256 of requirements; empty: there are none."""
    return "" if content is None else hashlib.sha256(content).hexdigest()


def _require_requirements(config: RunConfig, record: ImageRecord, path: Path) -> None:
    if not config.code.requirements:
        return
    wanted = hash_requirements(requirements_of(config))
    if record.requirements_sha256 != wanted:
        built = f"of sha256 {record.requirements_sha256}" if record.requirements_sha256 else "without any"
        raise ConfigError(
            f"code.requirements {config.code.requirements} has sha256 {wanted}, and the images in "
            f"{path} were built {built}",
            allowed="images that were built with the requirements of the configuration",
            todo="run `shardline images build CONFIG` again",
        )


def find_wrong(config: RunConfig, record: ImageRecord, role: str) -> str:
    """Return what an image lacks of what the configuration needs of it; empty: nothing, or it is unknown.

    An image with CUDA 13 on a machine that 12.6 does for is taken: it was asked for.
    """
    built: str = getattr(record, f"cuda_{role}")
    section = serving_section(config) if role == "export" else config.resources.machine
    gpu = _find_gpu(section)
    has_code = gpu is None or (
        gpu.capability_x10 >= LEAST_FOR_CUDA_13 if built == "cu130" else find_cuda(section) == built
    )
    if built and not has_code:
        version = "13.0" if built == "cu130" else "12.6"
        return f"the {role}'s image has CUDA {version}, which has no code for the GPU of {section.type}"
    runtime = config.export.runtime
    if role == "export" and runtime == TENSORRT and record.tensorrt == "":
        return "the export's image has no TensorRT, which export.runtime names"
    if role == "export" and runtime == TENSORRT_RTX and record.tensorrt_rtx is False:
        return "the export's image has no TensorRT-RTX, which export.runtime names"
    return ""


def _require_fitting(config: RunConfig, record: ImageRecord, path: Path, role: str) -> None:
    if wrong := find_wrong(config, record, role):
        raise ConfigError(
            f"{path}: {wrong}",
            allowed="images that were built for the machines of the configuration",
            todo="run `shardline images build CONFIG` again",
        )


def _damaged(path: Path, why: str) -> ConfigError:
    return ConfigError(
        f"{path} is no record of images: {why}",
        allowed="what `shardline images build` writes",
        todo="build again, or name the images as cloud.images.pipeline, trainer and export",
    )
