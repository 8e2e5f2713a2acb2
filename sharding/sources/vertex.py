"""The files that Vertex AI imports for image classification, which many collections already have.

    CSV    [ML_USE,]URI,LABEL[,LABEL...]     ML_USE: training, validation or test
    JSONL  {"imageGcsUri": URI, "classificationAnnotation": {"displayName": LABEL},
            "dataItemResourceLabels": {"aiplatform.googleapis.com/ml_use": ML_USE}}

With several labels, JSONL has `classificationAnnotations`, a list of the same objects.
Source: https://cloud.google.com/vertex-ai/docs/image-data/classification/prepare-data
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from contracts.errors import DataError
from sharding.sources.rows import ML_USES, Row, parse_labels, parse_split

URI_KEY = "imageGcsUri"
_ONE_KEY = "classificationAnnotation"
_MANY_KEY = "classificationAnnotations"
_ML_USE_KEY = "aiplatform.googleapis.com/ml_use"


def is_csv_row(cells: Sequence[str]) -> bool:
    """Whether a line is one of Vertex AI's: it starts with an ML_USE, or with a gs:// URI after one or none."""
    return cells[:1] != [] and (cells[0] in ML_USES or any(cell.startswith("gs://") for cell in cells[:2]))


def parse_csv_row(cells: Sequence[str], where: str, place: str) -> Row:
    """Return the row in a line of the CSV form.

    Raises:
        DataError: Its ML_USE is unknown, or its URI or label is missing.
    """
    split = None
    # A first cell that can be no path stands for an ML_USE, known or not.
    if cells[0] in ML_USES or not ("/" in cells[0] or "." in cells[0]):
        split = parse_split(cells[0], ML_USES, "ml_use", where)
        cells = cells[1:]
    if len(cells) < 2 or not cells[0]:
        raise DataError(
            f"{where}: a URI and a label are needed, it has {','.join(cells)!r}",
            allowed="[training|validation|test,]gs://bucket/path,label",
            todo="correct the line",
        )
    is_list = len(cells) > 2
    labels, _ = parse_labels(list(cells[1:]), None, where)
    return Row(place, cells[0], labels, is_list, split, None)


def parse_object(values: Mapping[str, Any], where: str, place: str) -> Row:
    """Return the row in an object of the JSONL form.

    Raises:
        DataError: A key is missing or of another type, or its ml_use is unknown.
    """
    uri = values.get(URI_KEY)
    if not isinstance(uri, str) or not uri:
        raise DataError(f"{where}: no {URI_KEY}", allowed="the URI of an image", todo="correct the line")
    is_list = _MANY_KEY in values
    annotations = values.get(_MANY_KEY if is_list else _ONE_KEY)
    names = [
        annotation.get("displayName") if isinstance(annotation, dict) else None
        for annotation in (annotations if isinstance(annotations, list) else [annotations])
    ]
    if not names or None in names:
        raise DataError(
            f"{where}: no label",
            allowed=f'"{_ONE_KEY}": {{"displayName": "..."}}, or a list of these as "{_MANY_KEY}"',
            todo="correct the line, or leave the image out",
        )
    labels, _ = parse_labels(names, None, where)
    resource_labels = values.get("dataItemResourceLabels")
    ml_use = resource_labels.get(_ML_USE_KEY) if isinstance(resource_labels, dict) else None
    return Row(place, uri, labels, is_list, parse_split(ml_use, ML_USES, "ml_use", where), None)
