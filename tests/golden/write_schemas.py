"""Writes the JSON schemas of the contracts, after a wanted change: `python tests/golden/write_schemas.py`."""

import json
from pathlib import Path

from contracts.artifacts import CONTRACTS

for kind, contract in CONTRACTS.items():
    schema = json.dumps(contract.model_json_schema(), indent=1, sort_keys=True)
    Path(__file__).with_name(f"{kind}.schema.json").write_text(schema + "\n")
