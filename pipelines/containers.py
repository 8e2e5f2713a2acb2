"""The container of each stage on Vertex AI: an image and its command."""

from __future__ import annotations

from typing import TYPE_CHECKING

from contracts.config import RunConfig
from pipelines.images import STAGE_ROLES, find_image
from pipelines.workers import Container

if TYPE_CHECKING:
    from pipelines.vertex_stages import Containers

COMMANDS = {
    "profile": ("python", "-m", "trainer.profiling.task"),
    "train": ("python", "-m", "trainer.task"),
    "export": ("python", "-m", "trainer.export.task"),
}


def find_containers(config: RunConfig) -> Containers:
    """Return the containers of a configuration.

    Raises:
        ConfigError: An image is not named, or not pinned by its digest.
    """
    from pipelines.vertex_stages import Containers

    env = config.resources.env
    return Containers(
        pipeline_image=find_image(config, "pipeline"),
        profile=_container(config, "profile", env),
        train=_container(config, "train", env),
        export=_container(config, "export", {}),
        serving_image=config.vertex.images.serving,
    )


def _container(config: RunConfig, stage: str, env: dict[str, str]) -> Container:
    image = find_image(config, STAGE_ROLES[stage])
    return Container(image, COMMANDS[stage], env, identity=image)
