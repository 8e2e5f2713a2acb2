"""This machine as the GPU check records it: `python -m benchmarks.gpu.machine` prints it as JSON.

A process of its own: importing torch takes seconds, and a broken driver must not end the command.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import json
import platform
import subprocess
from typing import Any

PACKAGES = (
    "torch",
    "transformers",
    "triton",
    "lightning",
    "onnx",
    "onnxruntime",
    "tensorrt",
    "tensorrt_rtx_cu13",
    "numpy",
)


def main() -> None:
    """Print what is known, without a device where torch is not installed."""
    found: dict[str, Any] = {"device": None, "gpus": 0, "memory_bytes": 0, "capability": None, "driver": _driver()}
    versions = {"python": platform.python_version()} | {name: _version(name) for name in PACKAGES}
    try:
        torch = importlib.import_module("torch")
    except ImportError as error:
        found["why_no_gpu"] = str(error)
    else:
        # The one that runs: an index may have a build without CUDA under the same number.
        versions |= {"torch": str(torch.__version__), "cuda": torch.version.cuda}
        if torch.cuda.is_available():
            properties = torch.cuda.get_device_properties(0)
            versions["cudnn"] = str(torch.backends.cudnn.version())
            versions["nccl"] = ".".join(map(str, torch.cuda.nccl.version()))
            found |= {
                "device": properties.name,
                "gpus": torch.cuda.device_count(),
                "memory_bytes": properties.total_memory,
                "capability": f"sm{properties.major}{properties.minor}",
            }
        else:
            found["why_no_gpu"] = "torch.cuda.is_available() is false"
    print(json.dumps({**found, "versions": {name: value for name, value in versions.items() if value is not None}}))


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _driver() -> str | None:
    """Return the version of NVIDIA's driver, as nvidia-smi says it."""
    command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=20)
    except (OSError, subprocess.SubprocessError):
        return None
    lines = done.stdout.split()
    return lines[0] if lines else None


if __name__ == "__main__":
    main()
