from typing import Any

import pytest

from contracts.config import MachineSection
from contracts.errors import ConfigError
from contracts.machines import ACCELERATORS, AS_OF, SOURCE, find_machine, list_combinations


def machine(type_: str, **changes: Any) -> MachineSection:
    return MachineSection(type=type_, **changes)


def test_every_combination_finds_itself() -> None:
    combinations = list_combinations()
    assert len(set(combinations)) == len(combinations)
    for known in combinations:
        section = machine(known.type)
        if known.accelerator_type:
            section = machine(known.type, accelerator_type=known.accelerator_type, accelerator_count=known.gpus)
        found = find_machine(section)
        assert found == known
        assert found.vcpus > 0
        assert found.boot_disk
        assert found.strategies or found.note


@pytest.mark.parametrize(
    ("type_", "accelerator", "gpus"),
    [
        ("g2-standard-24", "NVIDIA_L4", 2),
        ("g2-standard-32", "NVIDIA_L4", 1),
        ("g2-standard-96", "NVIDIA_L4", 8),
        ("a2-highgpu-8g", "NVIDIA_TESLA_A100", 8),
        ("a2-megagpu-16g", "NVIDIA_TESLA_A100", 16),
        ("a2-ultragpu-1g", "NVIDIA_A100_80GB", 1),
        ("a3-highgpu-8g", "NVIDIA_H100_80GB", 8),
        ("a3-megagpu-8g", "NVIDIA_H100_MEGA_80GB", 8),
        ("a3-ultragpu-8g", "NVIDIA_H200_141GB", 8),
        ("a4-highgpu-8g", "NVIDIA_B200", 8),
        ("g4-standard-192", "NVIDIA_RTX_PRO_6000", 4),
        ("n1-standard-8", "", 0),
    ],
)
def test_a_type_brings_its_gpus(type_: str, accelerator: str, gpus: int) -> None:
    found = find_machine(machine(type_))
    assert (found.accelerator_type, found.accelerator_count) == (accelerator, gpus)


def test_an_n1_takes_one_gpu_where_the_number_is_to_be_chosen() -> None:
    assert find_machine(machine("n1-standard-8", accelerator_type="NVIDIA_TESLA_T4")).gpus == 1
    # Two at least serve 32 vCPUs.
    assert find_machine(machine("n1-standard-32", accelerator_type="NVIDIA_TESLA_T4")).gpus == 2


def test_an_n1_with_an_l4_is_refused_with_the_right_advice() -> None:
    with pytest.raises(ConfigError) as caught:
        find_machine(machine("n1-standard-8", accelerator_type="NVIDIA_L4", accelerator_count=1))
    assert "g2-standard-12" in caught.value.todo
    assert "NVIDIA_TESLA_T4" in caught.value.allowed
    assert SOURCE in caught.value.allowed
    assert AS_OF in caught.value.allowed


@pytest.mark.parametrize(
    ("section", "given", "todo"),
    [
        (machine(""), "type is not set", "g2-standard-12"),
        (machine("g2-standard-13"), "g2-standard-13", "did you mean g2-standard-"),
        (machine("a100"), "a100", "set type"),
        (machine("g2-standard-8", accelerator_type="nvidia-l4"), "nvidia-l4", "did you mean NVIDIA_L4"),
        (machine("g2-standard-8", accelerator_count=2), "2 x NVIDIA_L4", "set accelerator_count to 1"),
        (machine("n1-standard-8", accelerator_count=2), "without accelerator_type", "accelerator_type"),
        (
            machine("n1-standard-32", accelerator_type="NVIDIA_TESLA_T4", accelerator_count=1),
            "1 x NVIDIA_TESLA_T4",
            "set accelerator_count to 2 or 4",
        ),
        (
            machine("n1-standard-64", accelerator_type="NVIDIA_TESLA_P100", accelerator_count=4),
            "NVIDIA_TESLA_P100",
            "n1-highcpu-64",
        ),
        (machine("g2-standard-8", accelerator_type="NVIDIA_TESLA_T4"), "NVIDIA_TESLA_T4", "comes with n1-standard-4"),
        (machine("ct5lp-hightpu-4t"), "a TPU", "not supported"),
    ],
)
def test_what_does_not_exist_is_refused(section: MachineSection, given: str, todo: str) -> None:
    with pytest.raises(ConfigError) as caught:
        find_machine(section)
    assert given in caught.value.given
    assert todo in caught.value.todo


@pytest.mark.parametrize(
    ("type_", "counts"),
    [
        ("n1-standard-8", {"T4": [1, 2, 4], "P4": [1, 2, 4], "P100": [1, 2, 4], "V100": [1, 2, 4, 8]}),
        ("n1-highmem-32", {"T4": [2, 4], "P4": [2, 4], "P100": [2, 4], "V100": [4, 8]}),
        ("n1-standard-64", {"T4": [4], "P4": [4], "V100": [8]}),
        ("n1-highcpu-64", {"T4": [4], "P4": [4], "P100": [4], "V100": [8]}),
    ],
)
def test_rows_of_google_s_table(type_: str, counts: dict[str, list[int]]) -> None:
    found: dict[str, list[int]] = {}
    for known in list_combinations():
        if known.type == type_ and known.gpus:
            found.setdefault(ACCELERATORS[known.accelerator_type].short, []).append(known.gpus)
    assert found == counts


def test_strategies() -> None:
    assert find_machine(machine("a3-highgpu-2g")).strategies == ("SPOT", "FLEX_START")
    assert "STANDARD" in find_machine(machine("a3-highgpu-8g")).strategies
    assert "FLEX_START" not in find_machine(machine("n1-standard-8", accelerator_type="NVIDIA_TESLA_T4")).strategies
    assert "FLEX_START" not in find_machine(machine("n2-standard-8")).strategies
    assert find_machine(machine("a4x-highgpu-4g")).strategies == ()


def test_boot_disks() -> None:
    for type_ in ("a3-ultragpu-8g", "a4-highgpu-8g", "n4-standard-8"):
        assert find_machine(machine(type_)).boot_disk == "hyperdisk-balanced"
    assert find_machine(machine("g2-standard-8")).boot_disk == "pd-ssd"


def test_accelerators_are_those_of_the_sdk() -> None:
    """The names are Vertex AI's own: a misspelt one would be refused by nobody here."""
    from google.cloud.aiplatform_v1.types import AcceleratorType

    assert set(ACCELERATORS) <= {entry.name for entry in AcceleratorType}


def test_the_price_of_spot_is_the_spot_price() -> None:
    found = find_machine(machine("g2-standard-24"))
    assert found.price("STANDARD", "us-central1") == pytest.approx(2 * (0.44038 + 0.56004), abs=1e-3)
    assert found.price("SPOT", "us-central1") == pytest.approx(2 * (0.17621 + 0.2231), abs=1e-3)
    assert found.price("FLEX_START", "us-central1") is None and found.price("SPOT", "europe-west4") is None
    assert find_machine(machine("a4-highgpu-8g")).price("SPOT", "us-central1") is None
    for known in list_combinations():
        assert known.usd_per_h is None or known.usd_per_h[1] < known.usd_per_h[0], known
