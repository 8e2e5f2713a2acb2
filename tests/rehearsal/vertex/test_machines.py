"""The two tables of machines, the configuration's and the local Vertex's, were written apart: here they meet."""

from contracts.machines import list_combinations
from rehearsal.vertex.machines import KINDS, find_fault

N1_GPUS = ("NVIDIA_TESLA_T4", "NVIDIA_TESLA_P4", "NVIDIA_TESLA_P100", "NVIDIA_TESLA_V100")
# What the local Vertex takes and a configuration cannot have: the plan's table is the narrower one.
FAMILIES_OF_OURS = ("n2d", "c2d")
BIG_P100 = {f"n1-{kind}" for kind in ("standard-64", "standard-96", "highmem-64", "highmem-96", "highcpu-96")}


def test_what_a_configuration_may_have_is_taken_with_its_disks_and_vcpus() -> None:
    for machine in list_combinations():
        fault = find_fault(machine.type, machine.accelerator_type, machine.accelerator_count)
        assert fault is None, (machine, fault)
        assert KINDS[machine.type].vcpus == machine.vcpus, machine
        assert set(machine.boot_disks) == set(KINDS[machine.type].disks), machine
        # One without any strategy is listed for its note only.
        assert not machine.strategies or KINDS[machine.type].spot_only == ("STANDARD" not in machine.strategies), (
            machine
        )


def test_what_is_taken_beyond_that_is_known() -> None:
    known = {(m.type, m.accelerator_type, m.accelerator_count) for m in list_combinations()}
    taken = {(name, kind.gpu, kind.num_gpus) for name, kind in KINDS.items()}
    for name in KINDS:
        taken |= {(name, gpu, n) for gpu in N1_GPUS for n in range(1, 17) if find_fault(name, gpu, n) is None}
    for name, gpu, _ in taken - known:
        assert name.startswith(FAMILIES_OF_OURS) or (name in BIG_P100 and gpu == "NVIDIA_TESLA_P100"), (name, gpu)
