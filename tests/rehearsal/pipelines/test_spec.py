"""Compiled specifications in one form. What of them is refused: test_programs.py and vertex/test_rules.py."""

from __future__ import annotations

from google.protobuf import json_format

from rehearsal.pipelines.spec import find_refusals, normalise
from tests.rehearsal.pipelines import programs_control as control


def test_names_of_both_kinds_are_one_form() -> None:
    """A client may send either form of protobuf's JSON; numbers of a Struct are doubles."""
    message = control.in_threes.pipeline_spec
    camel = normalise(json_format.MessageToDict(message))
    snake = json_format.MessageToDict(message, preserving_proto_field_name=True)
    assert "deployment_spec" in snake and normalise(snake) == camel
    assert camel["root"]["dag"]["tasks"]["for-loop-1"]["iteratorPolicy"]["parallelismLimit"] == 3
    default = camel["components"]["comp-say"]["inputDefinitions"]["parameters"]["number"]["defaultValue"]
    assert default == 0 and isinstance(default, int)
    assert normalise({**camel, "unheardOf": 1}) == camel


def test_what_is_played_has_no_refusals() -> None:
    assert find_refusals(json_format.MessageToDict(control.nested_loops.pipeline_spec)) == []
