"""The figures behind contracts/machines/prices.py, in US dollars an hour, with where and when they were read.

Rates of hosts were solved from the catalog's rows of two machine types of a family (n1), or of one type whose memory is
in a fixed ratio to its vCPUs (the others); they give the other rows back to four digits. A region that is not here is
unknown; so is what no source prices well: where the catalog has other products for on-demand (A100 80 GB in most
regions: below spot; A100 and H100 in Europe: half of elsewhere), and B200, GB200 and RTX PRO 6000 (without hosts).
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Source:
    """Where figures come from."""

    name: str
    as_of: str


SKYPILOT = Source(
    "catalog of Compute Engine prices, github.com/skypilot-org/skypilot-catalog, v8/gcp/vms.csv at 006059e",
    "read 2026-11-22, published before",
)
BILLING_H100 = Source("Cloud Billing Catalog by way of github.com/tgarg01/silybench, gpu_prices.csv", "2026-09-26")
BILLING_H200 = Source(
    "Cloud Billing Catalog by way of huggingface.co/datasets/tanod/cloud-gpu-list-prices", "2026-10-13"
)

MANAGEMENT_FEE = 0.15
FEE_ASSUMPTION = (
    "Vertex AI's management fee: up to 15 % of the on-demand price, as between its 0.2185 and Compute Engine's 0.1900 "
    "of an n1-standard-4 (2026-09-08), for all machines"
)

_US = ("us-central1", "us-east1", "us-west1")

# Family -> region -> (on-demand a vCPU, on-demand a GB, spot a vCPU, spot a GB).
_HOST_RATES: dict[str, dict[str, tuple[float, float, float, float]]] = {
    "n1": {
        **dict.fromkeys(_US, (0.031611, 0.004237, 0.008820, 0.001130)),
        "us-east4": (0.035605, 0.004771, 0.007860, 0.000917),
        "us-west4": (0.035605, 0.004771, 0.010840, 0.001448),
        "europe-west1": (0.034773, 0.004661, 0.010400, 0.001394),
        "europe-west4": (0.034802, 0.004664, 0.013920, 0.001866),
    },
}
# Stem of the type -> (vCPUs of the row, region -> (on-demand, spot)).
_HOST_ROWS: dict[str, tuple[int, dict[str, tuple[float, float]]]] = {
    "g2-standard": (
        12,
        {
            **dict.fromkeys(_US, (0.44038, 0.17621)),
            "us-east4": (0.43893, 0.17554),
            "us-west4": (0.496, 0.15374),
            "europe-west1": (0.4849, 0.15888),
            "europe-west2": (0.50141, 0.23222),
            "europe-west3": (0.519, 0.25178),
            "europe-west4": (0.46286, 0.21449),
            "asia-northeast1": (0.56553, 0.28267),
            "asia-southeast1": (0.54329, 0.22606),
        },
    ),
    "a2-highgpu": (12, {**dict.fromkeys(_US, (0.73948, 0.36975)), "us-west4": (0.8328, 0.33306)}),
    "a2-ultragpu": (12, {"us-east5": (1.09962, 0.31193), "asia-southeast1": (1.35641, 0.62379)}),
    "a2-megagpu": (96, {"us-central1": (8.79698, 4.39824)}),
    "a3-megagpu": (208, {"us-central1": (9.46006, 2.88933), "us-east4": (9.46006, 2.15966)}),
    "e2-standard": (
        2,
        {
            **dict.fromkeys(_US, (0.06701, 0.0294)),
            "us-east4": (0.07547, 0.03633),
            "europe-west1": (0.07372, 0.02948),
            "europe-west4": (0.07377, 0.03071),
        },
    ),
    "c2-standard": (
        16,
        {
            **dict.fromkeys(_US, (0.83523, 0.27187)),
            "us-east4": (0.94058, 0.2824),
            "europe-west1": (0.9188, 0.34118),
            "europe-west4": (0.91949, 0.27226),
        },
    ),
}
# GPU without its host -> region -> (on-demand, spot).
_GPUS: dict[str, dict[str, tuple[float, float]]] = {
    "NVIDIA_TESLA_T4": {
        **dict.fromkeys(_US, (0.35, 0.175)),
        "us-east4": (0.37, 0.1644),
        "us-west4": (0.37, 0.1258),
        "europe-west1": (0.35, 0.14),
        "europe-west4": (0.3675, 0.175),
    },
    "NVIDIA_TESLA_P4": {
        "us-central1": (0.6, 0.2236),
        "us-east4": (0.6, 0.1734),
        "europe-west4": (0.63, 0.132),
    },
    "NVIDIA_TESLA_P100": {
        **dict.fromkeys(_US, (1.46, 0.7034)),
        "europe-west1": (1.6, 0.2816),
        "europe-west4": (1.533, 0.2341),
    },
    "NVIDIA_TESLA_V100": {"us-central1": (2.48, 1.0885)},
    "NVIDIA_L4": {
        **dict.fromkeys(_US, (0.56004, 0.2231)),
        "us-east4": (0.55821, 0.2233),
        "us-west4": (0.63077, 0.2103),
        "europe-west1": (0.61666, 0.2406),
        "europe-west2": (0.63765, 0.2847),
        "europe-west3": (0.66085, 0.3201),
        "europe-west4": (0.58804, 0.2438),
        "asia-northeast1": (0.7192, 0.3564),
        "asia-southeast1": (0.69092, 0.2478),
    },
    "NVIDIA_TESLA_A100": {**dict.fromkeys(_US, (2.93391, 1.4341)), "us-west4": (3.10156, 1.2406)},
    "NVIDIA_A100_80GB": {"us-east5": (4.4242, 1.3356), "asia-southeast1": (4.84607, 1.823)},
    "NVIDIA_H100_MEGA_80GB": {"us-central1": (10.34428, 3.1601), "us-east4": (10.34428, 1.8619)},
}
# Accelerator and region -> (on-demand, spot) of one GPU with its share of the machine.
WHOLE_PER_GPU: dict[tuple[str, str], tuple[float, float, Source]] = {
    ("NVIDIA_H100_80GB", "us-central1"): (10.979, 6.571, BILLING_H100),
    ("NVIDIA_H200_141GB", "us-central1"): (10.4365, 6.2607, BILLING_H200),
}


def find_host(type_: str, vcpus: int, memory_gb: float, region: str) -> tuple[float, float] | None:
    """Return on-demand and spot price of a machine without its GPUs; None: unknown."""
    if rates := _HOST_RATES.get(type_.partition("-")[0], {}).get(region):
        return rates[0] * vcpus + rates[1] * memory_gb, rates[2] * vcpus + rates[3] * memory_gb
    row_vcpus, rows = _HOST_ROWS.get(type_.rpartition("-")[0], (1, {}))
    if (row := rows.get(region)) is None:
        return None
    return row[0] * vcpus / row_vcpus, row[1] * vcpus / row_vcpus


def find_gpu(accelerator: str, region: str) -> tuple[float, float] | None:
    """Return on-demand and spot price of one GPU without its host; None: unknown."""
    return _GPUS.get(accelerator, {}).get(region)
