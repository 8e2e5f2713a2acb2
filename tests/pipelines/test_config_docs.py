"""The reference of the configuration is that of the models, and its schema takes what the loader takes."""

import json
from pathlib import Path

import yaml

from contracts.config.load import parse_config
from pipelines.config_docs import to_markdown, to_schema

ROOT = Path(__file__).parents[2]


def test_the_documents_are_those_of_the_models() -> None:
    for name, content in (("configuration.md", to_markdown()), ("configuration.schema.json", to_schema())):
        written = (ROOT / "docs" / name).read_text(encoding="utf-8")
        assert written == content, "a wanted change? python -m pipelines.config_docs"
    rows = [line.split(" | ") for line in to_markdown().splitlines() if line.startswith("| `")]
    assert len(rows) > 100 and all(all(cell.strip() for cell in row) for row in rows)
    assert {row[0].strip("| `") for row in rows if "must be given" in row[-1]} == {
        "sharding.fields.NAME.column",
        "sharding.fields.NAME.kind",
    }


def test_the_schema_knows_every_key_of_the_configurations() -> None:
    schema = json.loads(to_schema())
    # What parse_config takes besides.
    assert all({"type": "null"} in section["anyOf"] for section in schema["properties"].values())
    assert {"enum": ["off", False]} in schema["properties"]["profile"]["anyOf"]
    assert parse_config({"profile": "off", "train": None}, where="").profile.method == "off"

    def check(value: object, where: dict[str, object], path: str) -> None:
        kinds = [where, *where.get("anyOf", [])]  # type: ignore[misc]
        section = next((kind["$ref"] for kind in kinds if "$ref" in kind), None)
        if section is None or not isinstance(value, dict):
            return
        definition = schema["$defs"][str(section).rpartition("/")[2]]
        assert definition["additionalProperties"] is False
        for key, inner in value.items():
            assert key in definition["properties"], f"{path}.{key}"
            check(inner, definition["properties"][key], f"{path}.{key}")

    for path in sorted((ROOT / "configs").glob("*.yaml")):
        for name, section in yaml.safe_load(path.read_text()).items():
            check(section, schema["properties"][name], name)
