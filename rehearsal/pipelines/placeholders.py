"""Placeholders of a compiled pipeline, `{{$...}}`, replaced as the service does it.

A text is gone through once, so that a value that looks like a placeholder stays what it is; in a struct each text is
replaced in its place, so that quotes and newlines of a value survive. These are known:

    {{$}}                                                the executor input as JSON
    {{$.inputs.parameters['N']}}                         a value: texts as they are, all else as JSON
    {{$.outputs.parameters['N'].output_file}}            the file to write it to
    {{$.pipeline_...}}                                   of the run (Job.constants)
    ....json_escape[1]}}                                 the same, once escaped for the inside of a JSON string

Those of `shardline compile` and of Google's launchers. Sources: kfp.dsl and google_cloud_pipeline_components'
_placeholders.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from contracts.canonical import canonical

# No second end within: a text of two placeholders is not one.
_PLACEHOLDER = re.compile(r"\{\{\$((?:(?!\}\}).)*)\}\}")
_NAME = re.compile(
    r"(?:\.(?P<constant>pipeline_(?:job_(?:name|resource_name|create_time_utc|schedule_time_utc)"
    r"|google_cloud_project_id|google_cloud_location|persistent_resource_id))"
    r"|\.inputs\.parameters\['(?P<input>[^']*)'\]"
    r"|\.outputs\.parameters\['(?P<output>[^']*)'\]\.output_file)?"
    r"(?P<escape>\.json_escape\[1\])?"
)


class UnknownPlaceholder(ValueError):
    """A specification has a placeholder that stands for nothing."""


@dataclass(frozen=True)
class Values:
    """What placeholders of one task stand for."""

    executor_input: Mapping[str, Any]
    """As `{{$}}` shows it: inputs and outputs."""
    constants: Mapping[str, str]
    """By name: pipeline_job_name and so on."""
    optional: frozenset[str] = frozenset()
    """Input parameters that may be missing: null then, as in kfp."""


def substitute(text: str, values: Values) -> str:
    """Replace the placeholders of a text; UnknownPlaceholder where one stands for nothing."""
    return _PLACEHOLDER.sub(lambda match: _as_text(match[1], values), text)


def substitute_all(value: Any, values: Values) -> Any:
    """Replace the placeholders in every text of a JSON value, in its place; UnknownPlaceholder as `substitute`.

    A text that is one input parameter and nothing else becomes the value itself, whatever its type. That Vertex AI does
    so is unverified: no page says it, launchers depend on it.
    """
    if isinstance(value, str):
        whole = _PLACEHOLDER.fullmatch(value)
        name = _NAME.fullmatch(whole[1]) if whole else None
        if name and name["input"] is not None and not name["escape"]:
            return _find(name, values)
        # The text will be written into JSON with what is around it: that is the escape.
        return _PLACEHOLDER.sub(lambda match: _as_text(match[1], values, is_in_json=True), value)
    if isinstance(value, Mapping):
        return {substitute_all(key, values): substitute_all(inner, values) for key, inner in value.items()}
    if isinstance(value, list):
        return [substitute_all(inner, values) for inner in value]
    return value


def find_unknown(value: Any) -> list[str]:
    """Return the placeholders in the texts of a JSON value that are none of the known forms, each once."""
    names = dict.fromkeys(_PLACEHOLDER.findall(json.dumps(value, ensure_ascii=False)))
    return [f"{{{{${name}}}}}" for name in names if _NAME.fullmatch(name) is None]


def _as_text(text: str, values: Values, *, is_in_json: bool = False) -> str:
    name = _NAME.fullmatch(text)
    if name is None:
        raise _unknown(text)
    value = _find(name, values)
    replaced = value if isinstance(value, str) else json.dumps(canonical(value), sort_keys=True)
    return json.dumps(replaced)[1:-1] if name["escape"] and not is_in_json else replaced


def _find(name: re.Match[str], values: Values) -> Any:
    inputs, outputs = (values.executor_input.get(side, {}) for side in ("inputs", "outputs"))
    try:
        if name["constant"] is not None:
            return values.constants[name["constant"]]
        if name["input"] is not None:
            parameters = inputs.get("parameterValues", {})
            return parameters.get(name["input"]) if name["input"] in values.optional else parameters[name["input"]]
        if name["output"] is not None:
            return outputs["parameters"][name["output"]]["outputFile"]
    except KeyError:
        raise _unknown(name[0]) from None
    return values.executor_input


def _unknown(name: str) -> UnknownPlaceholder:
    return UnknownPlaceholder(f"the placeholder {{{{${name}}}}} stands for nothing here")
