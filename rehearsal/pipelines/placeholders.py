"""Placeholders of a compiled pipeline, `{{$...}}`, replaced as the service does it.

A text is gone through once, so that a value that looks like a placeholder stays what it is; in a struct each text is
replaced in its place, so that quotes and newlines of a value survive. What is known of each:

    {{$}}                                                the executor input as JSON
    {{$.inputs.parameters['N']}}                         a value: texts as they are, all else as JSON
    {{$.inputs.artifacts['N'].uri|path|name|metadata...}}, {{$.outputs.artifacts['N']...}}
    {{$.outputs.parameters['N'].output_file}}, {{$.outputs.output_file}}, {{$.outputMetadataUri}}
    {{$.pipeline_...}}                                   of the run, given by the caller
    ....json_escape[1]}}                                 the same, once escaped for the inside of a JSON string

Sources: kfp.dsl and google_cloud_pipeline_components' _placeholders.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from contracts.canonical import canonical

# No second end within: a text of two placeholders is not one.
_PLACEHOLDER = re.compile(r"\{\{\$((?:(?!\}\}).)*)\}\}")
_STEP = re.compile(r"\.?(\w+)|\['([^']*)'\]|\[(\d+)\]")
_ESCAPE = re.compile(r"\.json_escape\[([01])\]$")


class UnknownPlaceholder(ValueError):
    """A specification has a placeholder that nothing stands behind."""


@dataclass(frozen=True)
class Values:
    """What placeholders of one task stand for."""

    executor_input: Mapping[str, Any]
    """As `{{$}}` shows it: inputs and outputs."""
    constants: Mapping[str, str]
    """By name: pipeline_job_name, pipeline_root and so on."""
    path_of: Callable[[str], str]
    """From an artifact's URI to the path at which a container sees it."""
    optional: frozenset[str] = frozenset()
    """Input parameters that the component declares and nobody must give: null where nobody did."""


def substitute(text: str, values: Values) -> str:
    """Replace the placeholders of a text.

    Raises:
        UnknownPlaceholder: There is no such thing.
    """
    return _PLACEHOLDER.sub(lambda match: _as_text(match.group(1), values, 0), text)


def substitute_all(value: Any, values: Values) -> Any:
    """Replace the placeholders in every text of a JSON value, in its place.

    A text that is one placeholder and nothing else becomes the value itself, whatever its type. That Vertex does so is
    unverified: no page says it, launchers depend on it.

    Raises:
        UnknownPlaceholder: There is no such thing.
    """
    if isinstance(value, str):
        whole = _PLACEHOLDER.fullmatch(value)
        if whole is not None and ".inputs.parameters" in value and not _ESCAPE.search(whole.group(1)):
            return _find(whole.group(1), values)
        # The text will be written into JSON with what is around it: that is the first escape.
        return _PLACEHOLDER.sub(lambda match: _as_text(match.group(1), values, 1), value)
    if isinstance(value, Mapping):
        return {substitute_all(key, values): substitute_all(inner, values) for key, inner in value.items()}
    if isinstance(value, list):
        return [substitute_all(inner, values) for inner in value]
    return value


def has_placeholder(value: Any) -> bool:
    """Whether a text of a JSON value has one."""
    return "{{$" in json.dumps(value)


def expand_words(words: list[str], provided: set[str]) -> list[str]:
    """Resolve the structures Concat and IfPresent of a command, which are JSON in a word; placeholders stay.

    Args:
        words: Command and arguments.
        provided: Names of the inputs that have a value.
    """
    expanded: list[str] = []
    for word in words:
        if word.startswith(('{"Concat": ', '{"IfPresent": ')):
            expanded += _expand(json.loads(word), provided)
        else:
            expanded.append(word)
    return expanded


def _expand(node: Any, provided: set[str]) -> list[str]:
    if isinstance(node, str):
        return [node]
    if isinstance(node, list):
        return [word for inner in node for word in _expand(inner, provided)]
    if "Concat" in node:
        return ["".join(word for inner in node["Concat"] for word in _expand(inner, provided))]
    choice = node["IfPresent"]
    branch = choice["Then"] if choice["InputName"] in provided else choice.get("Else")
    return [] if branch is None else _expand(branch, provided)


def _as_text(name: str, values: Values, written: int) -> str:
    """Return what stands for a placeholder, escaped as often as it asks for, less the times that follow anyway."""
    escape = _ESCAPE.search(name)
    value = _find(name[: escape.start()] if escape else name, values)
    text = value if isinstance(value, str) else json.dumps(canonical(value), sort_keys=True)
    for _ in range((int(escape.group(1)) if escape else 0) - written):
        text = json.dumps(text)[1:-1]
    return text


def _find(name: str, values: Values) -> Any:
    if name == "":
        return values.executor_input
    if name in (".outputs.output_file", ".outputMetadataUri"):
        return values.executor_input["outputs"]["outputFile"]
    steps = [match.group(1) or match.group(2) or match.group(3) for match in _STEP.finditer(name)]
    if len(steps) == 1 and steps[0] in values.constants:
        return values.constants[steps[0]]
    if len(steps) >= 3 and steps[0] in ("inputs", "outputs"):
        side = values.executor_input.get(steps[0], {})
        if steps[1] == "artifacts":
            return _find_in_artifact(name, side.get("artifacts", {}).get(steps[2]), steps[3:], values)
        if steps[:2] == ["inputs", "parameters"]:
            given = side.get("parameterValues", {})
            if steps[2] in given or steps[2] in values.optional:
                # An optional one that was not given is null, as in kfp.
                return _follow(name, given.get(steps[2]), steps[3:])
        if steps[:2] == ["outputs", "parameters"] and steps[2] in side.get("parameters", {}):
            return side["parameters"][steps[2]]["outputFile"]
    raise UnknownPlaceholder(f"the placeholder {{{{${name}}}}} stands for nothing here")


def _find_in_artifact(name: str, entry: Any, steps: list[str], values: Values) -> Any:
    if not entry or not entry["artifacts"]:
        raise UnknownPlaceholder(f"the placeholder {{{{${name}}}}} names an artifact that is not there")
    artifact = entry["artifacts"][0]
    if steps == ["path"]:
        return values.path_of(artifact.get("uri", ""))
    return _follow(name, artifact, steps)


def _follow(name: str, value: Any, steps: list[str]) -> Any:
    for step in steps:
        if isinstance(value, Mapping) and step in value:
            value = value[step]
        elif isinstance(value, list) and step.isdecimal() and int(step) < len(value):
            value = value[int(step)]
        else:
            raise UnknownPlaceholder(f"the placeholder {{{{${name}}}}} names {step!r}, which is not there")
    return value
