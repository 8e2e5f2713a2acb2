"""Peaks of GPUs by the name that the driver gives them: dense floating point operations, bytes of memory, per second.

Numbers are NVIDIA's data sheets'; where a sheet gives tensor cores "with sparsity" only, it is halved. What no sheet
says is left out, and then no utilisation is computed. Precisions: fp32 (outside tensor cores), tf32, bf16, fp16 (with
tensor cores, where the GPU has them).
"""

from __future__ import annotations

import re
from typing import Literal, TypeVar

Precision = Literal["fp32", "tf32", "bf16", "fp16"]
Value = TypeVar("Value")

# The first pattern that fits a name decides. TFLOP/s: fp32, tf32, bf16, fp16.
_TABLE: tuple[tuple[str, tuple[float | None, float | None, float | None, float | None]], ...] = (
    # NVIDIA Tesla P4 data sheet; products of fp16 are slower there than those of fp32.
    (r"\bP4\b", (5.5, None, None, None)),
    # NVIDIA Tesla P100 data sheet: PCIe and SXM2.
    (r"P100-PCIE", (9.3, None, None, 18.7)),
    (r"P100-SXM2", (10.6, None, None, 21.2)),
    # NVIDIA V100 data sheet (2020): V100S, PCIe, SXM2 and SXM3.
    (r"V100S-PCIE", (16.4, None, None, 130.0)),
    (r"V100-PCIE", (14.0, None, None, 112.0)),
    (r"V100-SXM", (15.7, None, None, 125.0)),
    # NVIDIA T4 data sheet.
    (r"\bT4\b", (8.1, None, None, 65.0)),
    # NVIDIA A100 data sheet: all forms have the same peaks.
    (r"\bA100\b", (19.5, 156.0, 312.0, 312.0)),
    # NVIDIA A30, A40 and A10 data sheets.
    (r"\bA30\b", (10.3, 82.0, 165.0, 165.0)),
    (r"\bA40\b", (37.4, 74.8, 149.7, 149.7)),
    (r"\bA10\b", (31.2, 62.5, 125.0, 125.0)),
    # NVIDIA L4 data sheet: tensor cores 120 (TF32) and 242 with sparsity.
    (r"\bL4\b", (30.3, 60.0, 121.0, 121.0)),
    # NVIDIA L40S and L40 data sheets.
    (r"\bL40S\b", (91.6, 183.0, 362.05, 362.05)),
    (r"\bL40\b", (90.5, 90.5, 181.05, 181.05)),
    # NVIDIA H100 data sheet: with sparsity 989/1979 (SXM), 756/1513 (PCIe), 835/1671 (NVL).
    (r"\bH100 PCIe\b", (51.0, 378.0, 756.5, 756.5)),
    (r"\bH100 NVL\b", (60.0, 417.5, 835.5, 835.5)),
    (r"\bH100 \d+GB HBM3", (67.0, 494.5, 989.5, 989.5)),
    # NVIDIA H200 data sheet: as H100 SXM; NVL as H100 NVL.
    (r"\bH200 NVL\b", (60.0, 417.5, 835.5, 835.5)),
    (r"\bH200\b", (67.0, 494.5, 989.5, 989.5)),
    # NVIDIA GH200 Grace Hopper data sheet.
    (r"\bGH200\b", (67.0, 494.5, 990.0, 990.0)),
    # NVIDIA Blackwell data sheet, per GPU, with sparsity: HGX B200 2.2 and 4.5 PFLOPS, GB200 2.5 and 5.
    (r"\bGB200\b", (80.0, 1250.0, 2500.0, 2500.0)),
    (r"\bB200\b", (75.0, 1100.0, 2250.0, 2250.0)),
)
# GB/s, each with what it was compared with on 2026-11-27:
# [G] Google, "GPU machine types" (docs.cloud.google.com/compute/docs/gpus), as of 2026-04-14, read in a stored copy. It
#     rounds A100 to 1.6 and 1.9 TB/s: 1555 and 2039 are [S], and 1.9 fits the PCIe card of 80 GB only.
# [S] NVIDIA's data sheet of that GPU, as others quote it; the sheet itself was not at hand, nor its date.
# [U] from memory of the sheet: nothing that was read says so.
# T4's sheet says 300 or 320, by edition: 256 bits at 10 Gbit/s are 320, as [G] has it. Of A100 and GH200 the amount of
# memory decides.
_BANDWIDTH: tuple[tuple[str, float], ...] = (
    (r"\bP4\b", 192.0),  # [G]
    (r"P100-(PCIE|SXM2)-16GB", 732.0),  # [G]
    (r"P100-PCIE-12GB", 549.0),  # [U]
    (r"V100S-PCIE", 1134.0),  # [U]
    (r"V100-(PCIE|SXM)", 900.0),  # [G]
    (r"\bT4\b", 320.0),  # [G]
    (r"\bA100-(PCIE|SXM4)-40GB", 1555.0),  # [S]
    (r"\bA100-SXM4-80GB", 2039.0),  # [S]
    (r"\bA100 80GB PCIe", 1935.0),  # [S]
    (r"\bA30\b", 933.0),  # [U]
    (r"\bA40\b", 696.0),  # [S]
    (r"\bA10\b", 600.0),  # [S]
    (r"\bL4\b", 300.0),  # [G]
    (r"\bL40S?\b", 864.0),  # [S]
    (r"\bH100 PCIe\b", 2039.0),  # [S], as "2 TB/s"
    (r"\bH100 NVL\b", 3938.0),  # [S], as "3.93 TB/s"
    (r"\bH100 \d+GB HBM3", 3350.0),  # [G]
    (r"\bH200\b", 4800.0),  # [G]
    (r"\bGH200 144G", 4900.0),  # [U]
    (r"\bGH200 480GB", 4000.0),  # [U]
    (r"\bG?B200\b", 8000.0),  # [G]
    (r"\bRTX PRO 6000 Blackwell Server", 1597.0),  # [G]
)
_COLUMNS: dict[Precision, int] = {"fp32": 0, "tf32": 1, "bf16": 2, "fp16": 3}


def peak_flops(gpu_name: str | None, precision: Precision) -> float | None:
    """Return the floating point operations per second that a GPU can do at most; None where no data sheet says.

    Args:
        gpu_name: As torch.cuda.get_device_name and kineto's deviceProperties have it.
        precision: What products are computed in. A GPU without TF32 computes such products in fp32.
    """
    peaks = _find(_TABLE, gpu_name)
    if peaks is None:
        return None
    tera = peaks[_COLUMNS[precision]]
    if tera is None and precision == "tf32":
        tera = peaks[_COLUMNS["fp32"]]
    return None if tera is None else tera * 1e12


def peak_bandwidth(gpu_name: str | None) -> float | None:
    """Return the bytes per second of a GPU's memory by its data sheet; None where none says."""
    giga = _find(_BANDWIDTH, gpu_name)
    return None if giga is None else giga * 1e9


def _find(table: tuple[tuple[str, Value], ...], gpu_name: str | None) -> Value | None:
    # A slice of a GPU has a slice of its peak, which depends on how it was cut.
    if gpu_name is None or "MIG" in gpu_name:
        return None
    return next((value for pattern, value in table if re.search(pattern, gpu_name)), None)
