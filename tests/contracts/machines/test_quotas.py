from contracts.config import MachineSection, Strategy
from contracts.machines import QuotaNeed, find_machine, find_quotas, list_combinations


def quotas(type_: str, strategy: Strategy, nodes: int = 1, accelerator: str = "") -> dict[str, QuotaNeed]:
    machine = find_machine(MachineSection(type=type_, accelerator_type=accelerator))
    return {need.metric.rpartition("/")[2]: need for need in find_quotas(machine, strategy, nodes)}


def test_what_google_names_is_verified() -> None:
    standard = quotas("a3-highgpu-8g", "STANDARD", nodes=4)["custom_model_training_nvidia_h100_gpus"]
    assert standard.amount == 32
    assert standard.verified
    assert "schedule-jobs-dws" in standard.source
    for strategy in ("SPOT", "FLEX_START"):
        need = quotas("a3-highgpu-8g", strategy)["custom_model_training_preemptible_nvidia_h100_gpus"]
        assert need.verified
    assert quotas("g2-standard-12", "STANDARD")["custom_model_training_nvidia_l4_gpus"].verified
    assert quotas("n1-standard-8", "STANDARD")["custom_model_training_cpus"].verified


def test_what_is_derived_says_so() -> None:
    need = quotas("n1-standard-8", "SPOT", accelerator="NVIDIA_TESLA_T4")
    gpus, cpus = (
        need["custom_model_training_preemptible_nvidia_t4_gpus"],
        need["custom_model_training_preemptible_cpus"],
    )
    assert (gpus.amount, cpus.amount) == (1, 8)
    assert not gpus.verified
    assert "derived" in gpus.source


def test_every_machine_has_quotas() -> None:
    for machine in list_combinations():
        needs = find_quotas(machine, "STANDARD", 2)
        assert len(needs) == (2 if machine.gpus else 1)
        assert all(need.metric.startswith("aiplatform.googleapis.com/custom_model_training_") for need in needs)
        assert needs[-1].amount == 2 * machine.vcpus
