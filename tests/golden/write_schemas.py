"""Writes the JSON schemas of the contracts, after a wanted change: `python tests/golden/write_schemas.py`."""

import json
from pathlib import Path

from contracts.artifacts import CONTRACTS
from contracts.artifacts.trace import summaries_type

SCHEMAS = {kind: contract.model_json_schema() for kind, contract in CONTRACTS.items()}
SCHEMAS["trace-summary"] = summaries_type().json_schema()

for kind, content in SCHEMAS.items():
    schema = json.dumps(content, indent=1, sort_keys=True)
    Path(__file__).with_name(f"{kind}.schema.json").write_text(schema + "\n")
