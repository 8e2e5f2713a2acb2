"""What a task counts besides samples, and the longest samples: in training and in the profiling run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from contracts.artifacts import Settings
from contracts.config import RunConfig
from contracts.errors import ConfigError
from tests.conftest import small_config
from tests.own_code.words import Words
from tests.trainer.one_rank import make_training, one_rank
from tests.trainer.test_task import run
from tests.trainer.texts import text_of, words_config, write_shards
from trainer.finish import finish
from trainer.profiling.measure import ComputeTime, JointRate
from trainer.profiling.probe import RankProbe
from trainer.tasks.optional import count_units, largest_example, unit_of

TRAIN = 48


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_shards(tmp_path_factory.mktemp("texts"), train=TRAIN)


def configuration(arguments: dict[str, Any] | None = None, **sections: Any) -> dict[str, Any]:
    own = words_config(arguments=arguments or {})
    values = small_config(**{"train": {"global_batch_size": 8, "epochs": 2}, **sections})
    return {**values, **own, "model": {}, "data": {"num_workers": values["data"].get("num_workers", 0)}}


class Counts(Words):
    def __init__(self, unit: Any, found: Any) -> None:
        super().__init__(None)
        self.unit, self.count_units = unit, found  # type: ignore[method-assign]


def fails(batch: Any) -> int:
    raise KeyError("mask")


def test_a_task_counts_its_unit() -> None:
    task = Words(None)
    batch = task.collate([(torch.ones(5), 0), (torch.ones(12), 1)], None)
    assert (unit_of(task), count_units(task, batch)) == ("tokens", 17)
    assert (unit_of(Counts("", None)), count_units(Counts("", None), batch)) == ("", 0)  # type: ignore[arg-type]
    for unit, found in (("tokens", None), ("", len), ("samples", len), ("Tokens", len), (7, len)):
        with pytest.raises(ConfigError, match=r"unit of the task is"):
            unit_of(Counts(unit, found))  # type: ignore[arg-type]
    for count, words in (
        (fails, "failed: KeyError"),
        (lambda _: -1, "returned -1"),
        (lambda _: 0.5, "returned a float"),
    ):
        with pytest.raises(ConfigError, match=f"count_units of the task {words}"):
            count_units(Counts("tokens", count), batch)  # type: ignore[arg-type]


def test_the_largest_example_is_the_task_s_own_or_the_example_s_inputs() -> None:
    task = Words(None)
    assert {name: list(one.shape) for name, one in largest_example(task, 3).items()} == {
        "tokens": [3, 64],
        "mask": [3, 64],
        "label": [3],
    }
    task.largest_example = lambda size: {"size": size}  # type: ignore[attr-defined]
    assert largest_example(task, 3) == {"size": 3}  # type: ignore[comparison-overlap]


def test_training_tells_tokens_beside_samples(shards: str, tmp_path: Path) -> None:
    """Of one epoch a report: what it counted is every token once, whatever slots are padded to."""
    with one_rank() as rank:
        training = make_training(rank, tmp_path, shards, configuration())
        said: list[str] = []
        training._show_progress = lambda words, step: said.append(words)  # type: ignore[method-assign,misc,assignment]
        training.run()
        finish(training)
    (board,) = (path.parent for path in tmp_path.rglob("*tfevents*") if "train" in path.read_bytes().decode("latin-1"))
    scalars = EventAccumulator(str(board)).Reload()
    rates = {tag: scalars.Scalars(f"train/{tag}_per_s") for tag in ("samples", "tokens")}
    assert len(rates["tokens"]) == len(rates["samples"]) == 2
    tokens = sum(len(text_of(number)) for number in range(TRAIN))
    for samples, found in zip(rates["samples"], rates["tokens"], strict=True):
        assert found.value / samples.value == pytest.approx(tokens / TRAIN, rel=1e-4)
    assert any(" tokens/s" in words for words in said), said


def test_the_profile_tries_memory_on_the_longest_samples_and_counts_units(shards: str) -> None:
    """Texts have 64 letters at most, and samples may have 32,768: of a slot of these 64 take half a GB."""
    values = configuration({"longest": 1 << 15, "positions": 1 << 15})
    values |= {"parallel": {"slot_size": "auto"}, "data": {"num_workers": "auto"}, "profile": {"window_s": 0.05}}
    # Its processes import no copy of own code.
    values |= {"task": {**values["task"], "name": "tests.own_code.words:Words"}, "code": {}}
    del values["sharding"]
    with RankProbe(RunConfig.model_validate(values), shards=shards, ranks=1, threads=1) as running:
        assert not running.device.compiles
        assert not running.device.has_layout and not running.device.has_images
        small, large = (running.compute(Settings(slot_size=size, num_workers=0)) for size in (2, 8))
        assert isinstance(small, ComputeTime) and isinstance(large, ComputeTime)
        assert small.memory_bytes and large.memory_bytes
        assert large.memory_bytes - small.memory_bytes > 6 * (2 << 20)
        found = running.run([Settings(slot_size=4, slots_per_rank=2, num_workers=1)], rounds=2)[0]
        assert isinstance(found, JointRate) and 10 < found.units_per_sample["tokens"] < 60


def test_a_loader_that_is_forked_waits_for_no_thread_of_a_tokenizer(
    shards: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the environment says: with threads of the library the first text of a loader process never ends."""
    monkeypatch.setenv("TOKENIZERS_PARALLELISM", "true")
    config = configuration(data={"num_workers": 1}, train={"global_batch_size": 8, "epochs": 1})
    config["task"] = {"name": "encoded:Encoded"}
    done = run(tmp_path, shards, "a", config)
    assert done.returncode == 0, done.stderr
