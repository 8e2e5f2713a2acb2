"""Labels with too few values to learn: refused before the first stage, and of finished shards when training begins."""

from __future__ import annotations

from collections.abc import Sequence

from contracts.artifacts.classification import TASKS as ONE_LABEL
from contracts.artifacts.multilabel import TASKS as SEVERAL_LABELS
from contracts.errors import DataError


def check_classes(task: str, classes: Sequence[str], where: str) -> None:
    """Refuse fewer classes than a task of the tool can tell apart: two, or one where a sample has any number of them.

    Args:
        task: task.name; of an own task nothing is known.
        classes: Their names.
        where: The source and its column, in words.

    Raises:
        DataError: There are fewer.
    """
    least = 2 if task in ONE_LABEL else 1 if task in SEVERAL_LABELS else 0
    if len(classes) < least:
        found = f"a single class ({classes[0]})" if classes else "no class"
        raise DataError(
            f"{where} holds {found}: task {task} has nothing to tell apart",
            allowed=f"at least {least} {'classes' if least > 1 else 'class'}",
            todo="add rows of other classes, or name the column that holds classes in sharding.fields.label",
        )
