"""What a submission needs and does not have yet: data in the bucket, container images for this code."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass

from contracts.config import RunConfig
from pipelines.images.build import build_images, why_to_build
from pipelines.images.record import ROLES, read_record, record_path
from pipelines.submission.local_data import LocalData, find_local_data, upload

# No registry has it.
_PLACEHOLDER = "not-built.invalid/shardline/{}@sha256:{}"


@dataclass(frozen=True)
class Preparations:
    """What is to be done before a submission; false where nothing is."""

    data: LocalData | None
    """What has to be uploaded; None: nothing."""
    build: str
    """Why images have to be built; empty: they need not be."""

    def __bool__(self) -> bool:
        return self.data is not None or bool(self.build)

    @property
    def words(self) -> tuple[str, ...]:
        """What would be done, for whoever is asked."""
        data = "" if self.data is None else self.data.words.replace("`submit` ", "")
        return tuple(text for text in (data, self.build and f"builds images: {self.build}") if text)


def find_preparations(config: RunConfig, local: LocalData | None, *, keep_images: bool = False) -> Preparations:
    """Return what a submission has to do first.

    Args:
        config: With the source in the bucket.
        local: Data of this machine that it is made from.
        keep_images: Whether images of other sources than this program do.

    Raises:
        ConfigError: There is no such bucket.
        TryAgain: It gave no answer.
    """
    why = why_to_build(config, any_sources=keep_images)
    return Preparations(None if local is None or local.is_there else local, why)


def make_preparations(config: RunConfig, todo: Preparations, say: Callable[[str], None]) -> None:
    """Upload and build; the same command goes on with what a kill has left undone."""
    if todo.data is not None:
        upload(todo.data, say)
    if todo.build:
        build_images(config, tool="cloud", say=say)


def with_images(config: RunConfig) -> RunConfig:
    """Return the configuration as it is once its images are built, for a plan that is made before."""
    images = config.cloud.images
    unset = [role for role in ROLES if not getattr(images, role)]
    made = images.model_copy(
        update={role: _PLACEHOLDER.format(role, hashlib.sha256(role.encode()).hexdigest()) for role in unset}
    )
    return config.model_copy(update={"cloud": config.cloud.model_copy(update={"images": made})})


@dataclass(frozen=True)
class Outlook:
    """A configuration as its submission would have it, before anything of it is made."""

    config: RunConfig
    local_source: str
    """Data of this machine that `submit` uploads; empty: none."""
    placeholders: tuple[str, ...]
    """What stands for something that is not there yet, a line each."""


def look_ahead(config: RunConfig, say: Callable[[str], None]) -> Outlook:
    """Return a configuration as its submission would have it; nobody outside of this machine is asked.

    Args:
        config: Resolved, with absolute paths.
        say: Told of a reading that takes a while.

    Raises:
        ConfigError: A file of the data cannot be read, or the record of images is damaged.
    """
    found = []
    local = find_local_data(config, say)
    if local is not None:
        config = local.of(config)
        found.append(f"sharding.source = {local.source}: {local.words}")
    if read_record(record_path(config)) is None:
        unset = [role for role in ROLES if not getattr(config.cloud.images, role)]
        config = with_images(config)
        found += [
            f"cloud.images.{role} = {getattr(config.cloud.images, role)}: no image is built; `shardline submit` or "
            "`shardline images build` builds it"
            for role in unset
        ]
    return Outlook(config, local.given if local else "", tuple(found))
