"""Ranks of a machine, with and without GPUs."""

from pathlib import Path

import pytest

from contracts.config import RunConfig
from contracts.errors import ConfigError
from trainer.launch import machine


@pytest.fixture
def two_gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What NVIDIA's driver shows in /proc on a machine with two."""
    for bus in ("0000:00:04.0", "0000:00:05.0"):
        (tmp_path / bus).mkdir()
        (tmp_path / bus / "information").write_text("Model: \t\t NVIDIA L4\nIRQ:   \t\t 31\n")
    monkeypatch.setattr(machine, "GPU_FOLDER", tmp_path)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


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


@pytest.mark.parametrize(("visible", "gpus"), [("", 0), ("0,1", 2), ("0,-1,1", 1), ("GPU-8932f937", 1), ("0,1,2", 2)])
def test_visible_gpus(two_gpus: None, visible: str, gpus: int) -> None:
    assert machine.num_gpus({"CUDA_VISIBLE_DEVICES": visible}) == gpus


def test_without_gpus_any_number_of_ranks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "GPU_FOLDER", tmp_path / "none")
    assert machine.num_ranks(config()) == 2
    assert machine.num_ranks(config(ranks=7)) == 7


def test_a_rehearsals_ranks_win(two_gpus: None) -> None:
    assert machine.num_ranks(config(ranks=1), {machine.RANKS_VARIABLE: "5"}) == 5
    for wrong in ("0", "two", "-1"):
        with pytest.raises(ConfigError, match=machine.RANKS_VARIABLE):
            machine.num_ranks(config(), {machine.RANKS_VARIABLE: wrong})
