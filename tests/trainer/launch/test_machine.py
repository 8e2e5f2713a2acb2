"""Ranks of a machine, with and without GPUs."""

from pathlib import Path

import pynvml as nvml
import pytest

from contracts.config import RunConfig
from contracts.errors import ConfigError
from trainer.launch import machine
from trainer.launch.machine import Gpu

UUIDS = ("GPU-8932f937-d72c-4106-c12f-20bd9faed9f6", "GPU-8a54c1b2-0000-4106-c12f-20bd9faed9f6")
L4 = [Gpu("NVIDIA L4", uuid) for uuid in UUIDS]
MIG = [Gpu("NVIDIA A100-SXM4-40GB", UUIDS[0], has_mig=True), Gpu("NVIDIA A100-SXM4-40GB", UUIDS[1])]


@pytest.fixture(autouse=True)
def no_nvml(monkeypatch: pytest.MonkeyPatch) -> None:
    """NVML is not there, on whatever machine the tests run."""

    def init() -> None:
        raise nvml.NVMLError_LibraryNotFound

    monkeypatch.setattr(nvml, "nvmlInit", init)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


@pytest.fixture
def two_gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What NVIDIA's driver shows in /proc on a machine with two."""
    for bus, uuid in zip(("0000:00:04.0", "0000:00:05.0"), UUIDS, strict=True):
        (tmp_path / bus).mkdir()
        text = f"Model: \t\t NVIDIA L4\nIRQ:   \t\t 31\nGPU UUID: \t {uuid}\n"
        (tmp_path / bus / "information").write_text(text)
    monkeypatch.setattr(machine, "GPU_FOLDER", tmp_path)


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
    [
        (None, 2),
        ("", 0),
        ("0,1", 2),
        ("1", 1),
        ("-1", 0),
        ("0,-1,1", 1),
        ("0,1,2", 2),
        ("2,0", 0),
        ("0,0", 0),
        ("0x,1y", 2),
        ("nothing", 0),
        (UUIDS[1], 1),
        (", ".join(UUIDS), 2),
        ("GPU-8932f937", 1),
        ("GPU-8", 0),
        ("GPU-8932f937,GPU-no,GPU-8a", 1),
        ("GPU-8932f937,GPU-8932f", 0),
        ("MIG-c6d4f1ef-42e4-5de3-91c7-45d71c87eb3f", 1),
    ],
)
def test_visible_gpus(visible: str | None, gpus: int) -> None:
    """What CUDA, and torch by its own rules, see of two."""
    assert machine.count_visible(L4, visible) == gpus
    assert machine.count_visible([], visible) == 0


@pytest.mark.parametrize(("visible", "gpus"), [(None, 1), ("0,1", 1), ("1", 1), (UUIDS[0], 1), ("", 0)])
def test_of_mig_devices_a_process_sees_one(visible: str | None, gpus: int) -> None:
    assert machine.count_visible(MIG, visible) == gpus
    assert machine.count_visible(MIG, f"MIG-{UUIDS[0]}/1/0,MIG-{UUIDS[0]}/2/0") == 1


def test_what_nvml_lists_counts_where_proc_has_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Under WSL2 and in containers with CDI; the second of three GPUs fell off its bus, the third is split."""
    monkeypatch.setattr(machine, "GPU_FOLDER", tmp_path / "none")

    def find(index: int) -> int:
        if index == 1:
            raise nvml.NVMLError_GpuIsLost
        return index

    def mig(handle: int) -> list[int]:
        if handle == 0:
            raise nvml.NVMLError_NotSupported
        return [nvml.NVML_DEVICE_MIG_ENABLE, nvml.NVML_DEVICE_MIG_ENABLE]

    answers = {
        "nvmlInit": lambda: None,
        "nvmlShutdown": lambda: None,
        "nvmlDeviceGetCount": lambda: 3,
        "nvmlDeviceGetHandleByIndex": find,
        "nvmlDeviceGetName": lambda handle: f"GPU {handle}",
        "nvmlDeviceGetUUID": lambda handle: f"GPU-{handle}",
        "nvmlDeviceGetMigMode": mig,
    }
    for name, answer in answers.items():
        monkeypatch.setattr(nvml, name, answer)
    assert machine.find_gpus() == [Gpu("GPU 0", "GPU-0"), Gpu("GPU 2", "GPU-2", has_mig=True)]
    assert machine.hardware()["gpus"] == "GPU 0, GPU 2"
    assert machine.num_gpus({"CUDA_VISIBLE_DEVICES": "0"}) == 1


def test_without_gpus_any_number_of_ranks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "GPU_FOLDER", tmp_path / "none")
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
