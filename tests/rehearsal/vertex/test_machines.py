"""The two tables of machines, the configuration's and the local Vertex's, were written apart: here they meet."""

from contracts.machines import list_machines
from rehearsal.vertex.machines import KINDS, find_fault


def test_what_a_configuration_may_have_is_taken_with_its_disks_and_vcpus() -> None:
    for machine in list_machines():
        fault = find_fault(machine.type, machine.accelerator_type, machine.gpus)
        assert fault is None, (machine, fault)
        assert KINDS[machine.type].vcpus == machine.vcpus, machine
        assert machine.boot_disk in KINDS[machine.type].disks, machine
        assert KINDS[machine.type].spot_only == ("STANDARD" not in machine.strategies), machine
