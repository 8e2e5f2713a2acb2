"""The task of a configuration: classes that are no task; members that fail, named with file, line and sample."""

import re
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch

from contracts.artifacts import ShardManifest
from contracts.config import RunConfig
from contracts.errors import ConfigError, DataError, UserError
from tests.trainer.data.conftest import evaluation_batches, request
from tests.trainer.tasks.for_tests import planned_manifest
from tests.trainer.tasks.small import Small
from trainer.data.loader import SlotDataset, count_units, make_loader, read_slots
from trainer.data.reader import ShardReader
from trainer.model.build import example_inputs
from trainer.tasks.loading import calling, load_task
from trainer.tasks.task import Task

OWN = "tests.trainer.tasks.small"
LINE, SAMPLES = r"\(.*test_loading\.py, line \d+\)", r"samples: \w+/\d+\.png, \w+/\d+\.png"


def config_of(name: str, arguments: dict[str, Any] | None = None) -> RunConfig:
    return RunConfig.model_validate({"task": {"name": name, "arguments": arguments or {}}})


def load(name: str, arguments: dict[str, Any] | None = None, **changes: Any) -> Task:
    return load_task(config_of(name, arguments), planned_manifest(3, **changes))


def fails(error: Exception) -> Callable[..., Any]:
    """Return a member that fails."""

    def member(*arguments: Any, **options: Any) -> Any:
        raise error

    return member


def assert_said(error: UserError, given: str, allowed: str, todo: str) -> None:
    assert error.exit_code == 2
    for pattern, text in ((given, error.given), (allowed, error.allowed), (todo, error.todo)):
        assert text and re.search(pattern, text, re.DOTALL), (pattern, text)


def test_an_own_class_is_made_with_its_arguments() -> None:
    task = load(f"{OWN}:Small", {"scale": 2.5})
    assert isinstance(task, Small) and task.scale == 2.5


@pytest.mark.parametrize(
    ("name", "given", "todo"),
    [
        ("WIDTH", f"task.name '{OWN}:WIDTH' is no class that inherits from Task", r"\(Task\)"),
        ("LacksTwo", "class LacksTwo has no collate, loss", "write collate, loss"),
        ("Missing", f"task.name '{OWN}:Missing'", "correct the module, or the name"),
    ],
)
def test_what_is_no_task_is_refused(name: str, given: str, todo: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load(f"{OWN}:{name}")
    assert_said(caught.value, given, "", todo)


@pytest.mark.parametrize(
    ("member", "value", "given", "allowed"),
    [
        ("headline", None, "headline is a NoneType", "a str, set in the class or in __init__"),
        ("fields", {"image": "picture"}, "fields is {'image': 'picture'}", "image, text, class"),
    ],
)
def test_attributes_of_another_type_are_refused(
    monkeypatch: pytest.MonkeyPatch, member: str, value: Any, given: str, allowed: str
) -> None:
    monkeypatch.setattr(Small, member, value)
    with pytest.raises(ConfigError) as caught:
        load(f"{OWN}:Small")
    assert_said(caught.value, given, allowed, "correct ")


def test_arguments_that_a_task_does_not_take_are_named() -> None:
    with pytest.raises(ConfigError) as caught:
        load("image_classification", {"wieghts": 1})
    assert_said(
        caught.value, "{'wieghts': 1} cannot be made: TypeError: .*'wieghts'", "arguments that its class takes", ""
    )


@pytest.mark.parametrize(
    ("fields", "given", "todo"),
    [
        ({"caption": "text"}, "needs the field 'caption' of kind text, and the source has no such field", "kind: text"),
        ({"label": "number"}, "'label' of kind number, and the source has it as class", "kind: number"),
    ],
)
def test_shards_without_a_field_are_refused(
    monkeypatch: pytest.MonkeyPatch, fields: dict[str, str], given: str, todo: str
) -> None:
    monkeypatch.setattr(Small, "fields", fields)
    with pytest.raises(DataError) as caught:
        load(f"{OWN}:Small")
    assert_said(caught.value, given, r"these have image \(image\), label \(class\)", todo)


def test_an_example_that_is_none_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    given = rf"example of the task failed: OSError: no such file {LINE}"
    monkeypatch.setattr(Small, "example", fails(OSError("no such file")))
    with pytest.raises(ConfigError) as caught:
        example_inputs(load(f"{OWN}:Small"), 2)
    assert_said(caught.value, given, "each input of the signature: x", "correct example")


# --- in a loader process ----------------------------------------------------------------------------------------------


def dataset(shards: str) -> SlotDataset:
    manifest = ShardManifest.load(shards)
    return SlotDataset(ShardReader(shards, manifest, "train"), load_task(config_of(f"{OWN}:Small"), manifest), seed=3)


def fails_on_green(task: Small, sample: Any, mode: Any) -> Any:
    if sample["label"] == 1:
        raise KeyError("no such colour")
    return len(sample["image"]), sample["label"]


def test_a_prepare_that_fails_is_named_with_shard_and_sample(
    small_shards: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Small, "prepare", fails_on_green)
    data = dataset(small_shards)
    labels = [data.reader.sample(place)["label"] for place in range(len(data.reader))]
    good, bad = labels.index(0), labels.index(1)
    requests = [request(good), request(good, bad)]
    slots = read_slots(make_loader(data, requests, num_workers=1, prefetch_factor=2, pin_memory=False))
    assert next(slots).batch["label"].tolist() == [0]
    with pytest.raises(ConfigError) as caught:
        next(slots)
    place = data.reader.describe(bad)
    assert re.fullmatch(r"shard train-\S+, sample [0-9a-f]{32} \(green/\d+\.png\)", place)
    given = rf"prepare failed on {re.escape(place)}: KeyError: 'no such colour' {LINE}$"
    assert_said(caught.value, given, "every sample of the shards", "without this sample")


def test_what_fails_in_evaluation_is_named(small_shards: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Small, "to_model", fails(ValueError("no such device")))
    config, manifest = config_of(f"{OWN}:Small"), ShardManifest.load(small_shards)
    task = load_task(config, manifest)
    with pytest.raises(ConfigError, match=f"to_model failed: ValueError: no such device {LINE}"):
        list(evaluation_batches(small_shards, manifest, "test", task, 4, calling=partial(calling, config)))


def test_a_collate_that_fails_names_its_samples(small_shards: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Small, "collate", fails(ValueError("no")))
    with pytest.raises(ConfigError) as caught:
        dataset(small_shards).read(request(0, 1))
    given = rf"collate failed on 2 samples: ValueError: no {LINE}; {SAMPLES}$"
    assert_said(caught.value, given, "", "correct")


@pytest.mark.parametrize("units", [3.7, -5, True, "12"])
def test_units_that_are_no_whole_number_are_refused(monkeypatch: pytest.MonkeyPatch, units: object) -> None:
    monkeypatch.setattr(Small, "count_units", lambda *_: units)
    with pytest.raises(ConfigError, match="count_units failed"):
        count_units(Small(None), {})  # type: ignore[arg-type]


def test_random_numbers_are_those_of_sample_and_slot(small_shards: str) -> None:
    """Whatever was drawn before, from the mode and from torch's generator, in `prepare` and in `collate`."""
    data = dataset(small_shards)
    drawn: dict[str, list[Any]] = {"prepare": [], "collate": []}

    def prepare(sample: Any, mode: Any) -> Any:
        drawn["prepare"].append((mode.random.random(2).tolist(), torch.rand(2).tolist()))
        return 1.0, sample["label"]

    def collate(samples: Any, mode: Any) -> Any:
        drawn["collate"].append((mode.random.random(2).tolist(), torch.rand(2).tolist()))
        return {"x": torch.zeros(len(samples), 4)}

    data.task.prepare, data.task.collate = prepare, collate  # type: ignore[method-assign]
    before = torch.get_rng_state()
    for slot in (request(3, 7), request(7), request(7, epoch=1), request(7, step=1), request(7, slot=1)):
        data.read(slot)
    assert torch.equal(torch.get_rng_state(), before)
    three, first, again, later, step, slot_1 = drawn["prepare"]
    assert first == again == step == slot_1 and three != first != later
    one, same, epoch, other_step, other_slot = drawn["collate"]
    assert one == same == epoch and len({str(values) for values in (one, other_step, other_slot)}) == 3
