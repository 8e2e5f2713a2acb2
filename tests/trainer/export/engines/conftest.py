"""An export of the trained digits, up to the fp32 graph that has passed its gates."""

from __future__ import annotations

import copy
import shutil
from pathlib import Path
from typing import Any

import pytest

from contracts import storage
from contracts.artifacts import CheckpointManifest
from contracts.config import RunConfig
from tests.trainer.export.conftest import IMAGE_SIZE, MODEL, Digits, write_checkpoint, write_shards
from trainer.export import making, workshop
from trainer.export.inputs import Inputs
from trainer.export.processes import Cost
from trainer.export.targets import TENSORRT_RTX, Builder
from trainer.export.workshop import Workshop

CONFIG = {
    "data": {"image_size": IMAGE_SIZE},
    "model": MODEL,
    "export": {"max_batch": 64},
}


def run_here(function: Any, *given: Any, **named: Any) -> tuple[Any, Cost]:
    return function(*given, **named), Cost(1.0, 1)


@pytest.fixture(scope="session")
def prepared(digits: Digits, tmp_path_factory: pytest.TempPathFactory) -> Workshop:
    """An export of the trained digits, up to the fp32 graph that has passed its gates."""
    from tests.trainer.export import digits as made

    folder = tmp_path_factory.mktemp("loop")
    shards = write_shards(folder / "shards", samples=0, splits=made.read_digits())
    write_checkpoint(folder / "train", digits.model, shards)
    uris = [storage.normalise(folder / name) for name in ("train", "shards")]
    config = RunConfig.model_validate(CONFIG)
    builder = Builder(TENSORRT_RTX, "1", ("sm89",))
    inputs = Inputs(uris[0], CheckpointManifest.load(uris[0]), uris[1], shards, builder, config)
    (folder / "work").mkdir()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(workshop, "run_step", run_here)
        patch.setattr(making, "CALIBRATION_SAMPLES", 128)
        patch.setattr(making, "PROOF_SAMPLES", 400)
        work = Workshop(inputs, config.export, seed=0, folder=folder / "work", threads=1, tell=lambda line: None)
        making._write_fp32(work)
        making._judge_fp32(work)
    return work


@pytest.fixture
def work(prepared: Workshop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Workshop:
    monkeypatch.setattr(workshop, "run_step", run_here)
    found = copy.copy(prepared)
    for name in ("gates", "tried", "parity", "scores", "graphs", "candidates"):
        setattr(found, name, copy.deepcopy(getattr(prepared, name)))
    found.folder, found.shipment = tmp_path, tmp_path / "shipment"
    shutil.copytree(prepared.shipment, found.shipment)
    return found


def outcomes(work: Workshop) -> list[tuple[str, str]]:
    return [(attempt.precision, attempt.outcome) for attempt in work.tried]
