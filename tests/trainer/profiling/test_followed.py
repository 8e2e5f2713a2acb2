"""A finished training keeps the profile that it followed, whatever has changed since that changes no training."""

import json
from pathlib import Path
from typing import Any

import pytest

from contracts import storage
from contracts.artifacts import MANIFEST_NAME, CheckpointManifest, Contract, ProfileChoice, ProfilePoint, ProfileReport
from contracts.config import RunConfig
from contracts.fingerprint import combine, model_fingerprint, train_inputs
from contracts.stage import run_stage
from tests.conftest import small_config
from tests.trainer.checkpoint.attempts import manifest
from trainer.profiling.followed import find_followed
from trainer.profiling.task import execute
from trainer.tasks.shard_checks import load_shards
from trainer.weights.source import find_source


def config(**sections: Any) -> RunConfig:
    values = small_config(**sections)
    return RunConfig.model_validate({name: value for name, value in values.items() if name != "sharding"})


def publish(line: Path, stage: str, document: Contract) -> str:
    uri = storage.join(storage.normalise(line), stage, document.fingerprint)
    storage.publish(storage.join(uri, MANIFEST_NAME), document.to_json())
    return uri


def report(fingerprint: str, of: RunConfig, points: int = 1, **changes: Any) -> ProfileReport:
    point = ProfilePoint(slot_size=4, slots_per_rank=2, num_workers=0, samples_per_s=123.0)
    values: dict[str, Any] = {
        "fingerprint": fingerprint,
        "model_fingerprint": model_fingerprint(of),
        "shards_fingerprint": "s",
        "hardware": {},
        "torch_version": "2",
        "ranks": 2,
        "threads_per_rank": 1,
        "global_batch_size": 16,
        "points": [point] * points,
        "choice": ProfileChoice(slot_size=4, slots_per_rank=2, num_workers=0, reason="r"),
    }
    return ProfileReport(**(values | changes))


def trained(of: RunConfig, *, weights: str = "", shards: str = "s", **changes: Any) -> CheckpointManifest:
    made_from = train_inputs(of, shards=shards, weights=weights)
    values = {"fingerprint": combine(made_from), "made_from": made_from, "finished": True, **changes}
    return manifest(5).model_copy(update=values)


def found(line: Path, of: RunConfig) -> str | None:
    followed = find_followed(storage.normalise(line / "profile"), of, shards="s")
    return followed.report.fingerprint if followed else None


def test_the_report_that_a_finished_training_followed_is_taken(tmp_path: Path) -> None:
    publish(tmp_path, "train", trained(config(), profile="bb"))
    for name in ("aa", "bb", "cc"):
        publish(tmp_path, "profile", report(name, config(), points=9 if name == "cc" else 1))
    assert found(tmp_path, config()) == "bb"
    # What changes no training.
    assert found(tmp_path, config(resources={"ranks": 3}, profile={"budget_s": 7}, data={"num_workers": 1})) == "bb"
    # What changes it.
    assert found(tmp_path, config(train={"epochs": 7})) is None
    assert find_followed(storage.normalise(tmp_path / "profile"), config(), shards="others") is None


@pytest.mark.parametrize("named", ["", "gone"])
def test_where_it_is_not_known_another_of_this_network_and_these_shards_is_taken(tmp_path: Path, named: str) -> None:
    publish(tmp_path, "train", trained(config(), profile=named))
    assert found(tmp_path, config()) is None
    publish(tmp_path, "profile", report("dd", config(), shards_fingerprint="others"))
    publish(tmp_path, "profile", report("ee", config(), model_fingerprint="another"))
    assert found(tmp_path, config()) is None
    publish(tmp_path, "profile", report("aa", config(), points=2))
    publish(tmp_path, "profile", report("bb", config(), points=1))
    assert found(tmp_path, config()) == "aa"


def test_a_training_that_is_not_finished_or_damaged_keeps_nothing(tmp_path: Path) -> None:
    publish(tmp_path, "profile", report("aa", config()))
    assert found(tmp_path, config()) is None
    publish(tmp_path, "train", trained(config(), profile="aa", finished=False))
    assert found(tmp_path, config()) is None


def test_a_training_from_weights_is_that_of_their_content(tmp_path: Path) -> None:
    path = tmp_path / "w.safetensors"
    path.write_bytes(b"content")
    of = config(model={"weights": str(path)})
    publish(tmp_path, "profile", report("aa", of))
    publish(tmp_path, "train", trained(config(), profile="aa"))
    assert found(tmp_path, of) is None
    # The first of a line has none to start from.
    assert found(tmp_path, config(model={"weights": "previous"})) == "aa"
    publish(tmp_path, "train", trained(of, weights=find_source(storage.normalise(path)).sha256(), profile="aa"))
    assert found(tmp_path, of) == "aa"
    assert found(tmp_path, config(model={"weights": str(path)}, train={"epochs": 7})) is None
    path.write_bytes(b"changed")
    assert found(tmp_path, of) is None
    path.unlink()
    assert found(tmp_path, of) is None


def test_the_stage_reuses_it_says_why_and_measures_where_it_is_told_to(
    small_shards: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Off, so that nothing is measured where nothing is reused."""
    of = config(profile={"method": "off"}, resources={"ranks": 1})
    shards = load_shards(small_shards, of, ranks=1).fingerprint
    kept = publish(tmp_path / "line", "profile", report("bb", of, shards_fingerprint=shards))
    publish(tmp_path / "line", "train", trained(of, shards=shards, profile="bb"))
    text = of.model_dump_json(
        include={"run", "data", "model", "train", "parallel", "checkpoint", "profile", "resources"}
    )

    def profile(*arguments: str) -> str:
        options = ["--shards", small_shards, "--config-json", json.dumps(json.loads(text)), *arguments]
        assert run_stage("profile", execute, options) == 0
        return capfd.readouterr().out.splitlines()[-1]

    line = ["--line", storage.normalise(tmp_path / "line")]
    assert run_stage("profile", execute, ["--shards", small_shards, "--config-json", text, *line]) == 0
    said = capfd.readouterr()
    assert said.out.splitlines()[-1] == kept
    assert "bb is reused, as the training in " in said.err and "--fresh measures again" in said.err
    own = profile("--output", str(tmp_path / "own"))
    assert own == storage.normalise(tmp_path / "own") and ProfileReport.load(own).method == "off"
    again = profile(*line, "--fresh")
    assert again != kept and ProfileReport.load(again).method == "off"
