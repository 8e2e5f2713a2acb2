"""The task of a configuration: classes that are no task; members that fail, named with file, line and sample."""

import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from contracts.artifacts import ShardManifest
from contracts.config import RunConfig
from contracts.errors import ConfigError, DataError, UserError
from tests.own_code.words import Words
from tests.trainer.data.conftest import evaluation_batches, request
from tests.trainer.tasks.for_tests import planned_manifest
from tests.trainer.tasks.small import Small
from trainer.data.loader import SlotDataset, count_units, make_loader, read_slots
from trainer.data.reader import ShardReader
from trainer.model.build import example_inputs
from trainer.model.numerics import Numerics
from trainer.tasks.loading import calling, load_task
from trainer.tasks.on_device import TaskOnDevice
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
        ("signature", property(fails(ValueError("no 'batch'"))), "signature failed: ValueError: no 'batch'", ""),
        ("fields", {"image": "picture"}, "fields is {'image': 'picture'}", "image, text, class"),
        ("unit", "tokens", "unit is 'tokens', and count_units is not written", "both or neither"),
    ],
)
def test_attributes_of_another_type_are_refused(
    monkeypatch: pytest.MonkeyPatch, member: str, value: Any, given: str, allowed: str
) -> None:
    monkeypatch.setattr(Small, member, value)
    with pytest.raises(ConfigError) as caught:
        load(f"{OWN}:Small")
    assert_said(caught.value, given, allowed, "correct ")


def test_a_module_that_fails_at_import_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "failing_tasks.py").write_text("import no_such_module_here")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ConfigError, match=r"task\.name 'failing_tasks:Task'"):
        load("failing_tasks:Task")


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


@pytest.mark.parametrize(
    ("example", "given"),
    [
        (fails(OSError("no such file")), rf"example of the task failed: OSError: no such file {LINE}"),
        (lambda task, size: {}, "example of the task failed: KeyError: 'x'"),
    ],
)
def test_an_example_that_is_none_is_named(monkeypatch: pytest.MonkeyPatch, example: Any, given: str) -> None:
    monkeypatch.setattr(Small, "example", example)
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


@pytest.mark.parametrize("num_workers", [0, 1])
def test_a_prepare_that_fails_is_named_with_shard_and_sample(
    small_shards: str, monkeypatch: pytest.MonkeyPatch, num_workers: int
) -> None:
    monkeypatch.setattr(Small, "prepare", fails_on_green)
    data = dataset(small_shards)
    labels = [data.reader.sample(place)["label"] for place in range(len(data.reader))]
    good, bad = labels.index(0), labels.index(1)
    requests = [request(good), request(good, bad)]
    slots = read_slots(make_loader(data, requests, num_workers=num_workers, prefetch_factor=2, pin_memory=False))
    assert next(slots).batch["label"].tolist() == [0]
    with pytest.raises(ConfigError) as caught:
        next(slots)
    place = data.reader.describe(bad)
    assert re.fullmatch(r"shard train-\S+, sample [0-9a-f]{32} \(green/\d+\.png\)", place)
    given = rf"prepare failed on {re.escape(place)}: KeyError: 'no such colour' {LINE}$"
    assert_said(caught.value, given, "every sample of the shards", "without this sample")


@pytest.mark.parametrize(
    ("member", "value", "given"),
    [
        ("prepare", fails_on_green, r"prepare failed on shard test-\S+, sample \w{32} \(green/\d+\.png\): KeyError"),
        ("to_model", fails(ValueError("no such device")), f"to_model failed: ValueError: no such device {LINE}"),
    ],
)
def test_what_fails_in_evaluation_is_named(
    small_shards: str, monkeypatch: pytest.MonkeyPatch, member: str, value: Any, given: str
) -> None:
    monkeypatch.setattr(Small, member, value)
    config, manifest = config_of(f"{OWN}:Small"), ShardManifest.load(small_shards)
    task = load_task(config, manifest)
    with pytest.raises(ConfigError, match=given):
        list(evaluation_batches(small_shards, manifest, "test", task, 4, calling=partial(calling, config)))


@pytest.mark.parametrize(
    ("value", "given", "todo"),
    [
        (fails(ValueError("no")), rf"collate failed on 2 samples: ValueError: no {LINE}; {SAMPLES}$", "correct"),
        (lambda *arguments: [], "collate returned a list$", "return for example {'images'"),
    ],
)
def test_a_collate_that_makes_no_batch_is_refused(
    small_shards: str, monkeypatch: pytest.MonkeyPatch, value: Any, given: str, todo: str
) -> None:
    monkeypatch.setattr(Small, "collate", value)
    with pytest.raises(ConfigError) as caught:
        dataset(small_shards).read(request(0, 1))
    assert_said(caught.value, given, "", todo)


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


# --- units and the largest example ------------------------------------------------------------------------------------


def test_a_task_counts_its_unit(monkeypatch: pytest.MonkeyPatch) -> None:
    task = Words(None)
    assert count_units(task, task.collate([(torch.ones(5), 0), (torch.ones(12), 1)], None)) == 17
    for value, words in ((fails(KeyError("mask")), f"failed: KeyError: 'mask' {LINE}"), (lambda *_: -1, "returned -1")):
        monkeypatch.setattr(Words, "count_units", value)
        with pytest.raises(ConfigError, match=f"count_units {words}"):
            count_units(task, {})


def test_the_largest_example_has_inputs_and_tensors_of_their_shape_at_max() -> None:
    class Tagged(Words):
        def example(self, size: int) -> Any:
            batch = super().example(size)
            return {**batch, "tags": batch["tokens"]}

    config, cpu = RunConfig(), torch.device("cpu")
    batch = TaskOnDevice(Tagged(None), config, cpu, Numerics.of(config.train)).largest_example(3)
    assert {name: list(tensor.shape) for name, tensor in batch.items()} == {
        "tokens": [3, 64],
        "mask": [3, 64],
        "tags": [3, 64],
        "label": [3],
    }
