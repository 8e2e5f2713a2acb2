"""Loading of a RunConfig: defaults < YAML file < `section.key=value`, or the JSON that a stage is given.

Errors say what was given, in the words of the file or the override, what is allowed and what to do.
"""

from __future__ import annotations

import difflib
import json
import re
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import UnionType
from typing import Any, get_args, get_origin

import yaml
from pydantic import BaseModel, ValidationError

from contracts.config import STAGE_KEYS, RunConfig
from contracts.config.base import REFUSED
from contracts.config.stages import read_off
from contracts.errors import ConfigError
from contracts.yaml_text import Dumper, Loader

DATE_MARK = "{date}"
"""Stands in sharding.source for the day that a schedule fired for, in its time zone."""


def load_config(path: str | Path, overrides: Sequence[str] = ()) -> RunConfig:
    """Resolve defaults < the YAML file at `path` < `overrides`.

    Raises:
        ConfigError: The file cannot be read, is no mapping, or holds a key or a value that is not allowed.
    """
    try:
        text = Path(path).read_text(encoding="utf-8")
        values = yaml.load(text, Loader=Loader)
    except FileNotFoundError:
        raise ConfigError(
            f"configuration {path} does not exist",
            allowed="the path of a YAML file",
            todo="check the path, or start from configs/digits.yaml",
        ) from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"configuration {path} cannot be read: {error}", allowed="a readable YAML file", todo="check the path"
        ) from None
    except yaml.YAMLError as error:
        raise ConfigError(
            f"{path} is not valid YAML: {_one_line(error)}", allowed="YAML", todo="correct the line named"
        ) from None
    values = {} if values is None else values
    if not isinstance(values, dict):
        raise ConfigError(
            f"{path} holds a {type(values).__name__}",
            allowed="a mapping of sections: " + ", ".join(RunConfig.model_fields),
            todo="see configs/digits.yaml for an example",
        )
    for override in overrides:
        apply_override(values, override)
    return parse_config(values, where=str(path), overrides=overrides, text=text)


def apply_override(values: dict[str, Any], override: str) -> None:
    """Set `section.key=value`, or `profile=off` (the value is YAML), in a nested mapping.

    Raises:
        ConfigError: It is no override, or a key on its way holds a value.
    """
    dotted, equals, text = override.partition("=")
    keys = dotted.split(".")
    if not equals or (len(keys) < 2 and dotted != "profile") or not all(keys):
        raise ConfigError(
            f"override {override!r}",
            allowed="section.key=value, or profile=off",
            todo="write for example train.epochs=3 (the value is YAML)",
        )
    try:
        value = yaml.load(text, Loader=Loader)
    except yaml.YAMLError as error:
        raise ConfigError(
            f"override {override!r}: {_one_line(error)}", allowed="a YAML value", todo="quote the value"
        ) from None
    if len(keys) > 1:
        values["profile"] = read_off(values.get("profile"))
    target = values
    for key in keys[:-1]:
        if target.get(key) is None:
            target[key] = {}
        if not isinstance(target[key], dict):
            raise ConfigError(
                f"override {override!r}: {key} holds a value, not keys",
                allowed="section.key=value",
                todo="check the dots of the key",
            )
        target = target[key]
    target[keys[-1]] = value


def parse_config(values: Mapping[str, Any], *, where: str, overrides: Sequence[str] = (), text: str = "") -> RunConfig:
    """Validate a nested mapping.

    Args:
        values: Sections; an empty one (None) stands for its defaults.
        where: Origin of the values, for errors.
        overrides: What `apply_override` has set in them, for errors.
        text: YAML that they were read from, for errors.

    Raises:
        ConfigError: A key or a value is not allowed.
    """
    try:
        return RunConfig.model_validate(values)
    except ValidationError as error:
        raise _explain(error, values, where, overrides, text) from None


def stage_config(config: RunConfig, stage: str) -> dict[str, Any]:
    """Return the keys that `stage` reads, ready for JSON."""
    return config.model_dump(mode="json", include=STAGE_KEYS[stage])


def read_stage_config(text: str | None) -> RunConfig:
    """Read a stage's keys from JSON text.

    Raises:
        ConfigError: There is none, or it is no valid configuration.
    """
    try:
        values = json.loads(text or "")
    except ValueError as error:
        raise ConfigError(f"the configuration is not JSON: {error}", allowed="JSON", todo="correct it") from None
    return parse_config(values, where="--config-json")


def with_data_date(config: RunConfig, date: str) -> RunConfig:
    """Return the configuration with {date} in sharding.source replaced by a day, YYYY-MM-DD.

    Args:
        config: With the section sharding.
        date: A moment in ISO 8601, of which the day counts that it names, in the zone of its offset; empty: today, UTC.
    """
    source = config.sharding.source
    if DATE_MARK not in source:
        return config
    day = date[:10] or time.strftime("%Y-%m-%d", time.gmtime())
    return config.with_keys(sharding={"source": source.replace(DATE_MARK, day)})


def to_yaml(config: RunConfig) -> str:
    """Return the resolved configuration as YAML."""
    return yaml.dump(config.model_dump(mode="json"), Dumper=Dumper, sort_keys=False)


def _one_line(error: yaml.YAMLError) -> str:
    if not isinstance(error, yaml.MarkedYAMLError) or error.problem_mark is None:
        return str(error).partition("\n")[0]
    return f"{error.problem} (line {error.problem_mark.line + 1}, column {error.problem_mark.column + 1})"


# Ends pydantic's location of a key of a mapping.
_OF_KEY = "[key]"
_BOUNDS = {
    "greater_than_equal": ("ge", "of at least"),
    "less_than_equal": ("le", "of at most"),
    "greater_than": ("gt", "greater than"),
    "less_than": ("lt", "less than"),
}
_EXPECTED = {
    "int_parsing": "a whole number",
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "float_parsing": "a number",
    "float_type": "a number",
    "finite_number": "a finite number",
    "string_type": "text",
    "string_too_short": "text that is not empty",
    "bool_parsing": "true or false",
    "bool_type": "true or false",
    "list_type": "a list",
    "dict_type": "a mapping of keys",
    "model_type": "a mapping of keys",
}


def _explain(
    error: ValidationError, values: Mapping[str, Any], where: str, overrides: Sequence[str], text: str
) -> ConfigError:
    """Return pydantic's first finding as an error with what was given, what is allowed and what to do."""
    findings = error.errors(include_url=False)
    finding = findings[0]
    paths = [_path_in(values, item) for item in findings]
    path, where = paths[0], _origin(paths[0], where, overrides)
    name = ".".join(path) or "configuration"
    if finding["type"] == "extra_forbidden":
        section = ".".join(path[:-1])
        known = list(_model_at(path[:-1]).model_fields)
        close = difflib.get_close_matches(path[-1], known, n=1)
        todo = f"did you mean {'.'.join([*path[:-1], close[0]])}?" if close else "remove it, or take one of those keys"
        allowed = f"{section + ': ' if section else ''}{', '.join(known)}"
        return ConfigError(f"{where}: unknown key {name}", allowed=allowed, todo=todo)
    if finding["type"] == REFUSED:
        context = finding["ctx"]
        return ConfigError(f"{where}: {context['given']}", allowed=context["allowed"], todo=context["todo"])
    # The branches of a union count as findings of their own.
    allowed = " or ".join(
        dict.fromkeys(_describe_allowed(item, path) for item, at in zip(findings, paths, strict=True) if at == path)
    )
    value, todo = finding["input"], f"correct {name}"
    written = repr(value)
    if isinstance(value, (bool, int, float)):
        written = _find_written(path, text, overrides) or written
        if finding["type"] == "string_type":
            todo = f'quote it: {path[-1]}: "{written}" in a file, \'{name}="{written}"\' as an override'
    shown = "" if finding["type"] in ("value_error", "missing") else f" = {written}"
    more = f" ({num_more} more after this one)" if (num_more := len(set(paths)) - 1) else ""
    return ConfigError(f"{where}: {name}{shown}{more}", allowed=allowed, todo=todo)


def _path_in(values: Any, finding: Any) -> tuple[str, ...]:
    """Return the part of a finding's location that the user wrote: without the names of a union's branches."""
    path: list[str] = []
    for part in finding["loc"]:
        if (isinstance(values, Mapping) and part in values) or (isinstance(values, list) and isinstance(part, int)):
            values = values[part]
        else:
            return (*path, str(part)) if finding["type"] == "missing" else tuple(path)
        path.append(str(part))
    return tuple(path)


def _origin(path: tuple[str, ...], where: str, overrides: Sequence[str]) -> str:
    """Return the override that set `path`, or those that set a part of it, else where the values come from."""
    keys = {override: tuple(override.partition("=")[0].split(".")) for override in overrides}
    exact = [override for override, key in keys.items() if path[: len(key)] == key]
    if exact:
        return f"override {exact[-1]!r}"
    parts = [override for override, key in keys.items() if path and key[: len(path)] == path]
    return f"{where} with {' '.join(parts)}" if parts else where


def _find_written(path: tuple[str, ...], text: str, overrides: Sequence[str]) -> str:
    """Return a plain value of a file or an override as it was written; empty: it is not found, e.g. behind an alias."""
    for override in reversed(overrides):
        dotted, _, value_text = override.partition("=")
        keys = tuple(dotted.split("."))
        if path[: len(keys)] == keys:
            path, text = path[len(keys) :], value_text
            break
    node = yaml.compose(text, Loader=Loader)
    for part in path:
        if isinstance(node, yaml.MappingNode):
            node = next((value for key, value in node.value if key.value == part), None)
        elif isinstance(node, yaml.SequenceNode) and part.isdecimal():
            node = node.value[int(part)]
    return str(node.value) if isinstance(node, yaml.ScalarNode) else ""


def _describe_allowed(finding: Any, path: tuple[str, ...]) -> str:
    """Return what is allowed where pydantic found something else (the kinds that RunConfig's fields can have)."""
    kind, context = finding["type"], finding.get("ctx", {})
    if kind in _BOUNDS:
        key, relation = _BOUNDS[kind]
        # pydantic gives the limits of floats as floats.
        whole = isinstance(context[key], int)
        return f"a {'whole ' if whole else ''}number {relation} {context[key] if whole else format(context[key], 'g')}"
    if kind == "literal_error":
        names = re.findall(r"'([^']*)'", context["expected"])
        return names[0] if len(names) == 1 else f"one of {', '.join(names)}"
    if kind == "too_short":
        return f"a list of at least {context['min_length']} values"
    if kind == "too_long":
        return f"a list of at most {context['max_length']} values"
    if _OF_KEY in finding["loc"]:
        return "keys of small letters, digits and _ that begin with a letter, of at most 40 characters"
    if kind == "string_pattern_mismatch":
        fields = _model_at(path[:-1]).model_fields
        description = fields[path[-1]].description if path[-1] in fields else None
        return " ".join(description.split()).partition(". ")[0] if description else kind
    return _EXPECTED.get(kind, str(finding["msg"]).removeprefix("Value error, "))


def _model_at(path: Sequence[str]) -> type[BaseModel]:
    """Return the innermost section on a path of keys."""
    model: type[BaseModel] = RunConfig
    for part in path:
        field = model.model_fields.get(part)
        if field is not None and (section := _section_of(field.annotation)) is not None:
            model = section
    return model


def _section_of(annotation: Any) -> type[BaseModel] | None:
    """Return the section in an annotation: itself, one of a union's, or that of a mapping's values."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    if isinstance(annotation, UnionType) or get_origin(annotation) is dict:
        return next((section for part in get_args(annotation) if (section := _section_of(part)) is not None), None)
    return None
