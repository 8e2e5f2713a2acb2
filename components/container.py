"""Container of the components: `python -m components.entry NAME --executor-input JSON`."""

from __future__ import annotations

import copy
from typing import Any

from kfp import dsl

# Replaced by `with_image` when a pipeline is compiled.
BASE_IMAGE = "python:3.11-slim"


def container(name: str) -> dsl.ContainerSpec:
    """Return the container of a component."""
    arguments = ["--executor-input", dsl.PIPELINE_TASK_EXECUTOR_INPUT_PLACEHOLDER]
    return dsl.ContainerSpec(image=BASE_IMAGE, command=["python", "-m", "components.entry", name], args=arguments)


def with_image(component: Any, image: str, *, without: str = "") -> Any:
    """Return a copy of a component with another image.

    Args:
        component: A component of this package.
        image: The image.
        without: Input to remove: KFP never caches a task with an optional input artifact.
    """
    copied = copy.deepcopy(component)
    copied.component_spec.implementation.container.image = image
    if without:
        del copied.component_spec.inputs[without]
    return copied
