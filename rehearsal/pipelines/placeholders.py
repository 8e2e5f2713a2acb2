"""Substitution of placeholders, `{{$...}}`, in compiled pipelines.

Each text is replaced in a single pass, so values that look like placeholders stay unchanged. In structs each text is
replaced separately, so quotes and newlines in values stay intact. Supported placeholders:

    {{$}}                                                the executor input as JSON
    {{$.inputs.parameters['N']}}                         an input value: text unchanged, other types as JSON
    {{$.outputs.parameters['N'].output_file}}            the file of an output parameter
    {{$.pipeline_...}}                                   constants of the run (Job.constants)
    ....json_escape[1]}}                                 any of these, escaped once for a JSON string

`shardline compile` and Google's launchers use these. Sources: kfp.dsl and google_cloud_pipeline_components'
_placeholders.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from contracts.canonical import canonical

# Does not match two adjacent placeholders as one.
_PLACEHOLDER = re.compile(r"\{\{\$((?:(?!\}\}).)*)\}\}")
_NAME = re.compile(
    r"(?:\.(?P<constant>pipeline_(?:job_(?:name|resource_name|create_time_utc|schedule_time_utc)"
    r"|google_cloud_project_id|google_cloud_location|persistent_resource_id))"
    r"|\.inputs\.parameters\['(?P<input>[^']*)'\]"
    r"|\.outputs\.parameters\['(?P<output>[^']*)'\]\.output_file)?"
    r"(?P<escape>\.json_escape\[1\])?"
)


class UnknownPlaceholder(ValueError):
    """A specification has a placeholder without a value."""


@dataclass(frozen=True)
class Values:
    """Values of a task's placeholders."""

    executor_input: Mapping[str, Any]
    """Inputs and outputs, the value of `{{$}}`."""
    constants: Mapping[str, str]
    """Constants of the run by name, e.g. pipeline_job_name."""
    optional: frozenset[str] = frozenset()
    """Input parameters that may be missing; their value is then null, as in kfp."""


def substitute(text: str, values: Values) -> str:
    """Replace the placeholders of a text; UnknownPlaceholder for one without a value."""
    return _PLACEHOLDER.sub(lambda match: _as_text(match[1], values), text)


def substitute_all(value: Any, values: Values) -> Any:
    """Replace the placeholders in every text of a JSON value; UnknownPlaceholder as for `substitute`.

    A text that is exactly one input parameter becomes its value, of any type. Undocumented for Vertex AI, but launchers
    depend on it.
    """
    if isinstance(value, str):
        match = _PLACEHOLDER.fullmatch(value)
        name = _NAME.fullmatch(match[1]) if match else None
        if name and name["input"] is not None and not name["escape"]:
            return _find(name, values)
        # Not escaped here: the enclosing JSON is serialised later.
        return _PLACEHOLDER.sub(lambda match: _as_text(match[1], values, is_in_json=True), value)
    if isinstance(value, Mapping):
        return {substitute_all(key, values): substitute_all(inner, values) for key, inner in value.items()}
    if isinstance(value, list):
        return [substitute_all(inner, values) for inner in value]
    return value


def find_unknown(value: Any) -> list[str]:
    """Return the unsupported placeholders in a JSON value, each once."""
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
    return UnknownPlaceholder(f"the placeholder {{{{${name}}}}} has no value here")
