"""The table of machine types, and the machine that a configuration names."""

from typing import Any

import pytest

from contracts.config import MachineSection
from contracts.errors import ConfigError
from contracts.machines import AS_OF, SOURCE, find_machine, list_machines


def machine(type_: str, **changes: Any) -> MachineSection:
    return MachineSection(type=type_, **changes)


def test_every_machine_finds_itself() -> None:
    machines = list_machines()
    assert len(set(machines)) == len(machines)
    for known in machines:
        gpus = {"accelerator_type": known.accelerator_type, "accelerator_count": known.gpus} if known.gpus else {}
        assert find_machine(machine(known.type, **gpus)) == known
        assert known.usd_per_h is None or known.usd_per_h[1] < known.usd_per_h[0], known


@pytest.mark.parametrize(
    ("type_", "accelerator", "gpus"),
    [
        ("g2-standard-24", "NVIDIA_L4", 2),
        ("a3-highgpu-8g", "NVIDIA_H100_80GB", 8),
        ("g4-standard-192", "NVIDIA_RTX_PRO_6000", 4),
        ("n1-standard-8", "", 0),
    ],
)
def test_a_type_brings_its_gpus(type_: str, accelerator: str, gpus: int) -> None:
    found = find_machine(machine(type_))
    assert (found.accelerator_type, found.gpus) == (accelerator, gpus)


T4 = "NVIDIA_TESLA_T4"


@pytest.mark.parametrize(
    ("type_", "gpus", "given", "allowed", "todo"),
    [
        ("", {}, "type is not set", "a machine type", "g2-standard-12"),
        ("a100", {}, "a100", "a2-highgpu-...", "set type"),
        ("ct5lp-hightpu-4t", {}, "a TPU", "NVIDIA GPUs", "set type"),
        ("g2-standard-8", {"accelerator_count": 2}, "2 x NVIDIA_L4", "1 x NVIDIA_L4", "set accelerator_count to 1"),
        ("g2-standard-8", {"accelerator_type": T4}, T4, "1 x NVIDIA_L4", "comes with n1-standard-4"),
        ("n1-standard-8", {"accelerator_type": "NVIDIA_L4"}, "NVIDIA_L4", T4, "g2-standard-12"),
    ],
)
def test_what_does_not_exist_is_refused(type_: str, gpus: dict[str, Any], given: str, allowed: str, todo: str) -> None:
    with pytest.raises(ConfigError) as caught:
        find_machine(machine(type_, **gpus))
    assert given in caught.value.given and todo in caught.value.todo
    assert allowed in caught.value.allowed and f"({SOURCE}, {AS_OF})" in caught.value.allowed


def test_strategies_and_boot_disks() -> None:
    assert find_machine(machine("a3-highgpu-2g")).strategies == ("SPOT", "FLEX_START")
    assert "STANDARD" in find_machine(machine("a3-highgpu-8g")).strategies
    assert "FLEX_START" not in find_machine(machine("n1-standard-8", accelerator_type=T4)).strategies
    assert find_machine(machine("a4-highgpu-8g")).boot_disk == "hyperdisk-balanced"
    assert find_machine(machine("g2-standard-8")).boot_disk == "pd-ssd"


def test_the_price_of_spot_is_the_spot_price() -> None:
    found = find_machine(machine("g2-standard-24"))
    assert found.price("STANDARD", "us-central1") == pytest.approx(2 * (0.44038 + 0.56004), abs=1e-3)
    assert found.price("SPOT", "us-central1") == pytest.approx(2 * (0.17621 + 0.2231), abs=1e-3)
    assert found.price("FLEX_START", "us-central1") is None and found.price("SPOT", "europe-west4") is None
    assert find_machine(machine("a4-highgpu-8g")).price("SPOT", "us-central1") is None
