"""Rows of tables as arrays, and what is refused or warned of before training."""

import math
import re
from typing import Any

import numpy as np
import pytest
import torch

from contracts.artifacts.evaluation import FirstRows
from contracts.artifacts.shards import FieldEntry
from contracts.errors import DataError
from tests.trainer.tasks.tabular.tables import category, column, manifest, numbers, table_task, target
from trainer.data.loader import collate
from trainer.tasks.needs import check_shards
from trainer.tasks.optional import warnings_of
from trainer.tasks.protocol import Mode, RefusedSample

MODE = Mode(training=True)
SHARDS = manifest(
    one=FieldEntry(kind="number", statistics=[column("one")], columns=["one"]),
    town=category("Oslo", "Ulm"),
    more=numbers(column("a"), column("b")),
    job=category("cook"),
    note=FieldEntry(kind="text"),
)
ROWS = [
    {"one": 1.5, "town": "Ulm", "more": [2.0, math.nan], "job": "", "label": 1},
    {"one": math.nan, "town": "Rom", "more": [0.1, -3.0], "job": "cook", "label": 0},
]


def test_rows_become_arrays_in_the_order_of_the_fields() -> None:
    task = table_task("tabular_classification", SHARDS)
    assert list(task.fields) == ["one", "town", "more", "job", "label"], "a text is no input"
    assert {name: spec.shape[1] for name, spec in task.signature.inputs.items()} == {"numbers": 3, "categories": 2}
    batch = collate(task, [task.prepare(row, MODE) for row in ROWS], MODE)
    expected = np.array([[1.5, 2.0, math.nan], [math.nan, 0.1, -3.0]], np.float32)
    assert batch["numbers"].dtype == torch.float32
    np.testing.assert_array_equal(batch["numbers"].numpy(), expected)
    assert batch["categories"].tolist() == [[2, 0], [0, 1]], "missing and unseen are 0, others 1 + their place"
    assert batch["label"].tolist() == [1, 0]

    slot = task.first_slot()
    slot.keep(batch)
    taken = slot.take()
    assert taken is not None and slot.take() is None
    shown = FirstRows.model_validate_json(taken.content)
    assert shown.columns == ["one", "a", "b", "town", "job", "label"]
    names = task.classes
    assert shown.rows == [
        ["1.5", "2", "missing", "Ulm", "missing or unseen", names[1]],
        ["missing", "0.1", "-3", "missing or unseen", "cook", names[0]],
    ]


@pytest.mark.parametrize(
    ("fields", "inputs"),
    [({"town": category("Ulm")}, ["categories"]), ({"more": numbers(column())}, ["numbers"])],
)
def test_an_input_that_would_be_empty_is_left_out(fields: dict[str, FieldEntry], inputs: list[str]) -> None:
    task = table_task("tabular_classification", manifest(**fields))
    example = task.example(2)
    assert [name for name in example if name != "label"] == list(task.signature.inputs) == inputs
    assert task.build_model()(example[inputs[0]]).shape == (2, 2)


def test_targets_keep_their_digits() -> None:
    task = table_task("tabular_regression", manifest(target(), a=numbers(column())))
    rows = [task.prepare({"a": [1.0], "label": value}, MODE) for value in (1 / 3, 1e-9)]
    assert collate(task, rows, MODE)["label"].tolist() == [1 / 3, 1e-9]


@pytest.mark.parametrize(
    ("task", "row", "given"),
    [
        ("tabular_regression", {"a": [1.0], "label": math.nan}, r"field 'label' \(column 'y'\) is missing"),
        ("tabular_regression", {"a": [1.0, 2.0], "label": 1.0}, "field 'a' has 2 numbers"),
    ],
)
def test_rows_that_cannot_be_used_are_refused(task: str, row: dict[str, Any], given: str) -> None:
    made = table_task(task, manifest(target(), a=numbers(column())))
    with pytest.raises(RefusedSample) as caught:
        made.prepare(row, MODE)
    assert re.search(given, caught.value.given)


def test_a_number_beyond_float32_names_its_column() -> None:
    task = table_task("tabular_classification", manifest(a=numbers(column("small"), column("large"))))
    rows = [task.prepare({"a": [0.0, value], "label": 0}, MODE) for value in (1.0, -1e39)]
    with pytest.raises(DataError, match=r"column 'large' has the value -1e\+39"):
        collate(task, rows, MODE)


@pytest.mark.parametrize(
    ("task", "shards", "given"),
    [
        ("tabular_classification", manifest(a=numbers(column("a", most=1e39))), "column 'a' has the value 1e"),
        ("tabular_classification", manifest(a=FieldEntry(kind="numbers")), "no statistics of field 'a'"),
        ("tabular_classification", manifest(a=FieldEntry(kind="text")), "nothing to learn from"),
        ("tabular_regression", manifest(a=numbers(column())), "'label' of kind number, and the source has it as class"),
        (
            "tabular_regression",
            manifest(target(missing=3), a=numbers(column())),
            "3 rows of the training split have no",
        ),
        ("tabular_classification", manifest(target(), a=numbers(column())), "has it as number"),
    ],
)
def test_shards_that_cannot_be_learnt_are_refused(task: str, shards: Any, given: str) -> None:
    with pytest.raises(DataError) as caught:
        table_task(task, shards)
    assert caught.value.exit_code == 2 and re.search(given, caught.value.given), caught.value.given
    assert caught.value.allowed and caught.value.todo


def test_shards_of_the_other_task_name_it() -> None:
    with pytest.raises(DataError, match=r"set task\.name to tabular_regression"):
        table_task("tabular_classification", manifest(target(), a=numbers(column())))


def test_nothing_to_learn_from_is_seen_before_a_rank_starts() -> None:
    from contracts.config import RunConfig

    config = RunConfig.model_validate({"task": {"name": "tabular_classification"}})
    with pytest.raises(DataError, match="nothing to learn from"):
        check_shards(config, manifest(note=FieldEntry(kind="text")))


@pytest.mark.parametrize(
    ("task", "label", "given"),
    [
        ("tabular_classification", FieldEntry(kind="class", classes=["no"], columns=["y"]), "a single class (no)"),
        ("tabular_regression", target(std=0.0), "'y' of the shards holds 2 in every row"),
    ],
)
def test_labels_with_one_value_are_refused(task: str, label: FieldEntry, given: str) -> None:
    from contracts.config import RunConfig

    shards = manifest(label, a=numbers(column()))
    if label.kind == "class":
        shards = shards.model_copy(update={"classes": label.classes})
    with pytest.raises(DataError, match=re.escape(given)):
        check_shards(RunConfig.model_validate({"task": {"name": task}}), shards)


def test_what_cannot_be_learnt_is_warned_of() -> None:
    columns = [
        column("empty", mean=None, std=None),
        column("same", std=0.0),
        column("flat", mean=1e9, std=1.0),
        column("fine", mean=1e9, std=1e4),
    ]
    shards = manifest(a=numbers(*columns), town=category("Ulm", unseen={"train": 0, "validation": 2, "test": 3}))
    empty, same, flat, unseen = warnings_of(table_task("tabular_classification", shards))
    assert "'empty' has no value" in empty and "'same' has one value" in same and "'flat' has values" in flat
    assert "town" in unseen and "3 of test, 2 of validation" in unseen
