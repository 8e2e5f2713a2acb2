"""A machine of a custom job, and the accelerators that Vertex AI knows."""

from __future__ import annotations

from dataclasses import dataclass

from contracts.config.resources import Strategy

LEAST_FOR_CUDA_13 = 75
"""Compute capability (times ten) that CUDA 13 needs at least, and with it TensorRT 11 and Triton's images: Turing.
https://docs.nvidia.com/cuda/archive/13.0.0/cuda-toolkit-release-notes/index.html removed Pascal and Volta;
https://docs.nvidia.com/deeplearning/tensorrt/11.2.1/installing-tensorrt/prerequisites.html. PyTorch's wheels for CUDA
12.6 have code for Pascal and Volta: RELEASE.md of pytorch/pytorch, releases 2.12 to 2.14 (read 2026-11-26); 2.15 has no
such wheels."""
LEAST_FOR_COMPILE = 70
"""What torch.compile needs on a GPU: Triton, its compiler of kernels, has no Pascal."""

ALL_STRATEGIES: tuple[Strategy, ...] = ("STANDARD", "SPOT", "FLEX_START")


@dataclass(frozen=True)
class Accelerator:
    """A kind of GPU."""

    name: str
    """As Vertex AI names it."""
    short: str
    """As people name it."""
    driver_name: str
    """Part of the name that its driver gives, by which a profile's hardware is known again; empty: unknown."""
    memory_gb_per_s: int
    """Memory bandwidth of NVIDIA's data sheet, in GB/s; 0: not looked up. Only `plan --compare` uses it, as an
    assumption that it names."""
    capability: str
    """Compute capability, e.g. sm89."""
    flex_start: bool
    """Whether the Dynamic Workload Scheduler hands it out."""
    note: str = ""
    """What a user must know before he asks for one."""

    @property
    def capability_x10(self) -> int:
        """Compute capability times ten."""
        return int(self.capability.removeprefix("sm"))


# capability: NVIDIA, "CUDA GPU Compute Capability", https://developer.nvidia.com/cuda-gpus, read 2026-11.
# flex_start: https://docs.cloud.google.com/gemini-enterprise-agent-platform/machine-learning/training/schedule-jobs-dws
# ("L4, A100, H100, H200, or B200"), read 2026-11-22.
ACCELERATORS: dict[str, Accelerator] = {
    entry.name: entry
    for entry in (
        Accelerator("NVIDIA_TESLA_T4", "T4", "T4", 320, "sm75", flex_start=False),
        Accelerator("NVIDIA_TESLA_V100", "V100", "V100", 900, "sm70", flex_start=False),
        Accelerator("NVIDIA_TESLA_P4", "P4", "P4", 192, "sm61", flex_start=False),
        Accelerator(
            "NVIDIA_TESLA_P100",
            "P100",
            "P100",
            732,
            "sm60",
            flex_start=False,
            note="Google ended the support of P100 on 2026-09-15: machines with it may not start any more",
        ),
        Accelerator("NVIDIA_L4", "L4", "L4", 300, "sm89", flex_start=True),
        Accelerator("NVIDIA_TESLA_A100", "A100 40 GB", "A100-SXM4-40GB", 1555, "sm80", flex_start=True),
        Accelerator("NVIDIA_A100_80GB", "A100 80 GB", "A100-SXM4-80GB", 2039, "sm80", flex_start=True),
        Accelerator("NVIDIA_H100_80GB", "H100", "H100", 3350, "sm90", flex_start=True),
        Accelerator("NVIDIA_H100_MEGA_80GB", "H100 MEGA", "H100", 3350, "sm90", flex_start=True),
        Accelerator("NVIDIA_H200_141GB", "H200", "H200", 4800, "sm90", flex_start=True),
        Accelerator("NVIDIA_B200", "B200", "B200", 8000, "sm100", flex_start=True),
        Accelerator("NVIDIA_GB200", "GB200", "GB200", 8000, "sm100", flex_start=False),
        Accelerator("NVIDIA_RTX_PRO_6000", "RTX PRO 6000", "RTX PRO 6000", 0, "sm120", flex_start=False),
    )
}


@dataclass(frozen=True)
class Machine:
    """One kind of machine, with its GPUs.

    `accelerator_type` is empty and `accelerator_count` 0 where it has none.
    """

    type: str
    accelerator_type: str
    accelerator_count: int
    vcpus: int
    memory_gb: float
    boot_disks: tuple[str, ...]
    """Types of boot disk that it can start from."""
    strategies: tuple[Strategy, ...]
    """Ways in which it can be asked for."""
    note: str = ""
    """What a user must know before he asks for one."""

    @property
    def family(self) -> str:
        """The first part of its type, e.g. g2."""
        return self.type.partition("-")[0]

    @property
    def label(self) -> str:
        """The machine in one line, e.g. `g2-standard-24 with 2 x NVIDIA_L4`."""
        return f"{self.type} with {self.accelerator_count} x {self.accelerator_type}" if self.gpus else self.type

    @property
    def gpus(self) -> int:
        """GPUs of one machine; 0: none."""
        return self.accelerator_count
