"""Placeholders: each kind, once, and values that look like them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from rehearsal.pipelines.placeholders import UnknownPlaceholder, Values, expand_words, substitute, substitute_all

TEXT = 'a "text"\nwith {{$.pipeline_job_name}} \\'
EXECUTOR_INPUT: dict[str, Any] = {
    "inputs": {
        "parameterValues": {"text": TEXT, "number": 3, "struct": {"a": [1.0, TEXT]}, "none": None},
        "artifacts": {
            "model": {"artifacts": [{"uri": "gs://b/model", "name": "model", "metadata": {"resourceName": "r/1"}}]}
        },
    },
    "outputs": {"parameters": {"out": {"outputFile": "/m/b/out"}}, "outputFile": "/m/b/executor_output.json"},
}
VALUES = Values(
    EXECUTOR_INPUT, {"pipeline_job_name": "run-1"}, lambda uri: uri.replace("gs://", "/m/"), frozenset({"option"})
)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("{{$.pipeline_job_name}}-{{$.pipeline_job_name}}", "run-1-run-1"),
        ("x{{$.inputs.parameters['text']}}", f"x{TEXT}"),
        ("{{$.inputs.parameters['number']}}", "3"),
        ("{{$.inputs.parameters['none']}}", "null"),
        ("{{$.inputs.parameters['option']}}", "null"),
        ("{{$.inputs.parameters['struct']['a'][0]}}", "1"),
        ("{{$.inputs.parameters['struct']}}", json.dumps({"a": [1, TEXT]})),
        ("{{$.inputs.artifacts['model'].uri}}", "gs://b/model"),
        ("{{$.inputs.artifacts['model'].path}}", "/m/b/model"),
        ("{{$.inputs.artifacts['model'].metadata['resourceName']}}", "r/1"),
        ("{{$.outputs.parameters['out'].output_file}}", "/m/b/out"),
        ("{{$.outputs.output_file}} {{$.outputMetadataUri}}", "/m/b/executor_output.json /m/b/executor_output.json"),
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


def test_a_struct_keeps_types_and_quotes() -> None:
    given = {"n": "{{$.inputs.parameters['number']}}", "t": ["is {{$.inputs.parameters['text']}}"], "k": 2}
    found = substitute_all(given, VALUES)
    assert found == {"n": 3, "t": [f"is {TEXT}"], "k": 2}
    assert json.loads(json.dumps(found)) == found


@pytest.mark.parametrize(
    "text",
    [
        "{{$.pipeline_nothing}}",
        "{{$.inputs.artifacts['no'].uri}}",
        "{{$.inputs.artifacts['model'].metadata['no']}}",
        "{{$.outputs.x}}",
        "{{$.inputs.parameters['no']}}",
        "{{$.inputs.parameters['struct']['no']}}",
        "{{$.inputs.parameters['struct']['a'][9]}}",
        "{{$.inputs.parameters['number'].no}}",
    ],
)
def test_what_stands_for_nothing(text: str) -> None:
    with pytest.raises(UnknownPlaceholder):
        substitute(text, VALUES)


def test_words_with_structs() -> None:
    concat = json.dumps({"Concat": ["{", '"a": ', "{{$.inputs.parameters['text']}}", "}"]})
    given = json.dumps({"IfPresent": {"InputName": "p", "Then": ["--p", {"Concat": ["x", "y"]}]}})
    other = json.dumps({"IfPresent": {"InputName": "q", "Then": "--q", "Else": ["--no-q"]}})
    absent = json.dumps({"IfPresent": {"InputName": "q", "Then": "--q"}})
    words = expand_words(["first", concat, given, other, absent], {"p"})
    assert words == ["first", "{\"a\": {{$.inputs.parameters['text']}}}", "--p", "xy", "--no-q"]
