"""Trainings that start from weights: real stage commands under torchrun, two processes and gloo."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from contracts import storage
from contracts.artifacts import CheckpointManifest
from contracts.config import STAGE_KEYS, RunConfig
from contracts.events import EVENTS_NAME, EventLog, EventReader
from contracts.previous import describe_previous
from contracts.stage import Stage, run_stage
from tests.conftest import small_config
from tests.trainer import one_rank as one_rank_module
from tests.trainer.one_rank import make_training, one_rank
from trainer.checkpoint.loading import load_model_state
from trainer.finish import finish
from trainer.profiling.task import execute as profile
from trainer.task import execute as train
from trainer.weights.previous import find_initial_weights, with_arguments_of_weights

# Slow enough that a step does not undo what it started from.
SLOW = {"train": {"epochs": 1, "learning_rate": 1e-5, "warmup_fraction": 0.0}}


def run(root: Path, shards: str, config: dict[str, Any], *, code: int = 0, attempt: str = "a") -> str:
    """Run the train stage; return the last line of its stdout, or what it says on stderr."""
    sections = {name: config[name] for name in STAGE_KEYS["train"] if name in config}
    options = ["--root", str(root), "--shards", shards, "--attempt", attempt, "--config-json", json.dumps(sections)]
    command = [sys.executable, "-m", "trainer.task", *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == code, done.stderr
    return done.stderr if code else done.stdout.splitlines()[-1]


def logs(root: Path, attempt: str = "a") -> str:
    told = EventReader(root / "attempts" / attempt / EVENTS_NAME).poll()
    return "\n".join(event["message"] for event in told if event["event"] == "log")


@pytest.fixture(scope="module")
def trained(small_shards: str, tmp_path_factory: pytest.TempPathFactory) -> str:
    """URI of a finished training of two epochs, with averages of its weights."""
    line = tmp_path_factory.mktemp("line")
    return run(line / "train", small_shards, small_config(train={"ema_decay": 0.9}))


def difference(uri: str, other: str, names: str = "") -> float:
    """Return the largest difference between tensors of two trainings."""
    one, two = (load_model_state(at, CheckpointManifest.load(at)) for at in (uri, other))
    assert set(one) == set(two)
    return max(float((one[n].float() - two[n].float()).abs().max()) for n in one if names in n and "num_b" not in n)


def test_a_training_starts_from_another_one(trained: str, small_shards: str, tmp_path: Path) -> None:
    train = {**SLOW["train"], "global_batch_size": 64}
    config = small_config(train=train, model={"weights": trained}, parallel={"strategy": "fsdp"})
    uri = run(tmp_path, small_shards, config)
    report = CheckpointManifest.load(uri).initial
    assert report is not None
    assert (report.kind, report.matched_fraction, report.missing) == ("checkpoint", 1.0, [])
    assert report.head == ["classifier.1.weight", "classifier.1.bias"] and report.head_taken
    assert "taken, for the same classes" in logs(tmp_path)
    # The averages are the result of that training, and both ranks began with them.
    assert difference(uri, trained, "weight") < 1e-3
    assert CheckpointManifest.load(uri).made_from["weights"] == report.sha256


def test_it_is_resumed_with_what_it_started_from_gone(trained: str, small_shards: str, tmp_path: Path) -> None:
    """The resume has the same bits, and needs the weights no more."""
    source = tmp_path / "source"
    shutil.copytree(storage.local_path(trained), source)
    config = small_config(model={"weights": storage.normalise(source)}, checkpoint={"every_steps": 2})
    with one_rank() as rank:
        undisturbed = one_rank_module.train(rank, tmp_path / "one", small_shards, config)
        with pytest.raises(one_rank_module.Crash):
            one_rank_module.train(rank, tmp_path / "two", small_shards, config, crash_at=3)
        hidden = source.rename(tmp_path / "hidden")
        resumed = make_training(rank, tmp_path / "two", small_shards, config, "b", weights_at=storage.normalise(hidden))
        resumed.run()
        finish(resumed)
    found = CheckpointManifest.load(storage.normalise(tmp_path / "two" / "out"))
    assert "continues from" in one_rank_module.logs(tmp_path / "two", "b")
    assert found.parameters_sha256 == undisturbed.parameters_sha256
    assert found.initial == undisturbed.initial is not None


def stage_of(root: Path, config: dict[str, Any], *, attempt: str, fresh: bool = False) -> Stage:
    parsed = RunConfig.model_validate(config)
    events = EventLog(root / "attempts" / attempt, stage="train", attempt=attempt)
    return Stage("train", parsed, events, attempt, root=storage.normalise(root), fresh=fresh)


def test_the_content_of_weights_names_the_training(trained: str, tmp_path: Path) -> None:
    path, copied, changed = tmp_path / "a.safetensors", tmp_path / "b.safetensors", tmp_path / "c.pt"
    shutil.copy(storage.local_path(trained) / "model.safetensors", path)
    shutil.copy(path, copied)
    torch.save({name: tensor + 1 for name, tensor in load_file(path).items()}, changed)
    found = []
    for at in (path, copied, changed):
        config, made_from = find_initial_weights(
            stage_of(tmp_path, small_config(model={"weights": str(at)}), attempt=at.stem), {"shards": "s"}
        )
        assert config.model.weights == storage.normalise(at) and made_from["shards"] == "s"
        found.append(made_from["weights"])
    assert found[0] == found[1] != found[2]


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


def test_weights_that_cannot_be_used_end_all_ranks_with_exit_code_2(small_shards: str, tmp_path: Path) -> None:
    path = tmp_path / "weights.pt"
    torch.save({"other": torch.zeros(4)}, path)
    said = run(tmp_path / "train", small_shards, small_config(model={"weights": str(path)}), code=2)
    assert "has 0.00 of the network's elements" in said and "allowed: at least 0.5 of them" in said


@pytest.mark.parametrize(("name", "execute"), [("train", train), ("profile", profile)])
def test_arguments_of_weights_are_those_of_the_stage(
    small_shards: str, tmp_path: Path, capfd: pytest.CaptureFixture[str], name: str, execute: Any
) -> None:
    from transformers import AutoConfig, AutoModelForImageClassification

    small, saved = small_config()["model"]["arguments"], tmp_path / "saved"
    with torch.random.fork_rng():
        AutoModelForImageClassification.from_config(AutoConfig.for_model("resnet", **small)).save_pretrained(saved)
    root, config = tmp_path / "line" / name, small_config(model={"weights": str(saved), "arguments": {}})

    def folder_of(**model: Any) -> str:
        """Return where the stage's output is, which its whole configuration names."""
        sections = small_config(model={"weights": str(saved), **model})
        given = json.dumps({each: sections[each] for each in STAGE_KEYS[name] if each in sections})
        arguments = ["--root", str(root), "--shards", small_shards, "--config-json", given, "--locate"]
        assert run_stage(name, execute, arguments) == 2
        return re.search(rf"{root}/\w{{16}}", capfd.readouterr().err)[0]

    stage = stage_of(root.with_name("train"), config, attempt="a")
    taken = with_arguments_of_weights(stage).model.arguments
    assert {each: taken[each] for each in small} == small and "id2label" not in taken
    assert folder_of(arguments={}) == folder_of(arguments=taken) != folder_of(arguments=small)
