"""Inputs and outputs of tasks: where values come from, and which are refused."""

from __future__ import annotations

from typing import Any

import pytest

from rehearsal.pipelines.values import Data, TaskFailed, fit, resolve_inputs, upstream_of

PARENT = Data({"item": "{{$.x}}", "null": None})
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
        ({"componentInputParameter": "item"}, None, ("{{$.x}}", False)),
        (OUTPUT, None, ("text", False)),
        ({"componentInputParameter": "null"}, WITH_DEFAULT, ("default", True)),
        ({"componentInputParameter": "null"}, {"parameterType": "STRING", "isOptional": True}, (None, False)),
    ],
)
def test_where_a_value_comes_from(source: Any, definition: Any, expected: Any) -> None:
    assert resolve(source, definition) == expected


def test_an_output_that_is_not_there() -> None:
    # A default does not hide it.
    with pytest.raises(TaskFailed, match="output out of task second was not written"):
        resolve(GONE, WITH_DEFAULT)
    assert resolve(GONE, WITH_DEFAULT, ignores_failures=True) == ("default", True)


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
        ("", [1], [1]),
    ],
)
def test_types_of_inputs(kind: str, value: Any, expected: Any) -> None:
    assert fit("x", value, kind) == expected


@pytest.mark.parametrize(
    ("kind", "value"),
    [("NUMBER_INTEGER", 1.5), ("NUMBER_INTEGER", True), ("BOOLEAN", 1), ("LIST", {})],
)
def test_inputs_of_another_type_are_refused(kind: str, value: Any) -> None:
    with pytest.raises(TaskFailed, match=f"input x is .*declares {kind}"):
        fit("x", value, kind)
