"""Trainings that start from weights: real stage commands under torchrun, two processes and gloo."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from contracts import storage
from contracts.artifacts import CheckpointManifest
from contracts.config import RunConfig
from contracts.events import EventLog
from contracts.own_code import append_code
from contracts.previous import describe_previous
from contracts.stage import Stage
from tests.conftest import OWN_CODE, small_config
from tests.trainer import one_rank
from tests.trainer.test_task import logs, run
from trainer.checkpoint.loading import load_model_state
from trainer.finish import finish
from trainer.parallel.process_group import Rank
from trainer.weights.previous import find_initial_weights

# Ranks start sooner than with a network of transformers.
PLAIN: dict[str, Any] = {"architecture": "models_for_tests:without_batchnorm", "arguments": {}}
# Slow enough that a step does not undo what it started from.
SLOW = {"train": {"epochs": 1, "learning_rate": 1e-5, "warmup_fraction": 0.0}}


@pytest.fixture(scope="module")
def trained(rank: Rank, small_shards: str, tmp_path_factory: pytest.TempPathFactory) -> str:
    """URI of a finished training of two epochs, with averages of its weights."""
    append_code(OWN_CODE)
    folder = tmp_path_factory.mktemp("line")
    one_rank.train(rank, folder, small_shards, small_config(model=PLAIN, train={"ema_decay": 0.9}))
    return storage.normalise(folder / "out")


def difference(uri: str, other_uri: str, names: str = "") -> float:
    """Return the largest difference between tensors of two trainings."""
    first, second = (load_model_state(at, CheckpointManifest.load(at)) for at in (uri, other_uri))
    assert set(first) == set(second)
    return max(
        float((first[n].float() - second[n].float()).abs().max()) for n in first if names in n and "num_b" not in n
    )


def test_a_training_starts_from_another_one(trained: str, small_shards: str, tmp_path: Path) -> None:
    train = {**SLOW["train"], "global_batch_size": 64}
    config = small_config(train=train, model={**PLAIN, "weights": trained}, parallel={"strategy": "fsdp"})
    done = run(tmp_path, small_shards, "a", config)
    assert done.returncode == 0, done.stderr
    uri = done.stdout.splitlines()[-1]
    report = CheckpointManifest.load(uri).initial
    assert report is not None
    assert (report.kind, report.matched_fraction, report.missing) == ("checkpoint", 1.0, [])
    assert report.head == ["7.weight", "7.bias"] and report.head_taken
    assert "taken, for the same classes" in logs(tmp_path, "a")
    # The averages are the result of that training, and both ranks began with them.
    assert difference(uri, trained, "weight") < 1e-3
    assert CheckpointManifest.load(uri).made_from["weights"] == report.sha256


def test_it_is_resumed_with_what_it_started_from_gone(
    rank: Rank, trained: str, small_shards: str, tmp_path: Path
) -> None:
    """The resume has the same bits, and needs the weights no more."""
    source = tmp_path / "source"
    shutil.copytree(storage.local_path(trained), source)
    config = small_config(model={**PLAIN, "weights": storage.normalise(source)}, checkpoint={"every_steps": 2})
    undisturbed = one_rank.train(rank, tmp_path / "one", small_shards, config)
    with pytest.raises(one_rank.Crash):
        one_rank.train(rank, tmp_path / "two", small_shards, config, crash_at=3)
    hidden = source.rename(tmp_path / "hidden")
    place = storage.normalise(hidden)
    resumed = one_rank.make_training(rank, tmp_path / "two", small_shards, config, "b", weights_at=place)
    resumed.run()
    finish(resumed)
    found = CheckpointManifest.load(storage.normalise(tmp_path / "two" / "out"))
    assert "continues from" in one_rank.logs(tmp_path / "two", "b")
    assert found.parameters_sha256 == undisturbed.parameters_sha256
    assert found.initial == undisturbed.initial is not None


def stage_of(root: Path, config: dict[str, Any], *, attempt: str, fresh: bool = False) -> Stage:
    parsed = RunConfig.model_validate(config)
    events = EventLog(root / "attempts" / attempt, stage="train", attempt=attempt)
    return Stage("train", parsed, events, attempt, root=storage.normalise(root), fresh=fresh)


def test_previous_is_the_newest_of_the_line_and_does_not_train_again(trained: str, tmp_path: Path) -> None:
    root, config = tmp_path / "line" / "train", small_config(model={"weights": "previous"})

    def look(attempt: str, inputs: dict[str, str], *, fresh: bool = False) -> tuple[str, dict[str, str]]:
        found, made_from = find_initial_weights(stage_of(root, config, attempt=attempt, fresh=fresh), inputs)
        return found.model.weights, made_from

    assert look("a", {"shards": "1"}) == ("", {"shards": "1"})
    document = CheckpointManifest.load(trained)
    uris = {}
    for name, made_from, ended in (
        ("old", {"shards": "1"}, "2026-01-01T00:00:00Z"),
        ("new", {"shards": "2", "weights": "w"}, "2026-01-02T00:00:00Z"),
    ):
        shutil.copytree(storage.local_path(trained), root / name)
        changed = document.model_copy(update={"made_from": made_from, "finished_at": ended})
        (root / name / "manifest.json").write_bytes(changed.to_json())
        uris[name] = storage.normalise(root / name)
    # Equal inputs, whatever it started from: it stands.
    assert look("b", {"shards": "1"})[1] == {"shards": "1"}
    assert look("b", {"shards": "2"})[1] == {"shards": "2", "weights": "w"}
    weights, made_from = look("b", {"shards": "3"})
    assert weights == uris["new"] and set(made_from) == {"shards", "weights"}
    assert look("b", {"shards": "2"}, fresh=True)[0] == uris["new"]
    # What the first task of a run has recorded holds, whatever was finished since.
    (tmp_path / "line" / "runs" / "c").mkdir(parents=True)
    start = tmp_path / "line" / "runs" / "c" / "run-start.json"
    start.write_text(json.dumps(describe_previous(RunConfig.model_validate(config), storage.normalise(tmp_path))))
    assert look("c", {"shards": "3"})[0] == ""
    start.write_text(json.dumps({"previous_training": uris["old"]}))
    assert look("c", {"shards": "3"})[0] == uris["old"]
