"""Shards that cannot be trained on are refused by name, before torch starts."""

import json
import re

import pytest

from contracts import storage
from contracts.artifacts import MANIFEST_NAME
from contracts.config import DataSection, RunConfig
from contracts.errors import ConfigError, DataError
from contracts.stage import run_stage
from tests.conftest import small_config
from trainer.launch.assignment import ASSIGNMENT_NAME
from trainer.profiling.task import execute as profile
from trainer.task import execute as train
from trainer.tasks.shard_checks import load_shards, normalisation


def small(**sections: object) -> RunConfig:
    return RunConfig.model_validate({"train": {"global_batch_size": 16}, **sections})


def test_shards_of_another_task_are_refused_by_its_name(small_shards: str, tmp_path) -> None:
    manifest = load_shards(small_shards, small())
    changed = manifest.model_copy(update={"multi_label": True})
    (tmp_path / MANIFEST_NAME).write_bytes(changed.to_json())
    with pytest.raises(DataError, match="'label' of kind class, and the source has it as classes") as caught:
        load_shards(storage.normalise(tmp_path), small())
    assert "set task.name to image_multilabel" in caught.value.todo
    several = small(task={"name": "image_multilabel"})
    load_shards(storage.normalise(tmp_path), several)
    with pytest.raises(DataError, match="'label' of kind classes, and the source has it as class") as caught:
        load_shards(small_shards, several)
    assert "set task.name to image_classification" in caught.value.todo


def test_shards_without_a_mean_need_one_in_the_configuration(small_shards: str, tmp_path) -> None:
    manifest = load_shards(small_shards, small())
    changed = manifest.model_copy(update={"mean": None, "std": None, "verify": "none"})
    (tmp_path / MANIFEST_NAME).write_bytes(changed.to_json())
    uri = storage.normalise(tmp_path)
    with pytest.raises(ConfigError, match=r"data\.mean and data\.std"):
        load_shards(uri, RunConfig(data=DataSection(mean=[0.5] * 3)))
    data = DataSection(mean=[0.5] * 3, std=[0.25] * 3)
    assert normalisation(data, load_shards(uri, small(data=data))) == ([0.5] * 3, [0.25] * 3)


@pytest.mark.parametrize(
    ("stage", "changes", "words"),
    [
        ("train", {"format_version": 99}, "has format version 99"),
        ("profile", {"splits": {"train": 1}}, "the training split of .* has 1 samples for 2 ranks"),
        (
            "profile",
            {"splits": {"train": 15}},
            "train.global_batch_size 16 is more than the 15 samples of the training",
        ),
        ("profile", {"splits": {"test": 0}}, "the test split of the shards is empty: an export is proven on it"),
        ("train", {"splits": {"train": 98}}, "has 98 sample.s. to calibrate with\n.*128 for export.precision int8"),
    ],
)
def test_shards_that_cannot_be_trained_on_end_a_stage_with_2_before_any_rank_starts(
    small_shards: str, tmp_path, capfd: pytest.CaptureFixture[str], stage: str, changes: dict, words: str
) -> None:
    values = json.loads(storage.read_bytes(storage.join(small_shards, MANIFEST_NAME)))
    for name, value in changes.items():
        if name == "splits":
            for split, samples in value.items():
                values["splits"][split]["samples"] = samples
        else:
            values[name] = value
    (tmp_path / "shards").mkdir()
    (tmp_path / "shards" / MANIFEST_NAME).write_text(json.dumps(values))
    sections = small_config(resources={"ranks": 2}, export={"precision": "int8"})
    config = {name: value for name, value in sections.items() if name != "sharding"}
    # Of a run, whose export follows.
    arguments = ["--output", str(tmp_path / "out"), "--shards", str(tmp_path / "shards"), "--run", "r"]
    execute = {"train": train, "profile": profile}[stage]
    assert run_stage(stage, execute, [*arguments, "--config-json", json.dumps(config)]) == 2
    assert re.search(words, capfd.readouterr().err)
    assert not list(tmp_path.rglob(ASSIGNMENT_NAME))
