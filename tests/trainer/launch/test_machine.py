"""Ranks of a machine, with and without GPUs."""

import pynvml as nvml
import pytest

from contracts.config import RunConfig
from contracts.errors import ConfigError
from trainer.launch import machine
from trainer.launch.choices import default_channels_last, default_precision


@pytest.fixture
def two_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
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
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


def config(**resources: object) -> RunConfig:
    return RunConfig.model_validate({"resources": resources})


def test_a_rank_per_gpu_and_never_more(two_gpus: None) -> None:
    assert machine.hardware()["gpus"] == "NVIDIA L4, NVIDIA L4"
    assert machine.num_ranks(config()) == 2
    assert machine.num_ranks(config(ranks=1)) == 1
    with pytest.raises(ConfigError, match="on a machine with 2 GPUs"):
        machine.num_ranks(config(ranks=3))


@pytest.mark.parametrize(
    ("visible", "gpus", "precision"),
    [
        (None, 2, "fp32"),
        ("", 0, "fp32"),
        ("0,-1,1", 1, "bf16"),
    ],
)
def test_visible_gpus(
    two_gpus: None, monkeypatch: pytest.MonkeyPatch, visible: str | None, gpus: int, precision: str
) -> None:
    """And what `auto` computes in: bf16 where every GPU has it."""
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert machine.num_gpus() == gpus
    assert default_precision() == precision and default_channels_last() == (gpus > 0)


def test_the_environments_ranks_count_where_the_configuration_leaves_them_open(
    two_gpus: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = machine.RANKS_VARIABLE
    for text, ranks in (("1", 1), ("gpu", 2)):
        monkeypatch.setenv(name, text)
        assert machine.num_ranks(config()) == ranks
    assert machine.num_ranks(config(ranks=1)) == 1
    for wrong in ("two", "3"):
        monkeypatch.setenv(name, wrong)
        with pytest.raises(ConfigError, match=name):
            machine.num_ranks(config())
