"""What metadata an artifact may have: how much, and what the consoles of Vertex AI and Kubeflow can render.

https://cloud.google.com/vertex-ai/docs/reference/rest/v1/projects.locations.metadataStores.artifacts
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import chain
from typing import Any

from google.protobuf import json_format

# Of an artifact, in its JSON form.
METADATA_LIMIT = 200_000


def find_excess(metadata: Any) -> str:
    """Return by how much metadata are too large, in words; empty: they are not.

    Args:
        metadata: A google.protobuf.Struct.
    """
    count = len(json_format.MessageToJson(metadata, indent=None))
    return "" if count <= METADATA_LIMIT else f"it has {count:,} bytes, and {METADATA_LIMIT:,} are allowed"


def find_fault(kind: str, metadata: Mapping[str, Any]) -> str:
    """Return why the consoles cannot render metadata, in words; empty: they can.

    system.Metrics holds numbers, system.ClassificationMetrics what kfp.dsl.ClassificationMetrics writes.

    Args:
        kind: Schema title of the artifact's type.
        metadata: By name, as JSON values.
    """
    if odd := [name for name, value in metadata.items() if not _is_finite(value)]:
        return f"{odd[0]} holds a number that is not finite, which no JSON has"
    if kind == "system.Metrics":
        odd = [name for name, value in metadata.items() if name != "display_name" and not _is_number(value)]
        return f"{odd[0]} = {metadata[odd[0]]!r} is no number, and metrics are numbers" if odd else ""
    if kind == "system.ClassificationMetrics":
        return _find_fault_of_matrix(metadata.get("confusionMatrix")) or _find_fault_of_curve(
            metadata.get("confidenceMetrics")
        )
    return ""


def _find_fault_of_matrix(matrix: Any) -> str:
    if matrix is None:
        return ""
    try:
        names = [spec["displayName"] for spec in matrix["annotationSpecs"]]
        rows = [entry["row"] for entry in matrix["rows"]]
        is_square = [len(row) for row in rows] == [len(names)] * len(names)
        if is_square and all(isinstance(name, str) for name in names) and all(map(_is_number, chain(*rows))):
            return ""
    except (KeyError, TypeError):
        pass
    return "confusionMatrix is not {annotationSpecs: [{displayName}], rows: [{row: [number, ...]}]} with a row per name"


def _find_fault_of_curve(points: Any) -> str:
    names = ("confidenceThreshold", "recall", "falsePositiveRate")
    try:
        if points is None or all(_is_number(point[name]) for point in points for name in names):
            return ""
    except (KeyError, TypeError):
        pass
    return f"confidenceMetrics is no list of points with the numbers {', '.join(names)}"


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_finite(value: Any) -> bool:
    if isinstance(value, Mapping):
        return all(map(_is_finite, value.values()))
    if isinstance(value, list):
        return all(map(_is_finite, value))
    return not isinstance(value, float) or math.isfinite(value)
