"""What a task of one's own does wrong in a loader process is an error that names it, with the sample."""

import re
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from contracts.artifacts import ShardManifest
from contracts.config import RunConfig
from contracts.errors import ConfigError
from tests.trainer.data.conftest import evaluation_batches, request
from trainer.data.loader import SlotDataset, make_loader, read_slots
from trainer.data.reader import ShardReader
from trainer.tasks.load import calling, load_task
from trainer.tasks.protocol import Task


def config_of(name: str) -> RunConfig:
    return RunConfig.model_validate({"task": {"name": f"tests.trainer.tasks.wrong:{name}"}})


def make_task(shards: str, name: str) -> Task:
    return load_task(config_of(name), ShardManifest.load(shards))


def dataset(shards: str, name: str) -> SlotDataset:
    return SlotDataset(ShardReader(shards, ShardManifest.load(shards), "train"), make_task(shards, name), seed=3)


@pytest.mark.parametrize("num_workers", [0, 1])
def test_a_prepare_that_fails_is_named_with_shard_and_sample(small_shards: str, num_workers: int) -> None:
    data = dataset(small_shards, "FailsOnSample")
    labels = [data.reader.sample(place)["label"] for place in range(len(data.reader))]
    good, bad = labels.index(0), labels.index(1)
    loader = make_loader(
        data, [request(good), request(good, bad)], num_workers=num_workers, prefetch_factor=2, pin_memory=False
    )
    slots = read_slots(loader)
    assert next(slots).batch["label"].tolist() == [0]
    with pytest.raises(ConfigError) as caught:
        next(slots)
    place = data.reader.describe(bad)
    assert re.fullmatch(r"shard train-\S+, sample [0-9a-f]{32} \(green/\d+\.png\)", place)
    assert f"prepare failed on {place}: KeyError: 'no such colour' ({Path(__file__).parent}" in caught.value.given
    assert re.search(r"wrong\.py, line \d+\)$", caught.value.given)
    assert "every sample of the shards" in caught.value.allowed and "without this sample" in caught.value.todo


def test_a_prepare_that_fails_in_evaluation_is_named_too(small_shards: str) -> None:
    manifest = ShardManifest.load(small_shards)
    task = make_task(small_shards, "FailsOnSample")
    with pytest.raises(
        ConfigError, match=r"prepare failed on shard test-\S+, sample [0-9a-f]{32} \(green/\d+\.png\): Key"
    ):
        list(evaluation_batches(small_shards, manifest, "test", task, 4))


@pytest.mark.parametrize(
    ("name", "given", "todo"),
    [
        (
            "FailsOnBatch",
            r"collate failed on 2 samples: ValueError: no two are alike \(.*wrong\.py, line \d+\); {}$",
            "correct",
        ),
        ("ReturnsList", "collate returned a list$", "return for example {'images'"),
        ("ReturnsNoTensors", r"collate returned a dictionary without tensors \(x, names\)", "torch.stack"),
    ],
)
def test_a_collate_that_makes_no_batch_is_refused(small_shards: str, name: str, given: str, todo: str) -> None:
    with pytest.raises(ConfigError) as caught:
        dataset(small_shards, name).read(request(0, 1))
    given = given.format(r"samples: \w+/\d+\.png, \w+/\d+\.png") if "{}" in given else given
    assert re.search(given, caught.value.given) and todo in caught.value.todo and caught.value.allowed


def test_a_to_model_that_makes_no_batch_is_refused(small_shards: str) -> None:
    task = make_task(small_shards, "KeepsNames")
    with pytest.raises(ConfigError, match=r"to_model returned a str as \['names'\]\[1\]"):
        list(evaluation_batches(small_shards, ShardManifest.load(small_shards), "test", task, 4))


def test_a_to_model_that_fails_in_evaluation_is_named(small_shards: str) -> None:
    config, manifest = config_of("FailsOnDevice"), ShardManifest.load(small_shards)
    task = load_task(config, manifest)
    with pytest.raises(ConfigError, match=r"to_model failed: ValueError: no such device \(.*wrong\.py, line"):
        list(evaluation_batches(small_shards, manifest, "test", task, 4, calling=partial(calling, config)))


def test_random_numbers_are_those_of_sample_and_slot(small_shards: str) -> None:
    """Whatever was drawn before, and whether a task asks for them in `prepare` or in `collate`."""
    data = dataset(small_shards, "Small")
    drawn: dict[str, list[Any]] = {"prepare": [], "collate": []}

    def prepare(sample: Any, mode: Any) -> Any:
        drawn["prepare"].append(mode.random.random(2).tolist())
        return 1.0, sample["label"]

    def collate(samples: Any, mode: Any) -> Any:
        drawn["collate"].append(mode.random.random(2).tolist())
        return {"x": torch.zeros(len(samples), 4)}

    data.task.prepare, data.task.collate = prepare, collate  # type: ignore[method-assign]
    for slot in (request(3, 7), request(7), request(7, epoch=1), request(7, step=1), request(7, slot=1)):
        data.read(slot)
    three, first, again, later, step, slot_1 = drawn["prepare"]
    assert first == again == step == slot_1 and three != first != later
    one, same, epoch, other_step, other_slot = drawn["collate"]
    assert one == same == epoch and len({str(values) for values in (one, other_step, other_slot)}) == 3
