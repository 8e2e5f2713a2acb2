"""Machine types of Compute Engine: memory, GPUs, boot disks, and how they are sold.

What every place that starts machines shares; which of these Vertex AI's custom jobs take is in combinations.py.
Sources: https://docs.cloud.google.com/compute/docs/machine-resource,
https://docs.cloud.google.com/compute/docs/accelerator-optimized-machines, and where they say nothing, Vertex AI's table
(combinations.SOURCE).
"""

from __future__ import annotations

PERSISTENT = ("pd-ssd", "pd-standard")
"""Boot disks of the types that BOOT_DISKS does not name."""
_EITHER = ("pd-ssd", "pd-standard", "hyperdisk-balanced")
_SSD = ("pd-ssd",)
_SSD_OR_HYPERDISK = ("pd-ssd", "hyperdisk-balanced")
_HYPERDISK = ("hyperdisk-balanced",)
# hyperdisk-balanced is Vertex AI's default for A3 Ultra and A4; A4X, G4 and N4 have no persistent disks, and the
# families that are not named have no hyperdisk-balanced (https://docs.cloud.google.com/compute/docs/disks/hyperdisks).
# G2, A3 High and A3 Mega have pd-balanced and pd-ssd but no pd-standard, whatever Vertex AI's page says of all machines
# (https://docs.cloud.google.com/compute/docs/accelerator-optimized-machines).
BOOT_DISKS = {
    **dict.fromkeys(("a3-ultragpu", "a4-highgpu", "a4x-highgpu", "g4-standard", "n4-standard"), _HYPERDISK),
    **dict.fromkeys(("n4-highmem", "n4-highcpu"), _HYPERDISK),
    "g2-standard": _SSD,
    **dict.fromkeys(("a3-highgpu", "a3-megagpu"), _SSD_OR_HYPERDISK),
    **dict.fromkeys(("m1-ultramem", "m1-megamem"), _EITHER),
}

# Memory per vCPU in GB of the machines without GPUs of their own, by type without its size.
GB_PER_VCPU: dict[str, float] = {
    "n1-standard": 3.75,
    "n1-highmem": 6.5,
    "n1-highcpu": 0.9,
    "n2-standard": 4,
    "n2-highmem": 8,
    "n2-highcpu": 1,
    "n4-standard": 4,
    "n4-highmem": 8,
    "n4-highcpu": 2,
    "e2-standard": 4,
    "e2-highmem": 8,
    "e2-highcpu": 1,
    "c2-standard": 4,
}
# Of n2-highmem-80 Compute Engine gives 640 GB, of m1 no round share: type -> (vCPUs, GB).
SINGLE = {
    "m1-ultramem-40": (40, 961.0),
    "m1-ultramem-80": (80, 1922.0),
    "m1-ultramem-160": (160, 3844.0),
    "m1-megamem-96": (96, 1433.6),
}

# Machines that bring their GPUs: type -> (accelerator, GPUs, vCPUs, GB).
BUILT_IN: dict[str, tuple[str, int, int, float]] = {
    **{
        f"g2-standard-{vcpus}": ("NVIDIA_L4", gpus, vcpus, 4.0 * vcpus)
        for vcpus, gpus in ((4, 1), (8, 1), (12, 1), (16, 1), (24, 2), (32, 1), (48, 4), (96, 8))
    },
    **{f"a2-highgpu-{gpus}g": ("NVIDIA_TESLA_A100", gpus, 12 * gpus, 85.0 * gpus) for gpus in (1, 2, 4, 8)},
    "a2-megagpu-16g": ("NVIDIA_TESLA_A100", 16, 96, 1360.0),
    **{f"a2-ultragpu-{gpus}g": ("NVIDIA_A100_80GB", gpus, 12 * gpus, 170.0 * gpus) for gpus in (1, 2, 4, 8)},
    **{f"a3-highgpu-{gpus}g": ("NVIDIA_H100_80GB", gpus, 26 * gpus, 234.0 * gpus) for gpus in (1, 2, 4, 8)},
    "a3-megagpu-8g": ("NVIDIA_H100_MEGA_80GB", 8, 208, 1872.0),
    "a3-ultragpu-8g": ("NVIDIA_H200_141GB", 8, 224, 2952.0),
    "a4-highgpu-8g": ("NVIDIA_B200", 8, 224, 3968.0),
    "a4x-highgpu-4g": ("NVIDIA_GB200", 4, 140, 884.0),
    **{f"g4-standard-{48 * gpus}": ("NVIDIA_RTX_PRO_6000", gpus, 48 * gpus, 180.0 * gpus) for gpus in (1, 2, 4, 8)},
}
# Compute Engine sells them as spot or flex-start machines only (accelerator-optimized machines, A3 High).
NOT_STANDARD = ("a3-highgpu-1g", "a3-highgpu-2g", "a3-highgpu-4g")
NOTES = {
    "a4x-highgpu-4g": "ARM processors, blocks of 18 machines and a shared reservation, which no configuration can name",
}

# GPUs that an n1 takes, by its vCPUs: Vertex AI's table of valid numbers.
_UP_TO_FOUR: dict[int, tuple[int, ...]] = {
    **dict.fromkeys((2, 4, 8, 16), (1, 2, 4)),
    32: (2, 4),
    64: (4,),
    96: (4,),
}
N1_GPUS: dict[str, dict[int, tuple[int, ...]]] = {
    "NVIDIA_TESLA_T4": _UP_TO_FOUR,
    "NVIDIA_TESLA_P4": _UP_TO_FOUR,
    # Four P100 serve 64 vCPUs and 208 GB at most.
    "NVIDIA_TESLA_P100": {vcpus: numbers for vcpus, numbers in _UP_TO_FOUR.items() if vcpus <= 64},
    "NVIDIA_TESLA_V100": {
        **dict.fromkeys((2, 4, 8), (1, 2, 4, 8)),
        16: (2, 4, 8),
        32: (4, 8),
        64: (8,),
        96: (8,),
    },
}
P100_MOST_GB = 208
