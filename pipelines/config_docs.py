"""Reference of the configuration's keys, from the models in contracts/config: `python -m pipelines.config_docs`.

Writes docs/configuration.md, one table per section, and its JSON Schema for editors.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from contracts.config import RunConfig

_BOUNDS = {"minimum": "from", "exclusiveMinimum": "above", "maximum": "up to", "exclusiveMaximum": "below"}
_LENGTHS = {"minItems": "at least", "maxItems": "up to", "maxProperties": "up to"}
_TYPES = {"integer": "whole number", "string": "text", "boolean": "true or false"}
_HEAD = """# Configuration: every key

Generated from the models in contracts/config by `python -m pipelines.config_docs`; a test compares.
configuration.schema.json is for editors: for YAML's language server a file begins with
`# yaml-language-server: $schema=PATH`. Values are YAML 1.2: `1e-6` is a number; `on`, `12:30` and a date are text, and
so are all keys. `NAME` stands for a name in a map. What makes a stage anew: [architecture.md](architecture.md).
"""


def to_markdown() -> str:
    """Return docs/configuration.md."""
    schema = RunConfig.model_json_schema()
    lines = [_HEAD]
    for name, field in RunConfig.model_fields.items():
        about = str(getattr(field.annotation, "__doc__", "")).strip().splitlines()[0]
        lines += [f"## {name}\n", f"{about}\n", "| key | meaning | values | default |", "|---|---|---|---|"]
        section = schema["$defs"][schema["properties"][name]["$ref"].rpartition("/")[2]]
        for cells in _rows(section, schema["$defs"], f"{name}."):
            lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
        lines.append("")
    return "\n".join(lines)


def to_schema() -> str:
    """Return the JSON Schema of the configuration, for editors: empty sections and `profile: off` are valid."""
    schema = RunConfig.model_json_schema()
    for name, field in schema["properties"].items():
        section = {"$ref": field.pop("$ref")}
        field["anyOf"] = [section, {"type": "null"}, *([{"enum": ["off", False]}] if name == "profile" else [])]
    return json.dumps(schema, indent=1, sort_keys=True) + "\n"


def _rows(section: Mapping[str, Any], definitions: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, ...]]:
    """Yield key, meaning, values and default of each key of a section, those of the sections in it included."""
    for name, field in section["properties"].items():
        kinds = field.get("anyOf", [field])
        maps = [inner for kind in kinds for inner in kind.get("patternProperties", {}).values() if "$ref" in inner]
        if references := [kind["$ref"] for kind in [*kinds, *maps] if "$ref" in kind]:
            inner = definitions[references[0].rpartition("/")[2]]
            yield from _rows(inner, definitions, f"{prefix}{name}.{'NAME.' if maps else ''}")
            continue
        values = " or ".join(dict.fromkeys(filter(None, map(_values, kinds)))) or "unset"
        default = json.dumps(field["default"], ensure_ascii=False) if "default" in field else ""
        meaning = " ".join(str(field.get("description", "")).split())
        yield f"`{prefix}{name}`", meaning, values, f"`{default}`" if default else "must be given"


def _values(kind: Mapping[str, Any]) -> str:
    """Return the values of one kind of a field in words; empty: null."""
    if kind.get("type") == "null":
        return ""
    if "const" in kind or "enum" in kind:
        return ", ".join(f"`{value}`" for value in kind.get("enum", [kind.get("const")]))
    bounds = [f"{word} {kind[name]}" for name, word in _BOUNDS.items() if name in kind]
    bounds += [f"{word} {kind[name]} entries" for name, word in _LENGTHS.items() if name in kind]
    bounds += [f"matching `{kind['pattern']}`"] if "pattern" in kind else []
    if kind.get("type") == "array":
        name = f"list of {_values(kind.get('items', {}))}"
    else:
        name = "map" if kind.get("type") == "object" else _TYPES.get(kind.get("type", ""), kind.get("type", "value"))
    return " ".join([name, *bounds])


if __name__ == "__main__":
    docs = Path(__file__).parents[1] / "docs"
    (docs / "configuration.md").write_text(to_markdown(), encoding="utf-8")
    (docs / "configuration.schema.json").write_text(to_schema(), encoding="utf-8")
