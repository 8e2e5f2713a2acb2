"""Names of the classes beside an export's graphs: labels.json, and what the model card says of them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

LABELS_NAME = "labels.json"
# Of more classes the model card lists the first ones; all of them are in labels.json.
_MOST_CLASSES = 100
_BAR = r"\|"


def write_json(path: Path, value: object) -> None:
    """Write a value as a file of JSON, to be read by people too."""
    path.write_text(json.dumps(value, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def read_labels(folder: Path) -> list[str]:
    """Return the names of the classes, in the order of the logits."""
    return [str(label) for label in json.loads((folder / LABELS_NAME).read_text(encoding="utf-8"))]


def list_classes(classes: Sequence[str]) -> str:
    """Return the sentence of the model card that names the classes."""
    shown = ", ".join(f"`{' '.join(name.replace('|', _BAR).split())}`" for name in classes[:_MOST_CLASSES])
    more = f" and {len(classes) - _MOST_CLASSES} more" if len(classes) > _MOST_CLASSES else ""
    return f"{len(classes)} classes, in the order of the scores: {shown}{more} (`{LABELS_NAME}`)."
