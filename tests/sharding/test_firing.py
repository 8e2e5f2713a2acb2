"""A schedule's firing: whether the source has anything that the newest run that succeeded did not have."""

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from contracts import storage
from contracts.artifacts import RunRecord, StageRecord
from contracts.artifacts.firing import FIRING_NAME, Firing
from contracts.config import RunConfig
from contracts.pinned import pin
from contracts.result import RESULTS_FOLDER, RUN_START_NAME, run_uri
from sharding.firing import main

LAST, RUN = "line-20261123060000", "line-20261130060000"


def config_of(source: Path | str, **when: Any) -> RunConfig:
    sharding = {"source": str(source), "target_shard_bytes": 4096, "max_rejected_fraction": 0.5}
    schedule = {"cron": "0 6 * * 1", "when": when}
    return RunConfig.model_validate({"sharding": sharding, "schedule": schedule, "validate": {"least_samples": 20}})


def leave_record(line: str, config: RunConfig, shards: str, *, run: str = LAST, state: str = "succeeded") -> None:
    record = RunRecord.model_validate(
        {
            "fingerprint": "0",
            "id": run,
            "state": state,
            "started_at": f"{run[5:9]}-{run[9:11]}-{run[11:13]}T06:00:00Z",
            "config": config.model_dump(mode="json"),
            "stages": [StageRecord(name="shard", state="done", uri=shards)],
            "wall_s": 1.0,
            "kfp_s": 0.0,
            "process_start_s": 0.0,
            "results": {},
        }
    )
    storage.replace(storage.join(run_uri(line, run), "run.json"), record.to_json())
    storage.replace(storage.join(line, "run.json"), record.to_json())


def fire(line: str, config: RunConfig, *, scheduled_at: str = "2026-11-30T06:00:00Z") -> Firing:
    """Run the task as the pipeline does; return what it has left, which is what it gave out."""
    start = json.dumps({"id": RUN, "scheduled_at": scheduled_at}).encode()
    storage.replace(storage.join(run_uri(line, RUN), RUN_START_NAME), start)
    content, verdict = config.model_dump_json().encode(), storage.local_path(line) / "verdict"
    uri = storage.join(line, "configs", "c.json")
    storage.replace(uri, content)
    words = ["--line", line, "--run", RUN, "--config", pin(uri, hashlib.sha256(content).hexdigest())]
    assert main([*words, "--data-date", "2026-11-30T06:00:00+00:00", "--write-verdict", str(verdict)]) == 0
    where = storage.join(run_uri(line, RUN), RESULTS_FOLDER, FIRING_NAME)
    if not storage.exists(where):
        return Firing(verdict="go", reason=f"given out: {verdict.read_text()}")
    firing = Firing.model_validate_json(storage.read_bytes(where))
    assert verdict.read_text() == firing.verdict
    return firing


def test_a_firing_goes_on_for_what_is_new_alone(
    tmp_path: Path, source: Path, run_shard: Any, make_image: Any, write_file: Any
) -> None:
    line = storage.normalise(tmp_path / "line")
    # One that cannot be read counts on both sides: it is no new sample at the next firing.
    write_file(source, b"ant/broken.png", b"no image")
    config = config_of(source, new_samples=5)
    shards = storage.normalise(run_shard(max_rejected_fraction=0.5).folder)

    assert fire(line, config).reason == "no run of the line has succeeded yet"
    leave_record(line, config, shards)
    nothing = fire(line, config)
    assert (nothing.verdict, nothing.since, nothing.samples, nothing.samples_before) == ("nothing to do", LAST, 61, 61)
    assert nothing.new == 0
    assert nothing.reason == f"the source is as run {LAST} found it"
    # By hand it runs all the same; and so it does when what decides results was changed.
    assert fire(line, config, scheduled_at="").reason == "it was started by hand"
    longer = config.model_copy(update={"train": config.train.model_copy(update={"epochs": 3})})
    assert fire(line, longer).reason == f"the configuration is not that of run {LAST}: section train"
    assert fire(line, config_of(source, new_samples=1)).verdict == "nothing to do", "its schedule alone was changed"

    for number in range(4):
        write_file(source, f"ant/new-{number}.png".encode(), make_image(100 + number, "png"))
    few = fire(line, config)
    assert (few.verdict, few.samples) == ("nothing to do", 65)
    assert few.reason == f"4 new or changed samples beside the 61 of run {LAST}, and schedule.when.new_samples=5"
    assert fire(line, config_of(source, new_samples=4)).verdict == "go"
    assert fire(line, config_of(source, new_share=0.07)).verdict == "nothing to do"
    share = fire(line, config_of(source, new_share=0.06))
    assert share.reason == "4 new or changed samples beside 61; schedule.when.new_share=0.06"
    # What was changed in its place counts, and what is gone does not.
    write_file(source, b"bee/01.jpg", make_image(300, "jpg"))
    (source / "cow" / "02.png").unlink()
    changed = fire(line, config)
    assert (changed.verdict, changed.new, changed.samples) == ("go", 5, 64)

    # A run that failed since then has not trained on it; one that had nothing to do is no run to compare with.
    config = config_of(source, new_samples=50)
    leave_record(line, config, shards + "x", run="line-20261124060000", state="failed")
    assert fire(line, config).since == LAST
    leave_record(line, config, shards + "x", run="line-20261125060000", state="nothing to do")
    assert fire(line, config).since == LAST


def test_a_source_with_a_date_is_that_of_the_firings_day(tmp_path: Path, source: Path, run_shard: Any) -> None:
    line = storage.normalise(tmp_path / "line")
    source.rename(tmp_path / "raw-2026-11-30")
    # As it was submitted, and as records have it.
    config = config_of(f"{tmp_path}/raw-{{date}}", new_samples=1)
    shards = run_shard(source=f"{tmp_path}/raw-2026-11-30").folder
    leave_record(line, config, storage.normalise(shards))
    found = fire(line, config)
    assert (found.verdict, found.samples) == ("nothing to do", 60), found.reason


def test_a_firing_sees_classes_that_came_went_and_moved(
    tmp_path: Path, source: Path, run_shard: Any, make_image: Any, write_file: Any
) -> None:
    line = storage.normalise(tmp_path / "line")
    config = config_of(source, drift=True, new_samples=1000)
    leave_record(line, config, storage.normalise(run_shard().folder))
    write_file(source, b"bee/one.png", make_image(100, "png"))
    assert "schedule.when.drift=True" in fire(line, config).reason
    for number in range(150):
        write_file(source, f"bee/{number}-new.png".encode(), make_image(200 + number, "png"))
    assert fire(line, config_of(source, new_samples=1000)).verdict == "nothing to do"
    moved = fire(line, config)
    assert moved.verdict == "go" and "; shares of classes moved: excess PSI 0." in moved.reason
    for number in range(9):
        write_file(source, f"dog/{number}.png".encode(), make_image(400 + number, "png"))
    for path in (source / "ant").iterdir():
        path.unlink()
    (source / "ant").rmdir()
    assert "; new classes: dog; classes that are gone: ant; shares of classes" in fire(line, config).reason


def test_what_cannot_be_known_leaves_no_training_out(
    tmp_path: Path, source: Path, run_shard: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    """The stages meet the same error, and end the run with it."""
    line = storage.normalise(tmp_path / "line")
    config = config_of(source, new_samples=5)
    shards = run_shard().folder
    leave_record(line, config, storage.normalise(shards))
    (shards / "manifest.json").unlink()
    assert fire(line, config).reason == "given out: go"
    assert "holds no manifest.json" in capsys.readouterr().err
