"""The task that a configuration names: what is no task, and shards that it cannot take, are refused in words."""

import re
from pathlib import Path
from typing import Any

import pytest
import torch

from contracts.artifacts.shards import FieldEntry
from contracts.config import RunConfig
from contracts.errors import ConfigError, DataError, UserError
from tests.trainer.tasks.for_tests import planned_manifest
from tests.trainer.tasks.wrong import Small
from trainer.model.build import example_inputs
from trainer.tasks.load import load_task
from trainer.tasks.optional import check_device, document_of, make_first_slot, make_report, warnings_of
from trainer.tasks.protocol import Task

OWN = "tests.trainer.tasks.wrong"


def load(name: str, arguments: dict[str, Any] | None = None, **changes: Any) -> Task:
    config = RunConfig.model_validate({"task": {"name": name, "arguments": arguments or {}}})
    return load_task(config, planned_manifest(3, **changes))


def test_a_class_of_ones_own_is_made_with_its_arguments() -> None:
    task = load(f"{OWN}:Small", {"scale": 2.5})
    assert isinstance(task, Small) and task.scale == 2.5


@pytest.mark.parametrize(
    ("name", "arguments", "given", "allowed", "todo"),
    [
        ("LacksTwo", {}, "class LacksTwo lacks collate, loss", "the methods build_model, prepare", "write collate"),
        ("build", {}, f"task.name '{OWN}:build' is a function", "a class", "name a class"),
        ("WIDTH", {}, "is a int", "a class", "name a class"),
        ("Small", {"width": 3}, "{'width': 3} cannot be made: TypeError: .*'width'", "its class takes", "arguments"),
        ("LacksHeadline", {}, "a LacksHeadline lacks headline", "fields, signature, headline", "set headline"),
        ("OtherSignature", {}, "signature is a tuple", "a Signature", "correct signature"),
        (
            "FailingSignature",
            {},
            "signature failed: ValidationError: .*'samples', not 'batch'",
            "",
            "correct signature",
        ),
        ("ListsFields", {}, "fields is a tuple", "image, text, class", "correct fields"),
        ("OddKind", {}, "fields is {'image': 'picture'}", "image, text, class", "correct fields"),
        ("NumberHeadline", {}, "headline is a int", "a str", "correct headline"),
        ("Refuses", {}, "^no such scale$", "another", "choose it"),
        ("Missing", {}, f"task.name '{OWN}:Missing'", "", "name what it has: "),
    ],
)
def test_what_is_no_task_is_refused(name: str, arguments: dict[str, Any], given: str, allowed: str, todo: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load(f"{OWN}:{name}", arguments)
    assert_said(caught.value, given, allowed, todo)


@pytest.mark.parametrize(
    "source",
    [
        "import no_such_module_here",
        "open('/no/such/colours.txt')",
        "class Own(Exception): ...\nraise Own",
    ],
)
def test_a_module_that_fails_at_import_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str) -> None:
    (tmp_path / "failing_tasks.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ConfigError, match=r"task\.name 'failing_tasks:Task'"):
        load("failing_tasks:Task")


@pytest.mark.parametrize(
    ("name", "arguments", "given"),
    [
        ("image_classification", {"wieghts": 1}, "'wieghts'"),
        ("image_classification", {"loss": "hinge"}, "task.arguments.loss is 'hinge'"),
    ],
)
def test_arguments_of_image_classification_are_checked(name: str, arguments: dict[str, Any], given: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load(name, arguments)
    assert_said(caught.value, given, "", "")


@pytest.mark.parametrize(
    ("name", "given", "todo"),
    [
        ("WantsText", "needs the field 'caption' of kind text, and the source has no such field", "kind: text"),
        (
            "WantsNumber",
            "'label' of kind number, and the source has it as class",
            "{label: {column: ..., kind: number}}",
        ),
    ],
)
def test_shards_without_a_field_are_refused(name: str, given: str, todo: str) -> None:
    with pytest.raises(DataError) as caught:
        load(f"{OWN}:{name}")
    assert_said(caught.value, given, r"these have image \(image\), label \(class\)", "")
    assert todo in caught.value.todo


@pytest.mark.parametrize(
    ("name", "given"),
    [
        ("FailingExample", r"example of the task failed: OSError: no such file \(.*line"),
        ("OtherExample", "returned no x"),
    ],
)
def test_an_example_that_is_none_is_named(name: str, given: str) -> None:
    with pytest.raises(ConfigError) as caught:
        example_inputs(load(f"{OWN}:{name}"), 2)
    assert_said(caught.value, given, "each input of the signature: x", "correct example")


def test_an_optional_member_that_cannot_be_called_is_none() -> None:
    task, cpu = load(f"{OWN}:OddOptionals"), torch.device("cpu")
    check_device(task, cpu)
    assert (warnings_of(task), document_of(task), make_report(task, cpu), make_first_slot(task)) == ([], {}, None, None)


def test_named_fields_are_those_that_count() -> None:
    """Not image and label, which shards without named fields have."""
    named = {"photo": FieldEntry(kind="image"), "label": FieldEntry(kind="class", place=1, classes=["a", "b"])}
    with pytest.raises(DataError, match="needs the field 'image' of kind image, and the source has no such field"):
        load("image_classification", fields=named)


def assert_said(error: UserError, given: str, allowed: str, todo: str) -> None:
    assert error.exit_code == 2
    for words, said in ((given, error.given), (allowed, error.allowed), (todo, error.todo)):
        assert re.search(words, said, re.DOTALL), (words, said)
        assert said
