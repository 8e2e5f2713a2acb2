"""The reference of the configuration is that of the models, and its schema takes what the loader takes."""

from pathlib import Path

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
