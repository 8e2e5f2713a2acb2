"""The lines of the GPU check: `python -m benchmarks.gpu.lines NAME SETTING` runs one and prints its result as JSON.

A case returns what it found, and raises `Failed` or `NotRun`. Whatever else happens to it is a failure of its line.
"""

from __future__ import annotations

import json
import math
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from benchmarks.gpu import trained_cases, training_cases
from benchmarks.gpu.marked_tests import run_marked_tests
from benchmarks.gpu.setting import Details, Setting
from benchmarks.gpu.stages import Failed, NotRun

TRAINER = (
    *("torch", "numpy", "pydantic", "yaml", "google_crc32c", "simplejpeg", "PIL", "safetensors", "tensorboard"),
    "transformers",
)


@dataclass(frozen=True)
class Line:
    """One line of the result."""

    name: str
    run: Callable[[Setting], Details]
    needs: tuple[str, ...] = TRAINER
    """Modules that must be installed; `a|b`: one of them."""
    without_gpu: str = ""
    """Why it is not run on a CPU; empty: it is."""
    alone: bool = False
    """Whether nothing may run beside it: it measures time, or fills the memory."""
    limit_s: float = 120.0


LINES = (
    Line("fp32", training_cases.fp32, alone=True),
    Line("bf16", training_cases.bf16, alone=True),
    Line("fp16", training_cases.fp16, without_gpu="no GPU: fp16 is slower than fp32 on a CPU"),
    Line("channels-last", training_cases.channels_last, without_gpu="no GPU", alone=True),
    Line(
        "compile",
        training_cases.compiled,
        without_gpu="no GPU: compiling takes minutes on a CPU",
        limit_s=200,
    ),
    Line("bare-ddp", training_cases.bare_ddp, alone=True),
    Line("lightning", training_cases.lightning, needs=(*TRAINER, "lightning|pytorch_lightning"), alone=True),
    Line("out-of-memory", training_cases.out_of_memory, without_gpu="no GPU", alone=True),
    Line("fsdp", training_cases.fsdp, limit_s=160),
    Line("fsdp-cpu-offload", training_cases.fsdp_cpu_offload, without_gpu="no GPU", limit_s=160),
    Line("resume", training_cases.resume, limit_s=200),
    Line("evaluation", trained_cases.evaluation),
    Line("gpu-augmentation", training_cases.gpu_augmentation, without_gpu="no GPU"),
    Line("profile-trace", training_cases.profile_trace, alone=True),
    Line("export-onnx", trained_cases.export_onnx, needs=(*TRAINER, *trained_cases.ONNX)),
    Line("export-engine", trained_cases.export_engine, limit_s=180),
    Line(
        "gpu-tests",
        run_marked_tests,
        needs=(*TRAINER, "pytest", "pytest_timeout"),
        without_gpu="no GPU",
        limit_s=180,
    ),
)


def main() -> None:
    """Run a line and print what came of it as JSON, the last line of stdout."""
    name, text = sys.argv[1:]
    line = next(line for line in LINES if line.name == name)
    result: Details = {"status": "passed", "why": "", "details": {}}
    try:
        result["details"] = line.run(Setting.from_json(text))
    except NotRun as reason:
        result |= {"status": "not run", "why": str(reason)}
    except Failed as error:
        result |= {"status": "failed", "why": error.why, "details": error.details}
    except Exception as error:  # noqa: BLE001 - the entry of a process is where everything ends
        where = traceback.format_exc()[-3000:]
        result |= {"status": "failed", "why": f"{type(error).__name__}: {error}"[:500], "details": {"traceback": where}}
    print(json.dumps(_finite(result)), flush=True)


def _finite(value: Any) -> Any:
    """Return a value with floats that JSON does not have as text."""
    if isinstance(value, dict):
        return {key: _finite(one) for key, one in value.items()}
    if isinstance(value, list):
        return [_finite(one) for one in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


if __name__ == "__main__":
    main()
