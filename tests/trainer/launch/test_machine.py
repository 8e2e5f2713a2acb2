"""Ranks of a machine, with and without GPUs."""

import pynvml as nvml
import pytest

from contracts.artifacts import Flags
from contracts.config import RunConfig
from contracts.errors import ConfigError
from trainer.launch import machine
from trainer.launch.choices import default_flags


@pytest.fixture(autouse=True)
def no_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """NVML is not there, on whatever machine the tests run."""

    def init() -> None:
        raise nvml.NVMLError_LibraryNotFound

    monkeypatch.setattr(nvml, "nvmlInit", init)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


@pytest.fixture
def two_gpus(no_gpus: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """NVML knows three GPUs, the second of which fell off its bus."""

    def find(index: int) -> int:
        if index == 1:
            raise nvml.NVMLError_GpuIsLost
        return index

    answers = {
        "nvmlInit": lambda: None,
        "nvmlShutdown": lambda: None,
        "nvmlDeviceGetCount": lambda: 3,
        "nvmlDeviceGetHandleByIndex": find,
        "nvmlDeviceGetName": lambda handle: "NVIDIA L4",
        "nvmlDeviceGetCudaComputeCapability": lambda handle: (8, 9) if handle == 0 else (7, 5),
    }
    for name, answer in answers.items():
        monkeypatch.setattr(nvml, name, answer)


def config(**resources: object) -> RunConfig:
    return RunConfig.model_validate({"resources": resources})


def test_a_rank_per_gpu_and_never_more(two_gpus: None, monkeypatch: pytest.MonkeyPatch) -> None:
    assert machine.hardware()["gpus"] == "NVIDIA L4, NVIDIA L4"
    assert machine.num_ranks(config()) == 2
    assert machine.num_ranks(config(ranks=1)) == 1
    with pytest.raises(ConfigError, match="on a machine with 2 GPUs"):
        machine.num_ranks(config(ranks=3))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    assert machine.num_ranks(config()) == 1
    with pytest.raises(ConfigError, match="with 1 GPU\n"):
        machine.num_ranks(config(ranks=2))


@pytest.mark.parametrize(
    ("visible", "gpus"),
    [(None, 2), ("", 0), ("0,1", 2), ("1", 1), ("-1", 0), ("0,-1,1", 1), ("0,1,2", 2), ("GPU-8932f937, GPU-8a", 2)],
)
def test_visible_gpus(two_gpus: None, visible: str | None, gpus: int) -> None:
    assert machine.num_gpus({} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}) == gpus


def test_without_gpus_any_number_of_ranks() -> None:
    assert machine.num_ranks(config()) == 2
    assert machine.num_ranks(config(ranks=7)) == 7


def test_the_environments_ranks_count_where_the_configuration_leaves_them_open(two_gpus: None) -> None:
    name = "PET_NPROC_PER_NODE"
    assert machine.num_ranks(config(), {name: "1"}) == 1
    assert machine.num_ranks(config(ranks=2), {name: "1"}) == 2
    assert [machine.num_ranks(config(), {name: text}) for text in ("", "auto", "gpu", "cpu")] == [2] * 4
    # Without visible GPUs any number.
    assert machine.num_ranks(config(), {name: "5", "CUDA_VISIBLE_DEVICES": ""}) == 5
    for wrong in ("0", "two", "-1", "3"):
        with pytest.raises(ConfigError, match=name):
            machine.num_ranks(config(), {name: wrong})


@pytest.mark.parametrize(
    ("visible", "capability", "precision"),
    [(None, 75, "fp32"), ("0", 89, "bf16"), ("2", 75, "fp32"), ("0,2", 75, "fp32"), ("GPU-8932f937", 75, "fp32")],
)
def test_auto_without_a_profile_is_bf16_where_every_gpu_has_it(
    two_gpus: None, monkeypatch: pytest.MonkeyPatch, visible: str | None, capability: int, precision: str
) -> None:
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert machine.least_capability() == capability
    assert default_flags() == Flags(precision=precision, channels_last=True)


def test_auto_without_a_gpu_is_fp32() -> None:
    assert default_flags() == Flags()
