"""From a YAML file and `section.key=value` overrides to a RunConfig, with errors a user can act on."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import UnionType
from typing import Any, get_args, get_origin

import yaml
from pydantic import BaseModel, ValidationError

from contracts.config import STAGE_SECTIONS, RunConfig
from contracts.errors import ConfigError


def load_config(path: str | Path, overrides: Sequence[str] = ()) -> RunConfig:
    """Resolve defaults < the YAML file at `path` < `overrides`.

    Raises:
        ConfigError: The file cannot be read, is no mapping, or holds a key or a value that is not allowed.
    """
    values = read_yaml(Path(path))
    for override in overrides:
        apply_override(values, override)
    return parse_config(values, where=str(path))


def read_yaml(path: Path) -> dict[str, Any]:
    """Return the mapping in a YAML file (an empty file is an empty mapping)."""
    try:
        values = yaml.safe_load(path.read_text(encoding="utf-8"))
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
        return {}
    if not isinstance(values, dict):
        raise ConfigError(
            f"{path} holds a {type(values).__name__}",
            allowed="a mapping of sections: " + ", ".join(RunConfig.model_fields),
            todo="see configs/digits.yaml for an example",
        )
    return values


def apply_override(values: dict[str, Any], override: str) -> None:
    """Set `section.key=value` (the value is YAML) in a nested mapping."""
    dotted, equals, text = override.partition("=")
    keys = dotted.split(".")
    if not equals or len(keys) < 2 or not all(keys):
        raise ConfigError(
            f"override {override!r}",
            allowed="section.key=value",
            todo="write for example train.epochs=3 (the value is YAML)",
        )
    try:
        value = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ConfigError(f"override {override!r}: {error}", allowed="a YAML value", todo="quote the value") from None
    target = values
    for key in keys[:-1]:
        inner = target.get(key)
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


def parse_config(values: Mapping[str, Any], *, where: str) -> RunConfig:
    """Validate a nested mapping; `where` names its origin in errors."""
    try:
        return RunConfig.model_validate(values)
    except ValidationError as error:
        raise _explain(error, where) from None


def stage_config(config: RunConfig, stage: str) -> dict[str, Any]:
    """Return the sections that `stage` is given, ready for JSON."""
    return config.model_dump(mode="json", include=set(STAGE_SECTIONS[stage]))


def to_yaml(config: RunConfig) -> str:
    """Return the resolved configuration as YAML."""
    return yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False)


def _explain(error: ValidationError, where: str) -> ConfigError:
    """Turn pydantic's first finding into what was given, what is allowed and what to do."""
    finding = error.errors(include_url=False)[0]
    # The branches of a union add their own names to the location ("int", "literal[...]"): keep what the user wrote.
    path = _written_path(finding["loc"])
    if finding["type"] == "extra_forbidden":
        known = _known_keys(path[:-1])
        close = difflib.get_close_matches(path[-1], known, n=1)
        prefix = ".".join(path[:-1])
        todo = (
            f"did you mean {'.'.join([*path[:-1], close[0]])}?" if close else "remove it, or take one of the keys above"
        )
        return ConfigError(
            f"{where}: unknown key {'.'.join(path)}",
            allowed=f"{prefix + ': ' if prefix else ''}{', '.join(known)}",
            todo=todo,
        )
    name = ".".join(path) or "configuration"
    messages = [
        str(item["msg"]).removeprefix("Value error, ")
        for item in error.errors(include_url=False)
        if _written_path(item["loc"]) == path
    ]
    shown = "" if finding["type"] in ("value_error", "missing") else f" = {finding['input']!r}"
    # The branches of a union count as findings of their own.
    others = len({_written_path(item["loc"]) for item in error.errors()}) - 1
    more = f" ({others} more after this one)" if others else ""
    return ConfigError(f"{where}: {name}{shown}{more}", allowed="; ".join(messages), todo=f"correct {name}")


def _written_path(location: Iterable[int | str]) -> tuple[str, ...]:
    """Keep the part of pydantic's location that names fields or list places."""
    path: list[str] = []
    model: type[BaseModel] | None = RunConfig
    for part in location:
        if model is not None:
            path.append(str(part))
            field = model.model_fields.get(str(part))
            model = _model_of(field.annotation) if field else None
        elif isinstance(part, int):
            path.append(str(part))
    return tuple(path)


def _known_keys(path: Sequence[str]) -> list[str]:
    model: type[BaseModel] = RunConfig
    for part in path:
        inner = _model_of(model.model_fields[part].annotation)
        assert inner is not None, path
        model = inner
    return list(model.model_fields)


def _model_of(annotation: Any) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    if get_origin(annotation) is UnionType:
        return next((found for part in get_args(annotation) if (found := _model_of(part))), None)
    return None
