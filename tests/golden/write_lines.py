"""Write the compiled pipelines anew after a wanted change: `python tests/golden/write_lines.py`."""

import json
from pathlib import Path
from typing import Any

from contracts.resolve import load_config
from pipelines.compile import compile_line
from pipelines.prebuilt import prebuilt_container

CONFIGS = ("digits-vertex", "photos-a100-spot", "photos-h100-flex")
GOLDEN = Path(__file__).parent
ROOT = GOLDEN.parents[1]


def golden_path(name: str) -> Path:
    return GOLDEN / f"line-{name}.json"


def compiled(name: str) -> dict[str, Any]:
    """Return what a configuration compiles to: the pipeline and its parameters."""
    line = compile_line(load_config(ROOT / "configs" / f"{name}.yaml"))
    return {"parameters": line.parameters, "spec": line.spec}


PREBUILT = "prebuilt-jobs.json"


def prebuilt_jobs() -> dict[str, Any]:
    """Return the worker pools of the digits' jobs in prebuilt containers, what changes with the code under a name.

    That is the start program, the wheel's hash, and all that is named by it.
    """
    image = "us-docker.pkg.dev/p/r/pipeline@sha256:" + "0" * 64
    overrides = ("resources.container=prebuilt", f"vertex.images={{pipeline: '{image}', serving: '{image}'}}")
    config = load_config(ROOT / "configs" / "digits-vertex.yaml", overrides)
    found = prebuilt_container(config, "train")
    _, _, program, wheel, wheel_sha256, constraints, constraints_sha256, *_ = found.start
    names = {
        json.dumps(program)[1:-1]: "START",
        wheel: "WHEEL_URI",
        wheel_sha256: "WHEEL_SHA256",
        constraints: "CONSTRAINTS_URI",
        constraints_sha256: "CONSTRAINTS_SHA256",
    }
    pools = {}
    for name, component in compile_line(config).spec["components"].items():
        for task, values in component.get("dag", {}).get("tasks", {}).items():
            parameters = values.get("inputs", {}).get("parameters", {})
            if "worker_pool_specs" in parameters:
                pools[f"{name}/{task}"] = parameters["worker_pool_specs"]["runtimeValue"]["constant"]
    text = json.dumps(pools)
    for value, known in names.items():
        text = text.replace(value, known)
    jobs: dict[str, Any] = json.loads(text)
    return jobs


if __name__ == "__main__":
    (GOLDEN / PREBUILT).write_text(json.dumps(prebuilt_jobs(), indent=1, sort_keys=True) + "\n")
    for name in CONFIGS:
        golden_path(name).write_text(json.dumps(compiled(name), indent=1, sort_keys=True) + "\n")
