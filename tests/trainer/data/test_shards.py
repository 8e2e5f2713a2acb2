"""Shards that cannot be trained on are refused by name, before torch starts."""

import json
import re
import shutil

import pytest

from contracts import storage
from contracts.artifacts import MANIFEST_NAME, ShardManifest
from contracts.config import DataSection, RunConfig
from contracts.errors import ConfigError, DataError
from contracts.stage import run_stage
from tests.conftest import small_config
from trainer.data.shards import load_shards
from trainer.launch.assignment import ASSIGNMENT_NAME
from trainer.profiling.task import execute as profile
from trainer.task import execute as train
from trainer.tasks.images.pixels import normalisation


def test_shards_of_another_task_are_refused_by_its_name(small_shards: str, tmp_path) -> None:
    manifest = load_shards(small_shards, RunConfig())
    changed = manifest.model_copy(update={"multi_label": True})
    (tmp_path / MANIFEST_NAME).write_bytes(changed.to_json())
    with pytest.raises(DataError, match="'label' of kind class, and the source has it as classes") as caught:
        load_shards(storage.normalise(tmp_path), RunConfig())
    assert "set task.name to image_multilabel" in caught.value.todo
    several = RunConfig.model_validate({"task": {"name": "image_multilabel"}})
    load_shards(storage.normalise(tmp_path), several)
    with pytest.raises(DataError, match="'label' of kind classes, and the source has it as class") as caught:
        load_shards(small_shards, several)
    assert "set task.name to image_classification" in caught.value.todo


def test_shards_without_a_mean_need_one_in_the_configuration(small_shards: str, tmp_path) -> None:
    manifest = load_shards(small_shards, RunConfig())
    changed = manifest.model_copy(update={"mean": None, "std": None, "verify": "none"})
    (tmp_path / MANIFEST_NAME).write_bytes(changed.to_json())
    uri = storage.normalise(tmp_path)
    with pytest.raises(ConfigError, match=r"data\.mean and data\.std"):
        load_shards(uri, RunConfig())
    with pytest.raises(ConfigError, match=r"data\.mean and data\.std"):
        load_shards(uri, RunConfig(data=DataSection(mean=[0.5] * 3)))
    data = DataSection(mean=[0.5] * 3, std=[0.25] * 3)
    assert normalisation(data, load_shards(uri, RunConfig(data=data))) == ([0.5] * 3, [0.25] * 3)


@pytest.mark.parametrize(
    ("stage", "changes", "words"),
    [
        ("train", {"format_version": 99}, "has format version 99"),
        ("train", {"splits": {"train": 0}}, "the training split of the shards in .* is empty"),
        ("profile", {"splits": {"train": 1}}, "the training split has 1 samples for 2 ranks"),
    ],
)
def test_shards_that_cannot_be_trained_on_end_a_stage_with_2_before_any_rank_starts(
    small_shards: str, tmp_path, capfd: pytest.CaptureFixture[str], stage: str, changes: dict, words: str
) -> None:
    values = json.loads(storage.read_bytes(storage.join(small_shards, MANIFEST_NAME)))
    for name, value in changes.items():
        if name == "splits":
            values["splits"]["train"]["samples"] = value["train"]
        else:
            values[name] = value
    (tmp_path / "shards").mkdir()
    (tmp_path / "shards" / MANIFEST_NAME).write_text(json.dumps(values))
    config = {name: value for name, value in small_config(resources={"ranks": 2}).items() if name != "sharding"}
    arguments = ["--output", str(tmp_path / "out"), "--shards", str(tmp_path / "shards")]
    execute = {"train": train, "profile": profile}[stage]
    assert run_stage(stage, execute, [*arguments, "--config-json", json.dumps(config)]) == 2
    assert re.search(words, capfd.readouterr().err)
    assert not list(tmp_path.rglob(ASSIGNMENT_NAME))


@pytest.mark.parametrize(
    ("stage", "harm", "words"),
    [
        ("train", "label", "has crc32c {found}, its manifest says {crc32c}"),
        ("profile", "cut", "has {cut} bytes, its manifest says {bytes}"),
    ],
)
def test_a_changed_label_in_the_index_ends_a_stage_with_2_before_any_rank_starts(
    small_shards: str, tmp_path, capfd: pytest.CaptureFixture[str], stage: str, harm: str, words: str
) -> None:
    """Images have checksums in the index; labels have that of the index alone."""
    folder = tmp_path / "shards"
    shutil.copytree(storage.local_path(small_shards), folder)
    part = ShardManifest.load(storage.normalise(folder)).index_parts[0]
    content = bytearray((folder / part.name).read_bytes())
    if harm == "label":
        content[64 + 32 * part.samples] ^= 1  # the first label, behind the header and the rows
    else:
        del content[-4:]
    (folder / part.name).write_bytes(content)
    config = {name: value for name, value in small_config().items() if name != "sharding"}
    arguments = ["--output", str(tmp_path / "out"), "--shards", str(folder)]
    execute = {"train": train, "profile": profile}[stage]
    assert run_stage(stage, execute, [*arguments, "--config-json", json.dumps(config)]) == 2
    words = words.format(found=storage.crc32c(bytes(content)), crc32c=part.crc32c, cut=len(content), bytes=part.bytes)
    assert f"{part.name} {words}" in capfd.readouterr().err
    assert not list(tmp_path.rglob(ASSIGNMENT_NAME))
