"""The record of a run, from documents and events of its stages."""

from pathlib import Path

import pytest

from contracts.artifacts import MANIFEST_NAME, RunRecord
from contracts.config import STAGES, RunConfig
from inspection.record import close_run, make_record
from inspection.stages import StageTrace
from tests.inspection.documents import DOCUMENTS

CONFIG = RunConfig.model_validate({"train": {"global_batch_size": 64}, "model": {"arguments": {"a": "b|c"}}})


def make_traces(folder: Path, finished: list[str]) -> list[StageTrace]:
    traces = []
    for stage in STAGES:
        trace = StageTrace(stage, folder / stage / "attempts" / "a")
        if stage in finished:
            output = folder / stage / "out"
            output.mkdir(parents=True)
            (output / MANIFEST_NAME).write_bytes(DOCUMENTS[stage].to_json())
            trace.apply({"event": "start", "time": 10.0, "launched_at": 10.0})
            trace.apply({"event": "ready", "time": 12.0})
            trace.apply({"event": "finish", "time": 20.0, "uri": output.as_uri(), "made": f"{stage} made this"})
            trace.apply({"event": "exit", "time": 20.0, "launched_at": 10.0, "wall_s": 10.0, "exit_code": 0})
        traces.append(trace)
    return traces


def record_of(folder: Path, finished: list[str], error: str = "") -> RunRecord:
    return make_record(
        run_id="20260101-000000-0000",
        started_at="2026-01-01T00:00:00Z",
        config=CONFIG,
        traces=make_traces(folder, finished),
        wall_s=46.0,
        error=error,
    )


def test_the_record_holds_times_documents_and_results(tmp_path: Path) -> None:
    record = record_of(tmp_path, list(STAGES))
    assert (record.state, record.wall_s, record.process_start_s) == ("succeeded", 46.0, 8.0)
    assert [stage.manifest_sha256 for stage in record.stages] == [DOCUMENTS[stage].sha256 for stage in STAGES]
    assert record.results["metrics"]["test_accuracy"] == 0.98765
    exported = record.results["export"]
    assert (exported["served"]["sha256"], exported["verdict"]) == ("cd" * 32, "unproven: not run on a GPU")
    assert RunRecord.parse(record.to_json(), where="here") == record


@pytest.mark.parametrize("stage", ["shard", "profile", "train", "export"])
def test_a_damaged_document_leaves_a_record(tmp_path: Path, stage: str) -> None:
    traces = make_traces(tmp_path, list(STAGES))
    (tmp_path / stage / "out" / MANIFEST_NAME).write_text("{")
    results = make_record(
        run_id="r", started_at="2026-01-01T00:00:00Z", config=CONFIG, traces=traces, wall_s=1.0, error=""
    ).results
    assert list(results.get("unread", {})) == ([] if stage == "profile" else [stage])
    assert ("metrics" in results) == (stage != "train") and ("data" in results) == (stage != "shard")


def test_the_line_has_a_copy_of_the_newest(tmp_path: Path) -> None:
    record = record_of(tmp_path, list(STAGES))
    close_run(record, line=tmp_path.as_uri())
    copies = [tmp_path / "run.json", tmp_path / "runs" / record.id / "run.json"]
    assert [RunRecord.parse(path.read_bytes(), where="here") for path in copies] == [record, record]
