"""Inputs and outputs of tasks: where values come from, and which are refused."""

from __future__ import annotations

from typing import Any

import pytest

from rehearsal.pipelines.values import (
    Data,
    TaskFailed,
    collect,
    dag_outputs,
    fit,
    loop_items,
    read_parameter,
    resolve_inputs,
    upstream_of,
)

PARENT = Data({"item": '{"a": {"b": [1, 2]}}', "null": None}, {"made": [{"uri": "gs://b/1"}]})
PRODUCED = {"first": Data({"out": "text", "null": None})}


def resolve(source: dict[str, Any], definition: dict[str, Any] | None = None, **more: Any) -> tuple[Any, bool]:
    """A parameter's value, and whether placeholders in it are meant."""
    component = {"inputDefinitions": {"parameters": {"x": definition or {"parameterType": "STRING"}}}}
    found, live = resolve_inputs({"inputs": {"parameters": {"x": source}}}, component, PARENT, PRODUCED, **more)
    return found.parameters.get("x"), "x" in live


OUTPUT = {"taskOutputParameter": {"producerTask": "first", "outputParameterKey": "out"}}
GONE = {"taskOutputParameter": {"producerTask": "second", "outputParameterKey": "out"}}
WITH_DEFAULT = {"parameterType": "STRING", "defaultValue": "default", "isOptional": True}


@pytest.mark.parametrize(
    ("source", "definition", "expected"),
    [
        ({"runtimeValue": {"constant": "{{$.x}}"}}, None, ("{{$.x}}", True)),
        ({"runtimeValue": {"constantValue": {"intValue": 3}}}, None, (3, True)),
        ({"runtimeValue": {"runtimeParameter": "item"}}, None, (PARENT.parameters["item"], True)),
        (OUTPUT, None, ("text", False)),
        ({"componentInputParameter": "null"}, WITH_DEFAULT, ("default", True)),
        ({"componentInputParameter": "null"}, {"parameterType": "STRING", "isOptional": True}, (None, False)),
        (
            {"componentInputParameter": "item", "parameterExpressionSelector": 'parseJson(string_value)["a"]["b"][1]'},
            None,
            (2, False),
        ),
    ],
)
def test_where_a_value_comes_from(source: Any, definition: Any, expected: Any) -> None:
    assert resolve(source, definition) == expected


def test_an_output_that_is_not_there() -> None:
    # A default does not hide it: a gate must see that its value is missing.
    with pytest.raises(TaskFailed, match="output out of task second was not written"):
        resolve(GONE, WITH_DEFAULT)
    assert resolve(GONE, WITH_DEFAULT, tolerant=True) == ("default", True)


@pytest.mark.parametrize("selector", ['parseJson(string_value)["no"]', 'parseJson(string_value)["a"][0]', "size(x)"])
def test_a_field_that_is_not_there(selector: str) -> None:
    with pytest.raises(TaskFailed):
        resolve({"componentInputParameter": "item", "parameterExpressionSelector": selector})


def test_what_a_task_waits_for() -> None:
    artifact = {"taskOutputArtifact": {"producerTask": "third", "outputArtifactKey": "made"}}
    status = {"taskFinalStatus": {"producerTask": "fourth"}}
    inputs = {"parameters": {"x": OUTPUT, "s": status, "c": {"runtimeValue": {}}}, "artifacts": {"a": artifact}}
    assert upstream_of({"dependentTasks": ["zero"], "inputs": inputs}) == {"zero", "first", "third", "fourth"}


@pytest.mark.parametrize(
    ("kind", "value", "expected"),
    [
        ("STRING", 3.0, "3"),
        ("STRING", {"a": 1.0}, '{"a": 1}'),
        ("NUMBER_INTEGER", 3.0, 3),
        ("NUMBER_DOUBLE", 3, 3),
        ("STRUCT", {"a": 1.0}, {"a": 1}),
        ("", [1], [1]),
    ],
)
def test_types_of_inputs(kind: str, value: Any, expected: Any) -> None:
    assert fit("x", value, {"parameterType": kind}) == expected


@pytest.mark.parametrize(
    ("kind", "value"),
    [("NUMBER_INTEGER", 1.5), ("NUMBER_INTEGER", True), ("NUMBER_DOUBLE", "1"), ("BOOLEAN", 1), ("LIST", {})],
)
def test_inputs_of_another_type_are_refused(kind: str, value: Any) -> None:
    with pytest.raises(TaskFailed, match=f"input x is .*declares {kind}"):
        fit("x", value, {"parameterType": kind})


def test_literals() -> None:
    definition = {"parameterType": "STRING", "literals": ["a", "b"]}
    assert fit("x", "a", definition) == "a"
    with pytest.raises(TaskFailed, match="takes one of"):
        fit("x", "c", definition)


@pytest.mark.parametrize(
    ("kind", "text", "expected"),
    [("STRING", " 1\n", " 1\n"), ("BOOLEAN", "True", True), ("NUMBER_INTEGER", "3.0", 3), ("LIST", "[1.0]", [1])],
)
def test_files_of_outputs(kind: str, text: str, expected: Any) -> None:
    assert read_parameter("x", text, kind) == expected


def test_a_loop_needs_a_list() -> None:
    task = {"parameterIterator": {"itemInput": "item", "items": {"inputParameter": "items"}}}
    found = loop_items(task, Data({"items": "[1.0, [2]]"}))
    assert [one.parameters["item"] for one in found] == [1, [2]]
    for wrong in ("text", 3, None, {"a": 1}):
        with pytest.raises(TaskFailed, match="a loop runs over a list"):
            loop_items(task, Data({"items": wrong}))


def test_what_an_iteration_has_not_written_is_left_out() -> None:
    found = collect([Data({"x": 1}, {"a": [{"uri": "1"}]}), Data(), Data({"x": 3}, {"a": [{"uri": "3"}]})])
    assert found == Data({"x": [1, 3]}, {"a": [{"uri": "1"}, {"uri": "3"}]})


def test_one_branch_writes_an_output() -> None:
    branches = [{"producerSubtask": name, "outputParameterKey": "out"} for name in ("a", "b")]
    outputs = {"parameters": {"x": {"valueFromOneof": {"parameterSelectors": branches}}}}
    assert dag_outputs(outputs, {"b": Data({"out": 2})}).parameters == {"x": 2}
    assert dag_outputs(outputs, {}).parameters == {}
    with pytest.raises(TaskFailed, match="2 of them have written it"):
        dag_outputs(outputs, {"a": Data({"out": 1}), "b": Data({"out": 2})})
