"""`shardline promote` and `rollback`: what moves, what is refused by name, what `clean` leaves alone for them."""

import json
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

from contracts import storage
from contracts.artifacts import RunRecord
from contracts.artifacts.data_report import DataReport
from contracts.artifacts.promotion import Judgement
from contracts.promotions import decide, find_production, list_models, read_decisions
from contracts.registration import Registration, leave_registration
from pipeline_tasks.record import register_export
from pipelines.clean import find_leftovers
from pipelines.cli import app
from pipelines.promotion import judged_in_words
from tests.inspection.lines import plant

RUNS = ("20261121-070000-0001", "20261122-070000-0001", "20261123-070000-0001")


@pytest.fixture
def line(tmp_path: Path, small_shards: str) -> Path:
    """A line of three runs, each with an export of its own, that of the first proven."""
    folder = tmp_path / "line"
    planted = plant(folder, small_shards, run_id=RUNS[2])
    run = folder / "runs" / RUNS[2]
    export = storage.local_path(planted.uris["export"])
    for number, run_id in enumerate(RUNS[:2], start=1):
        shutil.copytree(run, folder / "runs" / run_id)
        fingerprint = str(number) * 16
        shutil.copytree(export, export.with_name(fingerprint))
        for place in (folder / "runs" / run_id / "run.json", folder / "runs" / run_id / "results" / "export.json"):
            if place.exists():
                place.write_text(place.read_text().replace(export.name, fingerprint))
        for place in (folder / "runs" / run_id / "run.json", folder / "runs" / run_id / "run-start.json"):
            place.write_text(json.dumps({**json.loads(place.read_text()), "id": run_id}))
    return folder


def call(*words: object) -> tuple[int, str]:
    done = CliRunner().invoke(app, [str(word) for word in words])
    return done.exit_code, done.output


def test_a_model_is_put_into_production_and_taken_back(line: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    uri = storage.normalise(line)
    code, said = call("rollback", line)
    assert code == 2 and "has no model in production" in said and "shardline promote RUN" in said

    for run_id in RUNS:
        code, said = call("promote", line / "runs" / run_id, "--reason", "a trial", "--allow-unproven")
        assert code == 0 and f"run {run_id} is in production" in said, said
    assert call("promote", line / "runs" / RUNS[2], "--allow-unproven")[1].startswith("unchanged")
    assert [model.run for model in list_models(uri)] == list(RUNS)

    # A folder of outputs that only what may come back needs.
    left = {leftover.fingerprint for leftover in find_leftovers(uri, keep_last=0) if leftover.stage == "export"}
    assert left == {"1" * 16}

    code, said = call("rollback", line, "--reason", "slow")
    assert code == 0 and f"run {RUNS[1]} is in production, before it run {RUNS[2]} (decision 4)" in said
    found = find_production(uri)
    assert found is not None and found.run == RUNS[1]
    last = read_decisions(uri)[-1]
    assert (last.action, last.before, last.reasons, last.judgement) == ("rolled back", RUNS[2], ["slow"], None)
    assert last.by and last.at.endswith("Z")

    found = json.loads(call("history", line, "-o", "json")[1])
    assert found["production"] == RUNS[1] and not found["problem"]
    moves = [row["decision"] for row in found["rows"] if row["decision"]]
    assert [(move["action"], move["before"], move["production"]) for move in moves] == [
        *zip(["promoted"] * 3, ("", *RUNS), RUNS, strict=False),
        ("rolled back", RUNS[2], RUNS[1]),
    ]
    assert [row["run"] for row in found["rows"] if row["line"]] == list(RUNS)
    for run_id in RUNS[:2]:
        (line / "runs" / run_id / "results").mkdir(exist_ok=True)
    (line / "runs" / RUNS[0] / "results" / "data-report.json").write_text("{")
    report = DataReport(
        shards="s", samples={"train": 1200, "validation": 10, "test": 20}, drawn=1, rejected=0, copies=0, classes={},
        fields=[], comparisons=[], verdict="warn", problems=[], warnings=["brightness: excess 0.19 is above 0.1"],
    )  # fmt: skip
    (line / "runs" / RUNS[1] / "results" / "data-report.json").write_text(report.model_dump_json())
    code, said = call("history", line / "runs" / RUNS[1])
    words = " ".join(said.split())
    assert code == 0 and f"in production: run {RUNS[1]}" in words and f"4: rolled back by {last.by}: slow" in words
    assert "1,200 / 10 / 20" in words and "warn: brightness:" in words and "cannot be read" in words, said

    # It was uploaded, and Vertex's registry cannot be asked: the decision stands, and what completes it is said.
    upload = '{"resources": [{"resourceUri": "https://x/v1/projects/p/locations/us-central1/models/7/operations/8"}]}'
    leave_registration(uri, RUNS[1], Registration(verdict="upload", unproven=[], upload=upload))
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(line / "none.json"))
    code, said = call("promote", line / "runs" / RUNS[1], "--allow-unproven")
    assert code == 0 and "unchanged" in said and "the decision stands" in said and "shardline promote" in said, said

    # What it would go back to is gone: nothing moves.
    shutil.rmtree(line / "export" / ("1" * 16))
    code, said = call("rollback", line)
    assert code == 2 and f"the model of run {RUNS[0]}, which was in production before, is gone" in said
    assert len(read_decisions(uri)) == 4


def test_what_cannot_be_promoted_is_refused_by_name(line: Path) -> None:
    run = line / "runs" / RUNS[0]
    assert call("promote", line / "runs" / "20261130-070000-0001")[0] == 2
    code, said = call("promote", run)
    assert code == 2 and "is unproven" in said and "shardline verify" in said
    (run / "run.json").write_text(
        (run / "run.json").read_text().replace('"name": "export"', '"name": "profile"').replace("succeeded", "failed")
    )
    code, said = call("promote", run, "--allow-unproven")
    assert code == 2 and "made no export" in said
    (run / "run.json").unlink()
    code, said = call("promote", run, "--allow-unproven")
    assert code == 2 and "has not ended" in said
    assert not (line / "models").exists() and not (line / "promotions").exists()


def test_a_run_that_succeeded_has_a_version_and_a_damaged_registry_stops_no_run(line: Path) -> None:
    uri, where = storage.normalise(line), line / "runs" / RUNS[0] / "run.json"
    record = RunRecord.parse(where.read_bytes(), where="run.json")
    assert register_export(record.model_copy(update={"state": "failed"}), line=uri) == "" and not list_models(uri)
    assert register_export(record, line=uri) == "" and register_export(record, line=uri) == ""
    assert [(model.run, model.proven) for model in list_models(uri)] == [(RUNS[0], False)]
    # What it has judged is said at its end.
    judgement = Judgement(verdict="keep", reasons=["accuracy <b> may be worse"], champion=RUNS[1])
    decide(uri, by="run", action="kept", run=RUNS[0], reasons=judgement.reasons, judgement=judgement)
    assert (judged_in_words(uri, RUNS[0]), judged_in_words(uri, RUNS[1])) == ("kept: accuracy <b> may be worse", "")
    (line / "promotions" / "3.json").write_text("{")
    code, said = call("history", line)
    assert code == 0 and "what is in production is not known" in said and "promotions/2.json is missing" in said
    (line / "models" / "1.json").write_text("{")
    assert "models/1.json cannot be read" in register_export(record, line=uri)
