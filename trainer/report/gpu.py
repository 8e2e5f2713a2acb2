"""How busy, full and warm a GPU is, as NVIDIA's management library (NVML) says it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch


class GpuGauges:
    """The gauges of one GPU; on other devices, and where NVML is not there, it has no values.

    Args:
        device: The GPU.
        log: Told once why there are none.
    """

    def __init__(self, device: torch.device, log: Callable[[str], None]) -> None:
        self._nvml: Any = None
        self._handle: Any = None
        if device.type != "cuda":
            return
        try:
            import pynvml  # type: ignore[import-untyped]
        except ImportError as error:
            log(f"no utilisation, memory and temperature of the GPU ({error})")
            return
        try:
            pynvml.nvmlInit()
            # By its UUID: CUDA_VISIBLE_DEVICES renumbers torch's devices, not NVML's.
            uuid = f"GPU-{torch.cuda.get_device_properties(device).uuid}"
            self._handle = pynvml.nvmlDeviceGetHandleByUUID(uuid)
        except (OSError, pynvml.NVMLError) as error:
            log(f"no utilisation, memory and temperature of the GPU ({error})")
            return
        self._nvml = pynvml

    def values(self) -> dict[str, float]:
        """Return scalars by name: percent of the latest time in use, bytes of its memory in use, degrees Celsius.

        What this GPU does not tell (a part of one may not) is left out.
        """
        if self._nvml is None:
            return {}
        nvml, handle = self._nvml, self._handle
        readings: dict[str, Callable[[], Any]] = {
            "gpu/utilization_percent": lambda: nvml.nvmlDeviceGetUtilizationRates(handle).gpu,
            "gpu/memory_used_bytes": lambda: nvml.nvmlDeviceGetMemoryInfo(handle).used,
            "gpu/temperature_celsius": lambda: nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU),
        }
        found = {}
        for name, read in readings.items():
            try:
                found[name] = float(read())
            except nvml.NVMLError:
                continue
        return found
