"""Which container each stage runs in on Vertex AI: the project's own images, or Vertex AI's prebuilt PyTorch one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from contracts.config import RunConfig
from pipelines.images import find_images
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

    images = find_images(config)
    env = config.resources.env
    return Containers(
        pipeline_image=images.pipeline,
        profile=Container(images.trainer, COMMANDS["profile"], env, identity=images.trainer),
        train=Container(images.trainer, COMMANDS["train"], env, identity=images.trainer),
        export=Container(images.export, COMMANDS["export"], {}, identity=images.export),
        serving_image=config.vertex.images.serving,
    )
