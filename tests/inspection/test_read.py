"""Runs of every kind, read into one document: what is there is shown, what is not is said."""

import errno
import hashlib
import json
import shutil
from io import StringIO
from pathlib import Path

import pytest

from contracts import storage
from contracts.config import STAGES
from contracts.errors import ConfigError
from contracts.scalars import SCALARS_FOLDER
from inspection.find import find_place, list_places
from inspection.read import read_run
from inspection.runs import list_runs
from inspection.terminal import print_run, to_json
from inspection.view import RunView
from rehearsal.gcs import BucketServer
from tests.inspection.lines import START, Planted, alive, leave_lock, plant, write_scalars


@pytest.fixture
def line(tmp_path: Path) -> Path:
    return tmp_path / "runs" / "photos"


def read(planted: Planted, *, now: float = START + 500) -> RunView:
    return read_run(find_place(str(planted.folder)), now=now)


def states(view: RunView) -> dict[str, str]:
    return {stage.name: stage.state for stage in view.stages}


def test_a_fresh_run_is_known_whole(line: Path, small_shards: str) -> None:
    view = read(plant(line, small_shards))
    assert view.state == "succeeded" and view.place == "local"
    assert set(states(view).values()) == {"done"}
    assert view.shards is not None and sum(split.samples for split in view.shards.splits.values()) == 120
    assert view.profile is not None and view.checkpoint is not None and view.export is not None
    assert view.evaluation is not None and view.evaluation.metrics["accuracy"] == 0.9375
    assert len(view.worst) == 5 and all(sample.picture is not None and sample.file for sample in view.worst)
    assert [(label.what, label.kind) for label in view.worst[0].labels] == [("label", "plain"), ("predicted", "bad")]
    assert {curve.name for curve in view.curves} == {"train/loss", "train/learning_rate", "validation/accuracy"}
    assert view.goodput is not None and view.goodput.preemptions == 0
    assert [(missing.what, missing.reason.split(":")[0]) for missing in view.missing] == [
        ("cost", "no machine or price is configured")
    ]


def test_a_run_of_vertex_names_its_page_in_the_console(line: Path, small_shards: str) -> None:
    planted = plant(line, small_shards)
    path = planted.folder / "run-start.json"
    start = json.loads(path.read_text())
    start["config"]["cloud"] = {"project": "p", "region": "us-east4"}
    path.write_text(json.dumps({**start, "arguments": {"job": "projects/1/locations/us-east4/pipelineJobs/r"}}))
    view = read(planted)
    assert view.console is not None and "locations/us-east4/" in view.console and view.console.endswith("project=p")
    assert view.config["cloud"] == {"project": "p", "region": "us-east4"} and view.place == "vertex"


def test_a_resumed_run_shows_where_it_was_preempted(line: Path, small_shards: str) -> None:
    view = read(plant(line, small_shards, kind="resumed"))
    marks = [(mark.kind, mark.step) for mark in view.marks if mark.kind != "checkpoint"]
    assert marks == [("start", 0), ("preemption", 120), ("resume", 100), ("best", 180), ("end", 200)]
    assert sum(mark.kind == "checkpoint" for mark in view.marks) == 5
    assert view.goodput is not None and (view.goodput.preemptions, view.goodput.lost_steps) == (1, 20)
    train = view.stage("train")
    assert train is not None and [attempt.exit_code for attempt in train.attempts] == [None, 0]


@pytest.mark.parametrize("failed", ["shard", "train"])
def test_a_run_that_failed_says_where_and_why(line: Path, small_shards: str, failed: str) -> None:
    view = read(plant(line, small_shards, kind="failed", failed=failed))
    assert view.state == "failed"
    place = STAGES.index(failed)
    assert list(states(view).values()) == ["done"] * place + ["failed"] + ["not started"] * (3 - place)
    stage = view.stage(failed)
    assert stage is not None and "to do: mend it" in stage.error


def test_a_reused_stage_has_its_maker_and_its_output_in_words(line: Path, small_shards: str) -> None:
    first = plant(line, small_shards)
    view = read(plant(line, small_shards, kind="cached", run_id="20261122-080000-0001"))
    assert {stage.state for stage in view.stages} == {"reused"}
    assert [(stage.reused_from, stage.made) for stage in view.stages] == [
        (first.run_id, f"what {stage} makes") for stage in STAGES
    ]
    shutil.rmtree(line / "shard" / "attempts" / first.run_id)
    shard = read_run(find_place(str(line))).stage("shard")
    assert shard is not None and (shard.state, shard.reused_from, shard.made) == ("reused", "", "reused")


def test_a_running_run_tells_how_far_it_is(line: Path, small_shards: str) -> None:
    planted = plant(line, small_shards, kind="running")
    with alive(planted):
        # However long it has said nothing: its process is there.
        view = read(planted, now=START + 10**6)
    assert view.state == "running"
    assert states(view) == {"shard": "done", "profile": "done", "train": "running", "export": "waiting"}
    train = view.stage("train")
    assert train is not None and train.progress is not None and train.progress.done == 80
    assert view.wall_s == 10**6
    assert train.wall_s == pytest.approx(10**6, abs=60)


def test_a_killed_run_is_no_running_one_and_without_a_lock_the_newest_event_counts(
    line: Path, small_shards: str
) -> None:
    planted = plant(line, small_shards, kind="killed")
    assert read(planted, now=START + 60).state == "running"
    assert read(planted, now=START + 10**4).state == "silent"
    lost = read(planted, now=START + 2 * 86_400)
    assert lost.state == "unknown" and states(lost)["train"] == "stopped"
    leave_lock(planted)
    view = read(planted, now=START + 60)
    assert view.state == "stopped" and states(view)["train"] == "stopped"
    assert states(view)["export"] == "not started"


def test_a_run_of_which_no_stage_failed_says_why_it_failed(line: Path, small_shards: str) -> None:
    planted = plant(line, small_shards, kind="running")
    record = json.loads((plant(line, small_shards, run_id="20261122-080000-0001").folder / "run.json").read_bytes())
    stages = [{**stage, "state": "not started", "uri": None, "manifest_sha256": None} for stage in record["stages"]]
    error = "task list-source: no gs://raw\n  to do: make it"
    record |= {"id": planted.run_id, "state": "failed", "error": error, "stages": stages}
    (planted.folder / "run.json").write_text(json.dumps(record))
    row = next(row for row in list_runs(str(line)) if row.id == planted.run_id)
    assert (row.stage, row.error) == ("", "task list-source: no gs://raw")
    print_run(read(planted), stream := StringIO())
    assert stream.getvalue().count("no gs://raw") == 1 and "to do: make it" in stream.getvalue()


def test_a_killed_run_shows_no_curves_of_the_run_that_went_on(line: Path, small_shards: str) -> None:
    planted = plant(line, small_shards, kind="killed")
    events = line / "train" / "attempts" / planted.run_id / "events.jsonl"
    told = [json.loads(text) for text in events.read_text().splitlines()]
    write_scalars(line / "train" / ("c" * 16) / SCALARS_FOLDER)
    end = max(event["time"] for event in told)
    curves = read(planted).curves
    assert curves and all(max(curve.times) < end + 10 for curve in curves)
    plant(line, small_shards, kind="fresh", run_id="20261122-080000-0001", now=START + 300)
    whole = read_run(find_place(str(line))).curves
    assert whole[0].rows > curves[0].rows


def test_one_that_may_not_be_read_is_a_row_that_says_so(
    line: Path, small_shards: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    planted = plant(line, small_shards)

    def refuse(uri: str, *_: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied", uri)

    # This test may run as one who may read everything.
    monkeypatch.setattr(storage, "exists", refuse)
    monkeypatch.setattr(storage, "read_range", refuse)
    (only,) = list_runs(str(line.parent))
    assert only.id == planted.run_id and "Permission denied" in only.problem
    with pytest.raises(ConfigError, match="cannot be read"):
        find_place(str(planted.folder))


def test_a_line_that_was_moved_is_read_where_it_is(line: Path, small_shards: str, tmp_path: Path) -> None:
    planted = plant(line, small_shards)
    moved = tmp_path / "elsewhere #1"
    shutil.move(line, moved)
    view = read_run(find_place(str(moved)))
    assert view.id == planted.run_id and view.shards is not None and view.export is not None
    assert [missing.what for missing in view.missing] == ["cost"]


def test_a_run_in_a_bucket_is_read_there(line: Path, small_shards: str, bucket_server: BucketServer) -> None:
    planted = plant(line, small_shards, kind="resumed")
    for path in sorted(line.rglob("*")):
        if path.is_file():
            storage.replace(f"gs://bucket-1/lines/photos/{path.relative_to(line)}", path.read_bytes())
    view = read_run(find_place("gs://bucket-1/lines/photos"))
    assert view.line == "gs://bucket-1/lines/photos" and [curve.rows for curve in view.curves] == [10] * 3
    assert view.worst and all(sample.picture is not None for sample in view.worst)
    assert [entry.id for entry in list_runs("gs://bucket-1/lines")] == [planted.run_id]


# --- hostile content --------------------------------------------------------------------------------------------------


def test_a_damaged_run_still_shows_what_is_left(line: Path, small_shards: str) -> None:
    planted = plant(line, small_shards)
    for stage in ("shard", "train"):
        path = storage.local_path(planted.uris[stage]) / "manifest.json"
        path.write_bytes(path.read_bytes()[:-40])
    view = read(planted)
    assert view.shards is None and view.checkpoint is None and view.export is not None
    assert {"the output of stage shard", "the output of stage train"} <= {missing.what for missing in view.missing}


@pytest.mark.parametrize(
    "uri",
    [
        "../../../etc",
        "{line}/../../secret",
        "gs://other/x",
    ],
)
def test_a_document_leads_nowhere_outside(line: Path, small_shards: str, uri: str, tmp_path: Path) -> None:
    planted = plant(line, small_shards)
    secret = tmp_path / "secret"
    shutil.copytree(storage.local_path(planted.uris["shard"]), secret)
    path = planted.folder / "run.json"
    record = json.loads(path.read_bytes())
    record["stages"][0]["uri"] = uri.format(line=line.as_uri())
    path.write_text(json.dumps(record))
    view = read(planted)
    assert view.shards is None
    assert "is not below" in next(m.reason for m in view.missing if m.what == "the output of stage shard")


@pytest.mark.parametrize(
    "content",
    [
        b'{"time": "x", "event": "start"}\n{"time": 1, "event": ["a"]}\n{"time": 1e300, "event": "spent"}\n',
        b'{"time": 1, "event": "spent", "life": "0.1", "step": Infinity, "seconds": {"step": -Infinity}}\n',
        b'{"time": 1, "event": "progress", "done": ' + b"9" * 4000 + b', "total": 1, "unit": "steps"}\n',
    ],
)
def test_events_of_any_kind_harm_nobody(line: Path, small_shards: str, content: bytes) -> None:
    planted = plant(line, small_shards, kind="killed")
    leave_lock(planted)
    for path in line.glob("*/attempts/*/events.jsonl"):
        path.write_bytes(content)
    view = read(planted)
    assert len(view.stages) == 4
    print_run(view, StringIO())
    assert len(list_runs(str(line))) == 1


@pytest.mark.parametrize(
    "content",
    [
        b"{",
        b'{"config": {"a": "\\ud800"}, "results": {"metrics": {"test_accuracy": ' + b"9" * 400 + b"}}}",
        b" " * (5 << 20),
    ],
)
@pytest.mark.parametrize("name", ["run-start.json", "run.json"])
def test_any_run_document_harms_nobody(line: Path, small_shards: str, content: bytes, name: str) -> None:
    planted = plant(line, small_shards)
    (planted.folder / name).write_bytes(content)
    assert read(planted).missing
    (only,) = list_runs(str(line))
    assert only.id == planted.run_id and (only.state == "unreadable") == (name == "run.json")


def test_json_has_no_number_that_is_not_finite(line: Path, small_shards: str) -> None:
    view = read(plant(line, small_shards))
    assert view.checkpoint is not None
    trained = view.checkpoint.model_copy(update={"metrics": {"loss": float("nan")}})
    text = to_json(view.model_copy(update={"checkpoint": trained}))
    assert "NaN" not in text and json.loads(text)["checkpoint"]["metrics"] == {"loss": None}


def test_a_manifest_that_was_changed_is_said(line: Path, small_shards: str) -> None:
    planted = plant(line, small_shards)
    path = storage.local_path(planted.uris["shard"]) / "manifest.json"
    path.write_bytes(path.read_bytes() + b"\n")
    view = read(planted)
    assert any("it was changed" in missing.reason for missing in view.missing)
    assert view.manifest_sha256["shard"] == hashlib.sha256(path.read_bytes()).hexdigest()


# --- which run is meant -----------------------------------------------------------------------------------------------


def test_a_run_is_a_folder_a_line_or_an_id(line: Path, small_shards: str, monkeypatch: pytest.MonkeyPatch) -> None:
    old = plant(line, small_shards, run_id="imagenet2012-20261121-070000-0001")
    new = plant(line, small_shards, run_id="20261122-070000-0001", kind="cached")
    monkeypatch.chdir(line.parents[1])
    assert find_place(str(line)).run_id == find_place(line.as_uri()).run_id == new.run_id
    assert find_place(old.run_id).line == storage.normalise(line)
    assert find_place(str(old.folder)).run_id == old.run_id
    assert [place.run_id for place in list_places(str(line.parent))] == [old.run_id, new.run_id]
    assert list_places(str(line)) == list_places(str(line.parent)) == list_places(str(line / "runs"))
    assert find_place(f"photos/{old.run_id}").run_id == old.run_id
    with pytest.raises(ConfigError, match="did you mean photos:latest"):
        find_place("photos")
    assert find_place("photos:latest").run_id == find_place(f"{line}:latest").run_id == new.run_id


@pytest.mark.parametrize("name", ["nowhere", "/etc", "s3://bucket/run"])
def test_what_is_no_run_is_said(line: Path, small_shards: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(line.parents[1])
    with pytest.raises(Exception) as caught:
        find_place(name)
    assert "to do:" in str(caught.value) and caught.value.exit_code == 2  # type: ignore[attr-defined]


def test_what_a_stage_has_taken_from_an_earlier_run_is_known_while_it_works(line: Path, small_shards: str) -> None:
    """A stage out of KFP's cache has no attempt."""
    planted = plant(line, small_shards, kind="running")
    uris = {stage: view.uri for stage in ("shard", "profile") if (view := read(planted).stage(stage))}
    for stage in uris:
        shutil.rmtree(line / stage / "attempts")
    events = next((line / "train" / "attempts").rglob("events.jsonl"))
    start = {"event": "start", "time": 0.0, "launched_at": 0.0}
    inputs = {"shards": uris["shard"], "profile": uris["profile"]}
    events.write_text(json.dumps({**start, "inputs": inputs}) + "\n" + events.read_text())
    found = {stage.name: (stage.state, stage.uri) for stage in read(planted).stages}
    assert found["shard"] == ("reused", uris["shard"]) and found["profile"] == ("reused", uris["profile"])
