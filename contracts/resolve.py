"""To a RunConfig, from a YAML file and `section.key=value` overrides, or from the JSON that a stage is given.

Errors are those that a user can act on.
"""

from __future__ import annotations

import difflib
import hashlib
import json
import re
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import UnionType
from typing import Any, get_args, get_origin

import yaml
from pydantic import BaseModel, ValidationError

from contracts import storage
from contracts.config import STAGE_SECTIONS, RunConfig
from contracts.config.base import REFUSED
from contracts.config.profile import read_off
from contracts.errors import ConfigError
from contracts.field_docs import field_docs
from contracts.pinned import unpin
from contracts.yaml_text import Dumper, Loader

# In sharding.source: the day that a schedule fired for, in its time zone.
DATE_MARK = "{date}"


def load_config(path: str | Path, overrides: Sequence[str] = ()) -> RunConfig:
    """Resolve defaults < the YAML file at `path` < `overrides`.

    Raises:
        ConfigError: The file cannot be read, is no mapping, or holds a key or a value that is not allowed.
    """
    values, text = _read_yaml(Path(path))
    for override in overrides:
        apply_override(values, override)
    return parse_config(values, where=str(path), overrides=overrides, text=text)


def _read_yaml(path: Path) -> tuple[dict[str, Any], str]:
    """Return the mapping in a YAML file (an empty file is an empty mapping), and the file's text."""
    try:
        text = path.read_text(encoding="utf-8")
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
        raise ConfigError(f"{path} is not valid YAML: {error}", allowed="YAML", todo="correct the line named") from None
    if values is None:
        return {}, text
    if not isinstance(values, dict):
        raise ConfigError(
            f"{path} holds a {type(values).__name__}",
            allowed="a mapping of sections: " + ", ".join(RunConfig.model_fields),
            todo="see configs/digits.yaml for an example",
        )
    return values, text


def apply_override(values: dict[str, Any], override: str) -> None:
    """Set `section.key=value`, or `profile=off` (the value is YAML), in a nested mapping."""
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
        raise ConfigError(f"override {override!r}: {error}", allowed="a YAML value", todo="quote the value") from None
    target = values
    for key in keys[:-1]:
        inner = target.get(key)
        if target is values and key == "profile":
            inner = target[key] = read_off(inner)
        if inner is None:
            inner = target[key] = {}
        if not isinstance(inner, dict):
            raise ConfigError(
                f"override {override!r}: {key} holds a value, not keys",
                allowed="section.key=value",
                todo="check the dots of the key",
            )
        target = inner
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
        # What is no mapping is pydantic's to refuse.
        if isinstance(values, Mapping):
            values = _without_empty(values, RunConfig)
        return RunConfig.model_validate(values)
    except ValidationError as error:
        raise _explain(error, where, overrides, text) from None


def stage_config(config: RunConfig, stage: str) -> dict[str, Any]:
    """Return the sections that `stage` is given, ready for JSON."""
    return config.model_dump(mode="json", include=set(STAGE_SECTIONS[stage]))


def read_stage_config(config_uri: str | None, sha256: str | None, text: str | None) -> RunConfig:
    """Read a stage's sections, from a URI whose content must have the hash `sha256`, or from JSON text.

    Raises:
        ConfigError: None or both are given, the content changed, or it is no valid configuration.
    """
    if (config_uri is None) == (text is None):
        raise ConfigError(
            "neither or both of --config and --config-json",
            allowed="one of them",
            todo="pass a URI with --config-sha256, or JSON text by hand",
        )
    if config_uri is not None:
        config_uri, pinned = unpin(config_uri)
        sha256 = sha256 or pinned
        try:
            content = storage.read_bytes(storage.normalise(config_uri))
        except (FileNotFoundError, IsADirectoryError):
            raise ConfigError(
                f"configuration {config_uri} is not there", allowed="the URI of a JSON file", todo="check the URI"
            ) from None
        found = hashlib.sha256(content).hexdigest()
        if sha256 != found:
            raise ConfigError(
                f"{config_uri} has sha256 {found}, --config-sha256 says {sha256}",
                allowed="the content that was submitted",
                todo="submit again; a stage's configuration must not change under a run",
            )
        text = content.decode()
    assert text is not None
    try:
        values = json.loads(text)
    except ValueError as error:
        raise ConfigError(f"the configuration is not JSON: {error}", allowed="JSON", todo="correct it") from None
    return parse_config(values, where=config_uri or "--config-json")


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
    section = config.sharding.model_copy(update={"source": source.replace(DATE_MARK, day)})
    return config.model_copy(update={"sharding": section})


def to_yaml(config: RunConfig) -> str:
    """Return the resolved configuration as YAML."""
    return yaml.dump(config.model_dump(mode="json"), Dumper=Dumper, sort_keys=False)


# Ends pydantic's location of a key of a mapping.
_OF_KEY = "[key]"


def _without_empty(values: Mapping[str, Any], model: type[BaseModel]) -> dict[str, Any]:
    """Leave out the sections of which every key is commented out: YAML reads them as null."""
    kept: dict[str, Any] = {}
    for name, value in values.items():
        field = model.model_fields.get(name)
        inner = _model_of(field.annotation) if field else None
        if value is None and field and (inner or get_origin(field.annotation) is dict):
            continue
        kept[name] = _without_empty(value, inner) if inner and isinstance(value, Mapping) else value
    return kept


def _explain(error: ValidationError, where: str, overrides: Sequence[str], text: str) -> ConfigError:
    """Turn pydantic's first finding into what was given, what is allowed and what to do."""
    findings = error.errors(include_url=False)
    finding = findings[0]
    # The branches of a union add their own names to the location ("int", "literal[...]"): keep what the user wrote.
    path = _written_path(finding["loc"])
    name = ".".join(path) or "configuration"
    where, context = _origin(path, where, overrides), finding.get("ctx", {})
    if finding["type"] == "extra_forbidden":
        known = _known_keys(path[:-1])
        close = difflib.get_close_matches(path[-1], known, n=1)
        prefix = ".".join(path[:-1])
        todo = (
            f"did you mean {'.'.join([*path[:-1], close[0]])}?" if close else "remove it, or take one of the keys above"
        )
        return ConfigError(
            f"{where}: unknown key {name}", allowed=f"{prefix + ': ' if prefix else ''}{', '.join(known)}", todo=todo
        )
    if finding["type"] == REFUSED:
        return ConfigError(f"{where}: {context['given']}", allowed=context["allowed"], todo=context["todo"])
    allowed = dict.fromkeys(_in_words(item, path) for item in findings if _written_path(item["loc"]) == path)
    given = finding["input"]
    written = repr(given)
    if isinstance(given, (bool, int, float)):
        written = _find_written(path, text, overrides) or written
    shown = "" if finding["type"] in ("value_error", "missing") else f" = {written}"
    # The branches of a union count as findings of their own.
    others = len({_written_path(item["loc"]) for item in findings}) - 1
    more = f" ({others} more after this one)" if others else ""
    todo = f"correct {name}"
    if finding["type"] == "string_type" and isinstance(given, (bool, int, float)):
        todo = f'quote it: {name.rpartition(".")[2]}: "{written}" in a file, \'{name}="{written}"\' as an override'
    return ConfigError(f"{where}: {name}{shown}{more}", allowed=" or ".join(allowed), todo=todo)


def _origin(path: tuple[str, ...], where: str, overrides: Sequence[str]) -> str:
    """Name the override that set `path`, or those that set a part of it, else where the values come from."""
    keys = {override: tuple(override.partition("=")[0].split(".")) for override in overrides}
    whole = [override for override, key in keys.items() if path[: len(key)] == key]
    if whole:
        return f"override {whole[-1]!r}"
    parts = [override for override, key in keys.items() if path and key[: len(path)] == path]
    return f"{where} with {' '.join(parts)}" if parts else where


def _find_written(path: tuple[str, ...], text: str, overrides: Sequence[str]) -> str:
    """Return a plain value of a file or an override as it was written; empty: it is not found, e.g. behind an alias."""
    for override in reversed(overrides):
        dotted, _, own = override.partition("=")
        keys = tuple(dotted.split("."))
        if path[: len(keys)] == keys:
            path, text = path[len(keys) :], own
            break
    node = yaml.compose(text, Loader=Loader)
    for part in path:
        if isinstance(node, yaml.MappingNode):
            node = next((value for key, value in node.value if key.value == part), None)
        elif isinstance(node, yaml.SequenceNode) and part.isdecimal() and int(part) < len(node.value):
            node = node.value[int(part)]
        else:
            return ""
    return str(node.value) if isinstance(node, yaml.ScalarNode) else ""


def _in_words(finding: Any, path: tuple[str, ...]) -> str:
    """Say what is allowed where pydantic found something else (the kinds that RunConfig's fields can have)."""
    kind, context = finding["type"], finding.get("ctx", {})
    bounds = {
        "greater_than_equal": ("ge", "of at least"),
        "less_than_equal": ("le", "of at most"),
        "greater_than": ("gt", "greater than"),
        "less_than": ("lt", "less than"),
    }
    if kind in bounds:
        key, words = bounds[kind]
        limit = context[key]
        # pydantic gives the limits of floats as floats.
        whole = isinstance(limit, int)
        return f"a whole number {words} {limit}" if whole else f"a number {words} {limit:g}"
    if kind == "literal_error":
        names = re.findall(r"'([^']*)'", context["expected"])
        return names[0] if len(names) == 1 else f"one of {', '.join(names)}"
    if kind in ("too_short", "too_long"):
        limit = context.get("min_length", context.get("max_length"))
        return f"a list of {'at least' if kind == 'too_short' else 'at most'} {limit} values"
    if _OF_KEY in finding["loc"]:
        return "keys of small letters, digits and _ that begin with a letter, of at most 40 characters"
    if kind == "string_too_short":
        return "text that is not empty"
    if kind == "string_pattern_mismatch":
        return _description(path)
    plain = {
        "int_parsing": "a whole number",
        "int_type": "a whole number",
        "int_from_float": "a whole number",
        "float_parsing": "a number",
        "float_type": "a number",
        "finite_number": "a finite number",
        "string_type": "text",
        "bool_parsing": "true or false",
        "bool_type": "true or false",
        "list_type": "a list",
        "dict_type": "a mapping of keys",
        "model_type": "a mapping of keys",
    }
    return plain.get(kind, str(finding["msg"]).removeprefix("Value error, "))


def _description(path: Sequence[str]) -> str:
    """Return the description of the innermost field on a path, which may end with the place in a list."""
    annotation: Any = RunConfig
    description = ""
    for part in path:
        if (model := _model_of(annotation)) and part in model.model_fields:
            description = field_docs(model).get(part, "")
        annotation = _inner(annotation, part)
    return description


def _written_path(location: Iterable[int | str]) -> tuple[str, ...]:
    """Keep the part of pydantic's location that names fields, keys of named sections or list places."""
    path: list[str] = []
    annotation: Any = RunConfig
    for part in location:
        if part == _OF_KEY:
            continue
        if _entry_of(annotation) or _model_of(annotation):
            path.append(str(part))
            annotation = _inner(annotation, str(part))
        elif isinstance(part, int):
            path.append(str(part))
    return tuple(path)


def _known_keys(path: Sequence[str]) -> list[str]:
    annotation: Any = RunConfig
    for part in path:
        annotation = _inner(annotation, part)
    model = _model_of(annotation)
    assert model is not None, path
    return list(model.model_fields)


def _inner(annotation: Any, key: str) -> Any:
    """Return the annotation of what lies below a key of a section, or of a mapping of sections; None: a plain value."""
    if entry := _entry_of(annotation):
        return entry
    model = _model_of(annotation)
    field = model.model_fields.get(key) if model else None
    return field.annotation if field else None


def _entry_of(annotation: Any) -> type[BaseModel] | None:
    """Return the section that a mapping holds under each of its keys, None where it holds none."""
    return _model_of(get_args(annotation)[1]) if get_origin(annotation) is dict else None


def _model_of(annotation: Any) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    if get_origin(annotation) is UnionType:
        return next((found for part in get_args(annotation) if (found := _model_of(part))), None)
    return None
