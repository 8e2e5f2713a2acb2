"""How a task of a pipeline gives out what it found: files for parameters, a document for the metadata of artifacts."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from contracts.errors import ConfigError
from pages.markup import shorten

# Of an artifact's metadata as JSON. Vertex AI's limit is 200 kB
# (https://cloud.google.com/vertex-ai/docs/reference/rest/v1/projects.locations.metadataStores.artifacts); the rest is
# for what services add, and for another way of writing numbers.
MAX_METADATA_BYTES = 150_000
# Names that a table of runs can head a column with; text that is a URI, which object stores allow 1,024 bytes of.
MAX_NAME, MAX_TEXT = 120, 1500
LEFT_OUT = "left_out"


def write_parameter(path: Path, text: str) -> None:
    """Write an output parameter where the pipeline reads it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def bound_metadata(fields: Mapping[str, Any]) -> tuple[dict[str, Any], int]:
    """Return as much of an artifact's metadata as Vertex AI takes, and how many fields are left out.

    Long text is cut. Fields whose name is too long are left out, and the last of those that are too many; structures,
    such as a confusion matrix, go before text and numbers.
    """
    kept: dict[str, Any] = {}
    left = MAX_METADATA_BYTES
    for name in sorted(fields, key=lambda name: not isinstance(fields[name], list | dict)):
        value = fields[name]
        value = shorten(value, MAX_TEXT) if isinstance(value, str) else value
        if len(name) > MAX_NAME or (size := len(json.dumps({name: value}))) > left:
            continue
        left -= size
        kept[name] = value
    return {name: kept[name] for name in fields if name in kept}, len(fields) - len(kept)


def write_metadata(executor_input: str, metadata: Mapping[str, Mapping[str, Any]]) -> None:
    """Give output artifacts their metadata.

    Args:
        executor_input: The message ExecutorInput as JSON, as the pipeline passes it:
            https://github.com/kubeflow/pipelines/blob/master/api/v2alpha1/pipeline_spec.proto
        metadata: Fields by the name of the artifact; values are numbers or text. Of those that are more than Vertex AI
            takes, `left_out` says how many were left out.

    Raises:
        ConfigError: It is no such message, or has no such artifact.
    """
    try:
        outputs = json.loads(executor_input)["outputs"]
        path = Path(outputs["outputFile"])
        artifacts = {
            name: {
                "artifacts": [
                    {**artifact, "metadata": _bounded({**artifact.get("metadata", {}), **metadata[name]})}
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


def _bounded(fields: Mapping[str, Any]) -> dict[str, Any]:
    kept, left_out = bound_metadata(fields)
    return {**kept, LEFT_OUT: left_out} if left_out else kept
