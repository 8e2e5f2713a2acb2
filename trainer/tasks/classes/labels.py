"""Names of the classes beside an export's graphs: labels.json, and what the model card says of them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from pages.markdown import code

LABELS_NAME = "labels.json"
# Of more names the model card lists the first ones; all of them are in files beside it.
_MOST_NAMES = 100


def write_json(path: Path, value: object) -> None:
    """Write a value as a file of JSON, to be read by people too."""
    path.write_text(json.dumps(value, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def read_labels(folder: Path) -> list[str]:
    """Return the names of the classes, in the order of the logits."""
    return [str(label) for label in json.loads((folder / LABELS_NAME).read_text(encoding="utf-8"))]


def list_classes(classes: Sequence[str]) -> str:
    """Return the sentence of the model card that names the classes."""
    return f"{len(classes)} classes, in the order of the scores: {list_names(classes)} (`{LABELS_NAME}`)."


def list_names(names: Sequence[str]) -> str:
    """Return names as the model card lists them, the first ones of many."""
    shown = ", ".join(map(code, names[:_MOST_NAMES]))
    return shown + (f" and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else "")
