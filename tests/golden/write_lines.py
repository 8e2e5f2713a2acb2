"""Write the compiled pipelines anew after a wanted change: `python -m tests.golden.write_lines`."""

import json
from pathlib import Path
from typing import Any

from contracts.config.load import load_config
from pipelines.graph.compile import compile_line
from pipelines.plan import outline
from tests.pipelines.images import REGISTERED

CONFIGS = ("digits-vertex", "photos-a100-spot", "photos-h100-flex")
GOLDEN = Path(__file__).parent
ROOT = GOLDEN.parents[1]


def golden_path(name: str) -> Path:
    return GOLDEN / f"line-{name}.json"


def compiled(name: str) -> dict[str, Any]:
    """Return what a configuration compiles to: the pipeline and its parameters."""
    config = load_config(ROOT / "configs" / f"{name}.yaml", REGISTERED)
    line = compile_line(config, outline(config))
    return {"parameters": line.parameters, "spec": line.spec}


if __name__ == "__main__":
    for name in CONFIGS:
        golden_path(name).write_text(json.dumps(compiled(name), indent=1, sort_keys=True) + "\n")
