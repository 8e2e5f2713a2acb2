import sys
from pathlib import Path

import pytest

from contracts.artifacts import (
    MANIFEST_NAME,
    Attempt,
    CheckpointManifest,
    Contract,
    Finding,
    Gate,
    Headline,
    Latency,
    ProfileChoice,
    ProfilePoint,
    ProfileReport,
    RunRecord,
    ShardManifest,
    Shards,
    SplitEntry,
)
from contracts.config import STAGES, RunConfig
from inspection.report import describe_batch, print_table, to_markdown
from inspection.summary import make_record
from inspection.trace import StageTrace
from tests.export_fields import make_engine, make_gates, make_graph, make_manifest

CONFIG = RunConfig.model_validate({"train": {"global_batch_size": 64}, "model": {"arguments": {"a": "b|c"}}})
TRAIN = SplitEntry(first=0, samples=7, source_bytes=70, samples_by_class=[3, 4])
EMPTY = SplitEntry(first=7, samples=0, source_bytes=0, samples_by_class=[0, 0])
DOCUMENTS: dict[str, Contract] = {
    "shard": ShardManifest(
        fingerprint="s",
        format="webdataset",
        seed=0,
        classes=["0", "1"],
        splits={"train": TRAIN, "validation": EMPTY, "test": EMPTY},
        shards=Shards.of([]),
        rejected=[],
        mean=[0.5] * 3,
        std=[0.5] * 3,
        warnings=["3 images were laid on white"],
    ),
    "profile": ProfileReport(
        fingerprint="p",
        model_fingerprint="m",
        shards_fingerprint="s",
        hardware={},
        torch_version="2",
        ranks=2,
        threads_per_rank=1,
        global_batch_size=64,
        points=[
            ProfilePoint(slot_size=32, num_workers=1, outcome="out of memory", reason="CUDA out of memory"),
            ProfilePoint(slot_size=16, num_workers=1, samples_per_s=123.45, data_time_fraction=0.5),
        ],
        choice=ProfileChoice(slot_size=16, num_workers=1, reason="fastest"),
        findings=[
            Finding(
                rule="R1",
                title="steps wait for data",
                evidence=["data time 50 % | limit 20 %"],
                change="raise data.num_workers to 4",
                time_share=0.5,
            )
        ],
    ),
    "train": CheckpointManifest(
        order={"kind": "full"},
        task={"name": "image_classification", "arguments": {}},
        fingerprint="t",
        finished=True,
        step=10,
        position=640,
        epoch=1,
        slot_size=16,
        model={},
        classes=["0", "1"],
        data={},
        shards_fingerprint="s",
        metrics={"test_accuracy": 0.98765, "validation_accuracy": 1.0},
        best_step=10,
        headline=Headline(metric="accuracy", direction="max"),
        parameters_sha256="ab",
        environment={"ranks": "2", "num_workers": "1"},
        files=[],
    ),
    "export": make_manifest(
        fingerprint="e",
        asked_precision="int8",
        tried=[Attempt(precision="int8", outcome="failed", reason="why"), Attempt(precision="fp16", outcome="kept")],
        graphs=[make_graph("fp32", sha256="f1" * 32), make_graph("fp16", sha256="f2" * 32)],
        engine=make_engine(bytes=345_678, sha256="cd" * 32),
        gates=[
            *make_gates("model.fp16.onnx")[:1],
            Gate(
                name="parity",
                precision="fp16",
                file="model.fp16.sm89.engine",
                status="not run",
                ran="tensorrt_rtx 1.7.1",
                reason="no GPU",
            ),
        ],
        latency=[Latency(ran="onnxruntime 1.31.1", batch=1, median_ms=1.5, calls=50)],
        shards_fingerprint="s",
        metrics={"torch": {"accuracy": 0.5}, "fp32": {"accuracy": 0.25}},
        test_samples=5,
        proof_samples=5,
        checkpoint_sha256="ab",
    ),
}


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
    assert record.results["batch"] == {
        "global_batch_size": 64,
        "slot_size": 16,
        "slots_per_rank": 2,
        "ranks": 2,
        "num_workers": 1,
    }
    assert record.results["metrics"]["test_accuracy"] == 0.98765
    exported = record.results["export"]
    assert (exported["served"]["sha256"], exported["verdict"]) == ("cd" * 32, "unproven: not run on a GPU")
    assert RunRecord.parse(record.to_json(), where="here") == record


def test_the_record_of_half_a_run(tmp_path: Path) -> None:
    record = record_of(tmp_path, ["shard", "profile"], error="why")
    assert (record.state, record.error) == ("failed", "why")
    assert [stage.state for stage in record.stages] == ["done", "done", "not started", "not started"]
    assert sorted(record.results) == ["data", "profile"]
    assert "why" in to_markdown(record)


def test_table_and_report_say_the_same(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    record = record_of(tmp_path, list(STAGES))
    print_table(record, sys.stdout)
    table, written = " ".join(capsys.readouterr().out.replace("│", " ").split()), to_markdown(record)
    for text in (
        "shard made this",
        "data: 3 images were laid on white",
        "98.77 %",
        "64 = slot size 16 x 2 per rank x 2 ranks",
        "model.fp16.sm89.engine (0.35 MB, runtime tensorrt_rtx)",
        "fp16, unproven (not run on a GPU; int8 was asked for, and refused by its gates)",
        "1 of 2 passed; fp16 relative error 3.4e-04 on the CPU; fp16 parity not run",
        "batch 1: 1.500 ms (onnxruntime 1.31.1)",
        "torch 50.00 %",
        "123.5 samples/s per rank, data time 50% of a step",
        "finding R1",
        "raise data.num_workers to 4 (saves at most 50% of a step)",
        "46.0",
        "3.5",
    ):
        assert text in table and text in written, text


def test_a_batch_that_does_not_divide_evenly() -> None:
    batch = {"global_batch_size": 100, "slot_size": 16, "slots_per_rank": 4, "ranks": 2}
    assert describe_batch(batch) == "100 in at most slot size 16 x 4 per rank x 2 ranks"
