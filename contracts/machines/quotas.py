"""Quota metrics of Vertex AI that a custom job needs: those of Compute Engine are others.

SPOT and FLEX_START take from the preemptible quotas, though what FLEX_START starts is never preempted
(https://docs.cloud.google.com/gemini-enterprise-agent-platform/machine-learning/training/schedule-jobs-dws).
"""

from __future__ import annotations

from dataclasses import dataclass

from contracts.config.resources import Strategy
from contracts.machines.machine import Machine

SERVICE = "aiplatform.googleapis.com"
_PREFIX = f"{SERVICE}/custom_model_training_"

_DWS = "https://docs.cloud.google.com/gemini-enterprise-agent-platform/machine-learning/training/schedule-jobs-dws"
_MEGA = "Google's guide to training on a3-megagpu-8g, GoogleCloudPlatform/vertex-ai-samples"
_DERIVED = "derived: the pattern of the metrics whose names Google's pages and messages show"

# Of GPUs: the metric's part between `custom_model_training_[preemptible_]` and `_gpus`.
_GPU_NAMES = {
    "NVIDIA_TESLA_T4": "nvidia_t4",
    "NVIDIA_TESLA_V100": "nvidia_v100",
    "NVIDIA_TESLA_P4": "nvidia_p4",
    "NVIDIA_TESLA_P100": "nvidia_p100",
    "NVIDIA_L4": "nvidia_l4",
    "NVIDIA_TESLA_A100": "nvidia_a100",
    "NVIDIA_A100_80GB": "nvidia_a100_80gb",
    "NVIDIA_H100_80GB": "nvidia_h100",
    "NVIDIA_H100_MEGA_80GB": "nvidia_h100_mega",
    "NVIDIA_H200_141GB": "nvidia_h200",
    "NVIDIA_B200": "nvidia_b200",
    "NVIDIA_GB200": "nvidia_gb200",
    "NVIDIA_RTX_PRO_6000": "nvidia_rtx_pro_6000",
}
# Metric names that a page of Google or a message of the service shows, read 2026-11-22.
_SEEN = {
    "cpus": "a message of the service: GoogleCloudPlatform/vertex-ai-samples#3479",
    "nvidia_l4_gpus": "a message of the service: GoogleCloudPlatform/stable-diffusion-on-gcp#12",
    "nvidia_h100_gpus": _DWS,
    "preemptible_nvidia_h100_gpus": _DWS,
    "nvidia_h100_mega_gpus": _MEGA,
    "preemptible_nvidia_h100_mega_gpus": _MEGA,
}


@dataclass(frozen=True)
class QuotaNeed:
    """How much of a quota a job needs."""

    metric: str
    """Full name, as messages of the service and the console's filter have it."""
    amount: int
    """GPUs or vCPUs."""
    source: str
    verified: bool
    """Whether Google's pages or messages were seen to name this very metric; else it is derived from those."""


def find_quotas(machine: Machine, strategy: Strategy, nodes: int) -> tuple[QuotaNeed, ...]:
    """Return what a job of `nodes` machines needs: GPUs, and vCPUs of the machines' family."""
    preemptible = "" if strategy == "STANDARD" else "preemptible_"
    needs = []
    if machine.accelerator_type:
        name = f"{preemptible}{_GPU_NAMES[machine.accelerator_type]}_gpus"
        needs.append(_need(name, machine.accelerator_count * nodes))
    family = "" if machine.family in ("n1", "e2") else f"{machine.family}_"
    needs.append(_need(f"{preemptible}{family}cpus", machine.vcpus * nodes))
    return tuple(needs)


def _need(name: str, amount: int) -> QuotaNeed:
    source = _SEEN.get(name)
    return QuotaNeed(_PREFIX + name, amount, source or _DERIVED, verified=source is not None)
