"""Placeholders: each kind, once, and values that look like them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from rehearsal.pipelines.placeholders import UnknownPlaceholder, Values, find_unknown, substitute, substitute_all

TEXT = 'a "text"\nwith {{$.pipeline_job_name}} \\'
EXECUTOR_INPUT: dict[str, Any] = {
    "inputs": {
        "parameterValues": {"text": TEXT, "number": 3, "struct": {"a": [1.0, TEXT]}, "none": None},
        "artifacts": {"model": {"artifacts": [{"uri": "gs://b/model", "name": "model", "metadata": {}}]}},
    },
    "outputs": {"parameters": {"out": {"outputFile": "/m/b/out"}}, "outputFile": "/m/b/executor_output.json"},
}
VALUES = Values(EXECUTOR_INPUT, {"pipeline_job_name": "run-1"}, frozenset({"option"}))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("{{$.pipeline_job_name}}-{{$.pipeline_job_name}}", "run-1-run-1"),
        ("x{{$.inputs.parameters['text']}}", f"x{TEXT}"),
        ("{{$.inputs.parameters['number']}}", "3"),
        ("{{$.inputs.parameters['option']}}", "null"),
        ("{{$.inputs.parameters['struct']}}", json.dumps({"a": [1, TEXT]})),
        ("{{$.outputs.parameters['out'].output_file}}", "/m/b/out"),
    ],
)
def test_each_kind(text: str, expected: str) -> None:
    assert substitute(text, VALUES) == expected


def test_the_executor_input_and_its_escape() -> None:
    whole = dict(EXECUTOR_INPUT, inputs={**EXECUTOR_INPUT["inputs"]})
    found = json.loads(substitute("{{$}}", VALUES))
    assert found["inputs"]["parameterValues"]["text"] == whole["inputs"]["parameterValues"]["text"]
    # As launchers use it: within a JSON text that is itself an argument.
    payload = '{"args": ["--executor_input={{$.json_escape[1]}}"]}'
    (argument,) = json.loads(substitute(payload, VALUES))["args"]
    assert json.loads(argument.partition("=")[2]) == found
    # In a struct, which becomes JSON later, the same placeholder gives the same argument.
    struct = substitute_all({"args": ["--executor_input={{$.json_escape[1]}}"]}, VALUES)
    assert json.loads(struct["args"][0].partition("=")[2]) == found


@pytest.mark.parametrize(
    "text",
    [
        "{{$.pipeline_nothing}}",
        "{{$.outputs.x}}",
        "{{$.inputs.parameters['no']}}",
    ],
)
def test_what_stands_for_nothing(text: str) -> None:
    with pytest.raises(UnknownPlaceholder):
        substitute(text, VALUES)


def test_forms_that_are_not_known_are_found_before_a_run() -> None:
    known = ["{{$}} {{$.json_escape[1]}}", "{{$.inputs.parameters['a b']}}", {"x": "{{$.pipeline_job_name}}"}]
    assert find_unknown(known) == []
    path, root = "{{$.inputs.artifacts['m'].path}}", "{{$.pipeline_root}}"
    assert find_unknown([*known, f"{path} {path} {root}"]) == [path, root]
