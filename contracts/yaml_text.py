"""PyYAML with the core schema of YAML 1.2 (https://yaml.org/spec/1.2.2/#103-core-schema).

1e-6 is a number; on, no, 12:30 and 2026-12-01 are text. All keys are text. PyYAML itself reads YAML 1.1 and silently
takes the last of two values of a key.
"""

from __future__ import annotations

import re
from typing import Any

import yaml


class Loader(yaml.SafeLoader):
    """Resolves plain scalars by the core schema of YAML 1.2 and refuses duplicate keys."""

    def read_int(self, node: yaml.ScalarNode) -> int:
        """Return a whole number; a leading 0 means nothing."""
        text: str = node.value.replace("_", "")
        return int(text, 0) if text.startswith(("0o", "0x")) else int(text)

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        """Return a mapping, its keys text."""
        node: yaml.MappingNode = super().compose_mapping_node(anchor)
        keys: set[str] = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and key.tag != "tag:yaml.org,2002:merge":
                if key.value in keys:
                    raise yaml.MarkedYAMLError(problem=f"key {key.value} is there twice", problem_mark=key.start_mark)
                keys.add(key.value)
                key.tag = _STR
        return node


class Dumper(yaml.SafeDumper):
    """Writes text in quotes where YAML 1.1 or 1.2 would read something else."""


_STR = "tag:yaml.org,2002:str"
_PLAIN: tuple[tuple[str, str, str], ...] = (
    ("null", r"~|null|Null|NULL|", "~nN\0"),
    ("bool", r"true|True|TRUE|false|False|FALSE", "tTfF"),
    # With _ between digits, which YAML 1.1 has.
    ("int", r"[-+]?[0-9]+(?:_[0-9]+)*|0o[0-7]+|0x[0-9a-fA-F]+", "-+0123456789"),
    (
        "float",
        r"[-+]?(?:\.[0-9]+|[0-9]+(?:_[0-9]+)*(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)",
        "-+.0123456789",
    ),
    ("merge", r"<<", "<"),
)
Loader.yaml_implicit_resolvers = {}
for _name, _pattern, _first in _PLAIN:
    for _kind in (Loader, Dumper):
        # PyYAML keeps what an empty scalar is under an empty letter.
        _letters = [letter.strip("\0") for letter in _first]
        _kind.add_implicit_resolver(f"tag:yaml.org,2002:{_name}", re.compile(rf"(?:{_pattern})\Z"), _letters)
Loader.add_constructor("tag:yaml.org,2002:int", Loader.read_int)
