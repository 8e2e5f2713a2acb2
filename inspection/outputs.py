"""How a task of a pipeline gives out what it found: files for parameters, a document for the metadata of artifacts."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from contracts.errors import ConfigError


def write_parameter(path: Path, text: str) -> None:
    """Write an output parameter where the pipeline reads it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def write_metadata(executor_input: str, metadata: Mapping[str, Mapping[str, Any]]) -> None:
    """Give output artifacts their metadata.

    Args:
        executor_input: The message ExecutorInput as JSON, as the pipeline passes it:
            https://github.com/kubeflow/pipelines/blob/master/api/v2alpha1/pipeline_spec.proto
        metadata: Fields by the name of the artifact; values are numbers or text.

    Raises:
        ConfigError: It is no such message, or has no such artifact.
    """
    try:
        outputs = json.loads(executor_input)["outputs"]
        path = Path(outputs["outputFile"])
        artifacts = {
            name: {
                "artifacts": [
                    {**artifact, "metadata": {**artifact.get("metadata", {}), **metadata[name]}}
                    for artifact in outputs["artifacts"][name]["artifacts"]
                ]
            }
            for name in metadata
        }
    except (ValueError, KeyError, TypeError) as error:
        raise ConfigError(
            f"--executor-input is no ExecutorInput with the outputs {', '.join(metadata)} ({error!r})",
            allowed="what KFP passes for {{$}}",
            todo="run this command as a task of a pipeline",
        ) from None
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"artifacts": artifacts}), encoding="utf-8")
