"""Reference of the configuration's keys: docs/configuration.md, its JSON Schema, `config show --describe`.

Meaning, type, range and default are the models' own (contracts/config). What a key invalidates is found out: it is
changed, and the stages whose fingerprints (contracts/fingerprint.py) are others then, with all that is made from them,
are made anew.
"""

from __future__ import annotations

import difflib
import json
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from contracts.config import STAGES, RunConfig
from contracts.errors import ConfigError
from contracts.fingerprint import export_inputs, profile_inputs, shard_inputs, train_inputs

# By the end of a key's name; a name that says its unit otherwise has it in its description.
_UNITS = {
    "_usd_per_h": "USD/h",
    "max_cost_usd": "USD",
    "_per_s": "1/s",
    "_bytes": "bytes",
    "_hours": "h",
    "_gb": "GB",
    "_mb": "MB",
    "_s": "s",
    "_epochs": "epochs",
    "_epoch": "epochs",
    "_steps": "steps",
    "_fraction": "0 to 1",
    "image_size": "pixels",
}
_BOUNDS = {"minimum": "from", "exclusiveMinimum": "above", "maximum": "up to", "exclusiveMaximum": "below"}
_LENGTHS = {"minItems": "at least", "maxItems": "up to", "maxProperties": "up to"}
# What is made from what a stage makes.
_MADE_FROM = {"shard": STAGES, "profile": ("profile",), "train": ("train", "export"), "export": ("export",)}
# What no change of one value shows: what is optional as a whole, what is in a fingerprint by its content, and what
# names another line, in which nothing is found.
_KNOWN = {
    "run.name": STAGES,
    "run.root": STAGES,
    "sharding.fields": STAGES,
    "sharding.tokenizer": STAGES,
    "train.early_stopping": _MADE_FROM["train"],
    "code": ("profile", "train", "export"),
}
# What a part of a list or of a map is called in a key.
_ITEM, _NAME = "N", "NAME"


@dataclass(frozen=True)
class Key:
    """One key of the configuration."""

    name: str
    """section.key; `N` stands for a place in a list, `NAME` for a name in a map."""
    meaning: str
    type: str
    allowed: str
    """Range or values; empty: whatever the type is."""
    unit: str
    default: str
    """As YAML has it; empty: it must be given."""
    invalidates: tuple[str, ...]
    """Stages that are made anew when it changes."""


def list_keys() -> list[Key]:
    """Return every key, in the order of the models."""
    schema = RunConfig.model_json_schema()
    return list(_walk(schema, schema["$defs"], ""))


def find_key(name: str) -> Key:
    """Return a key.

    Raises:
        ConfigError: There is none of this name.
    """
    keys, sections = {key.name: key for key in list_keys()}, list(RunConfig.model_fields)
    if name not in keys:
        close = difflib.get_close_matches(name, [*keys, *sections], n=3, cutoff=0.5)
        raise ConfigError(
            f"{name} is no key of the configuration",
            allowed="the keys and sections of docs/configuration.md",
            todo=f"did you mean {' or '.join(close)}?"
            if close
            else f"name a section: {', '.join(RunConfig.model_fields)}",
        )
    return keys[name]


def describe(name: str) -> Iterator[str]:
    """Yield what is known of a key; of a section, its keys with their defaults. A line each.

    Raises:
        ConfigError: There is neither.
    """
    inside = [key for key in list_keys() if key.name.startswith(f"{name}.")]
    if name in RunConfig.model_fields:
        yield f"{name}: {_first_line(RunConfig.model_fields[name].annotation)}"
    elif not inside or any(key.name == name for key in list_keys()):
        yield from _describe_key(find_key(name))
    else:
        yield f"{name}: a section"
    for key in inside:
        yield f"  {key.name}  (default: {key.default or 'none: it must be given'})"
        yield f"      {' '.join(key.meaning.split())}"


def _describe_key(key: Key) -> Iterator[str]:
    yield key.name
    yield from (f"  {line}" for line in key.meaning.splitlines())
    yield f"  type: {key.type}" + (f", {key.allowed}" if key.allowed else "")
    if key.unit:
        yield f"  unit: {key.unit}"
    yield f"  default: {key.default or 'none: it must be given'}"
    yield f"  a change makes anew: {', '.join(key.invalidates) or 'nothing'}"


def to_markdown() -> str:
    """Return docs/configuration.md."""
    lines = [
        "# Configuration: every key",
        "",
        "Generated from the models in contracts/config by `python -m pipelines.config_reference`; a test compares.",
        "`shardline config show --describe KEY` prints a key or a section. configuration.schema.json is for editors:",
        "for YAML's language server a file begins with `# yaml-language-server: $schema=PATH`.",
        "Values are YAML 1.2: `1e-6` is a number; `on`, `12:30` and a date are text, and so are all keys.",
        "`N` stands for a place in a list, `NAME` for a name in a map. The last column says which stages are made anew",
        "when the key changes; an empty one changes no result.",
    ]
    section = ""
    for key in list_keys():
        if (head := key.name.partition(".")[0]) != section:
            section = head
            lines += ["", f"## {section}", "", f"{_first_line(RunConfig.model_fields[section].annotation)}", ""]
            lines += ["| key | meaning | type, range | unit | default | makes anew |", "|---|---|---|---|---|---|"]
        cells = [
            f"`{key.name}`",
            " ".join(key.meaning.split()),
            key.type + (f", {key.allowed}" if key.allowed else ""),
            key.unit,
            f"`{key.default}`" if key.default else "must be given",
            ", ".join(key.invalidates),
        ]
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(lines) + "\n"


def to_schema() -> str:
    """Return the JSON Schema of the configuration, for editors: empty sections and `profile: off` are valid."""
    schema = RunConfig.model_json_schema()
    for name, field in schema["properties"].items():
        section = {"$ref": field.pop("$ref")}
        field["anyOf"] = [section, {"type": "null"}, *([{"enum": ["off", False]}] if name == "profile" else [])]
    return json.dumps(schema, indent=1, sort_keys=True) + "\n"


def _first_line(section: Any) -> str:
    return str(section.__doc__).strip().splitlines()[0]


def _walk(schema: Mapping[str, Any], definitions: Mapping[str, Any], prefix: str) -> Iterator[Key]:
    required = schema.get("required", [])
    for name, field in schema["properties"].items():
        path = f"{prefix}{name}"
        if prefix and not (field.get("$ref") and not field.get("description")):
            yield _key(path, field, required=name in required)
        inner = _find_section(field, definitions)
        if inner is not None:
            yield from _walk(inner[0], definitions, f"{path}.{inner[1]}")


def _find_section(field: Mapping[str, Any], definitions: Mapping[str, Any]) -> tuple[Mapping[str, Any], str] | None:
    """Return the section that a field holds, and what stands between their names; None: it holds values."""
    kinds = [field, *field.get("anyOf", [])]
    for one in kinds:
        if "$ref" in one:
            return definitions[one["$ref"].rpartition("/")[2]], ""
        if "$ref" in one.get("items", {}):
            return definitions[one["items"]["$ref"].rpartition("/")[2]], f"{_ITEM}."
        for pattern in one.get("patternProperties", {}).values():
            if "$ref" in pattern:
                return definitions[pattern["$ref"].rpartition("/")[2]], f"{_NAME}."
    return None


def _key(path: str, field: Mapping[str, Any], *, required: bool) -> Key:
    kinds = field.get("anyOf", [field])
    types = dict.fromkeys(_type(kind) for kind in kinds)
    allowed = dict.fromkeys(text for kind in kinds if (text := _range(kind)))
    unit = next((unit for end, unit in _UNITS.items() if path.endswith(end)), "")
    return Key(
        name=path,
        meaning=str(field.get("description", "")),
        type=" or ".join(types),
        allowed="; ".join(allowed),
        unit=unit,
        default="" if required else json.dumps(field.get("default"), ensure_ascii=False),
        invalidates=_invalidates(path, field),
    )


def _type(kind: Mapping[str, Any]) -> str:
    if "$ref" in kind:
        return "section"
    if "const" in kind:
        return f"`{kind['const']}`"
    if "enum" in kind:
        return "one of " + ", ".join(f"`{value}`" for value in kind["enum"])
    if kind.get("type") == "array":
        return f"list of {_type(kind.get('items', {}))}"
    if kind.get("type") == "object":
        return "map"
    names = {"integer": "whole number", "string": "text", "boolean": "true or false", "null": "null"}
    return names.get(str(kind.get("type", "")), str(kind.get("type", "any value")))


def _range(kind: Mapping[str, Any]) -> str:
    said = [f"{word} {kind[name]}" for name, word in _BOUNDS.items() if name in kind]
    said += [f"{word} {kind[name]} entries" for name, word in _LENGTHS.items() if name in kind]
    said += [f"matches `{kind['pattern']}`"] if "pattern" in kind else []
    return " ".join(said)


# --- what a key invalidates -------------------------------------------------------------------------------------------


def _invalidates(path: str, field: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the stages that are made anew when a key changes; a key within a list or a map counts as the whole."""
    if known := next((made for name, made in _KNOWN.items() if f"{path}.".startswith(f"{name}.")), None):
        return known
    parts = path.split(".")
    if cut := [place for place, part in enumerate(parts) if part in (_ITEM, _NAME)]:
        parts, field = parts[: cut[0]], {"type": "object"}
    base = RunConfig()
    changed = {
        stage
        for value in _others(field)
        for stage, inputs in _inputs_with(base, parts, value).items()
        if inputs != _base_inputs()[stage]
    }
    made = {name for stage in changed for name in _MADE_FROM[stage]}
    return tuple(stage for stage in STAGES if stage in made)


def _others(field: Mapping[str, Any]) -> Iterator[Any]:
    """Yield values that are not the default, of a field's kinds."""
    for kind in field.get("anyOf", [field]):
        examples = {"integer": 7, "number": 0.123, "string": "other", "boolean": not field.get("default")}
        values = kind.get("enum") or [kind.get("const", examples.get(str(kind.get("type")), {"other": 1}))]
        yield from (value for value in values if value != field.get("default"))


def _inputs_with(config: RunConfig, path: list[str], value: Any) -> dict[str, Any]:
    with warnings.catch_warnings():
        # A value stands for any other one: it need not be one that the model takes.
        warnings.simplefilter("ignore")
        try:
            return _inputs(_changed(config, path, value))
        except (AttributeError, TypeError, KeyError, ValueError):
            # No such value: another kind of the field says it.
            return dict(_base_inputs())


def _changed(section: Any, path: list[str], value: Any) -> Any:
    name, *rest = path
    value = _changed(getattr(section, name), rest, value) if rest else value
    return section.model_copy(update={name: value})


@cache
def _base_inputs() -> Mapping[str, Any]:
    return _inputs(RunConfig())


def _inputs(config: RunConfig) -> dict[str, Any]:
    """Return what decides each stage's result, with what is made before it held still."""
    # The tokenizer and the weights are in by their content.
    tokenizer = "" if config.sharding.tokenizer is None else str(config.sharding.tokenizer)
    source = config.sharding.source
    weights = f"{config.model.weights} {config.model.min_matched_fraction}" if config.model.weights else ""
    return {
        "shard": shard_inputs(config, listing=source, tokenizer=tokenizer),
        "profile": profile_inputs(config, shards="", hardware={}, torch_version=""),
        "train": train_inputs(config, shards="", weights=weights),
        "export": export_inputs(config, checkpoint="", builder=str(config.export.targets), tools={}),
    }


if __name__ == "__main__":
    from pathlib import Path

    docs = Path(__file__).parents[1] / "docs"
    (docs / "configuration.md").write_text(to_markdown(), encoding="utf-8")
    (docs / "configuration.schema.json").write_text(to_schema(), encoding="utf-8")
