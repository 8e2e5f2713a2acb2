"""The container of a small task of the pipeline: a command of ours, and its options."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from kfp import dsl

from components.launch import BASE_IMAGE


def container(command: Sequence[str], options: Mapping[str, Any]) -> dsl.ContainerSpec:
    """Return what a container component runs; the pipeline sets the image.

    Args:
        command: Module and words of a command: `python -m MODULE WORD ...`.
        options: Values by option; each value is an argument of its own, since the pipeline may know it only while it
            runs.
    """
    arguments = [item for option, value in options.items() for item in (option, value)]
    return dsl.ContainerSpec(image=BASE_IMAGE, command=["python", "-m", *command], args=arguments)
