"""The container of a component: `python -m components.entry NAME`, which gets the executor input alone."""

from __future__ import annotations

import copy
from typing import Any

from kfp import dsl

# Replaced by `with_image` when a pipeline is compiled.
BASE_IMAGE = "python:3.11-slim"


def container(name: str) -> dsl.ContainerSpec:
    """Return what a container component runs."""
    words = ["--executor-input", dsl.PIPELINE_TASK_EXECUTOR_INPUT_PLACEHOLDER]
    return dsl.ContainerSpec(image=BASE_IMAGE, command=["python", "-m", "components.entry", name], args=words)


def with_image(component: Any, image: str, *, without: str = "") -> Any:
    """Return a component on an image.

    Args:
        component: One of this package's.
        image: The image.
        without: Input to leave out: a task with an optional input artifact is never in KFP's cache.
    """
    copied = copy.deepcopy(component)
    copied.component_spec.implementation.container.image = image
    if without:
        del copied.component_spec.inputs[without]
    return copied
