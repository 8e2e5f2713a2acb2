"""Which container each stage runs in on Vertex AI: the project's own images, or Vertex AI's prebuilt PyTorch one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from contracts.config import RunConfig
from pipelines.images import STAGE_ROLES, find_image
from pipelines.prebuilt import image_uri, prebuilt_container, uses_prebuilt, worker_packages
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
    own_image = not uses_prebuilt(config, "pipeline")
    return Containers(
        pipeline_image=find_image(config, "pipeline") if own_image else image_uri(config, "pipeline"),
        profile=_container(config, "profile", env),
        train=_container(config, "train", env),
        export=_container(config, "export", {}),
        serving_image=config.vertex.images.serving,
    )


def find_packages(config: RunConfig) -> dict[str, bytes]:
    """Return, by URI, what prebuilt containers install: nothing where every role has its image.

    Raises:
        ConfigError: The project's wheel cannot be built.
    """
    documents: dict[str, bytes] = {}
    if needs_worker_packages(config):
        documents |= worker_packages(config).documents
    for stage, role in STAGE_ROLES.items():
        if uses_prebuilt(config, role):
            documents |= prebuilt_container(config, stage).documents
    return documents


def needs_worker_packages(config: RunConfig) -> bool:
    """Return whether Dataflow's workers have no image with the project."""
    return uses_prebuilt(config, "pipeline") and not config.vertex.dataflow.worker_image


def start_tasks(spec: dict[str, Any], config: RunConfig) -> dict[str, Any]:
    """Put the start program before the commands of the pipeline's own tasks, where they run in the prebuilt container.

    Args:
        spec: A compiled pipeline; it is changed.
        config: The configuration that it was compiled from.
    """
    if not uses_prebuilt(config, "pipeline"):
        return spec
    found = prebuilt_container(config, "pipeline")
    for executor in spec["deploymentSpec"]["executors"].values():
        container = executor.get("container", {})
        if container.get("image") == found.image:
            container["command"] = [*found.start, *container["command"]]
    return spec


def _container(config: RunConfig, stage: str, env: dict[str, str]) -> Container:
    if uses_prebuilt(config, STAGE_ROLES[stage]):
        found = prebuilt_container(config, stage)
        return Container(found.image, (*found.start, *COMMANDS[stage]), env, identity=found.identity)
    image = find_image(config, STAGE_ROLES[stage])
    return Container(image, COMMANDS[stage], env, identity=image)
