"""Documents of stages: small ones, and ones with hostile names."""

from contracts.artifacts import (
    EVALUATION_NAME,
    Attempt,
    CheckpointManifest,
    Contract,
    Duplicates,
    EvaluationReport,
    FileEntry,
    Finding,
    Gate,
    Headline,
    Latency,
    ProfileChoice,
    ProfilePoint,
    ProfileReport,
    Rejected,
    ShardManifest,
    Shards,
    SplitEntry,
)
from contracts.artifacts.classification import ClassificationDetails, ClassOutcome, RocCurve
from tests.export_fields import make_checkpoint, make_engine, make_gates, make_graph, make_manifest

# Ends a cell, begins markup and code, turns the direction of what follows, and is a formula, a link and a picture.
HOSTILE = "a|b`c`<img src=x onerror=alert(1)>\u202e[x](javascript:alert(1))![y](http://evil.example/z)*d*\n# e"

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
    "train": make_checkpoint(
        fingerprint="t",
        step=10,
        best_step=10,
        position=640,
        slot_size=16,
        shards_fingerprint="s",
        classes=["0", "1"],
        metrics={"test_accuracy": 0.98765, "validation_accuracy": 1.0},
        headline=Headline(metric="accuracy", direction="max"),
        parameters_sha256="ab",
        environment={"ranks": "2", "num_workers": "1"},
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


def evaluation(names: list[str], confusion: list[tuple[int, int, int]], roc: RocCurve | None = None) -> bytes:
    """Return evaluation.json of a checkpoint, with its counts taken from the confusion matrix."""
    return make_evaluation(names, confusion, roc).to_json()


def make_evaluation(
    names: list[str], confusion: list[tuple[int, int, int]], roc: RocCurve | None = None, *, left_out: int = 0
) -> EvaluationReport:
    outcomes = [
        ClassOutcome(
            name=name,
            samples=sum(count for label, _, count in confusion if label == place),
            predicted=sum(count for _, guess, count in confusion if guess == place),
            right=sum(count for label, guess, count in confusion if label == guess == place),
        )
        for place, name in enumerate(names)
    ]
    samples = sum(count for _, _, count in confusion) + left_out
    return EvaluationReport(
        task="image_classification",
        fingerprint="t",
        step=10,
        weights="model",
        parameters_sha256="ab",
        shards_fingerprint="s",
        samples=samples,
        headline=Headline(metric="accuracy", direction="max"),
        metrics={"accuracy": sum(outcome.right for outcome in outcomes) / samples},
        loss=0.5,
        details=ClassificationDetails(
            classes=outcomes, confusion=confusion, confusion_left_out=left_out, roc=roc, worst=[]
        ).model_dump(mode="json"),
    )


def trained_with_evaluation(content: bytes) -> CheckpointManifest:
    """Return a finished training that has an evaluation of this content."""
    document = DOCUMENTS["train"]
    assert isinstance(document, CheckpointManifest)
    entry = FileEntry(name=EVALUATION_NAME, bytes=len(content), crc32c="00000000")
    return document.model_copy(update={"evaluation": entry, "made_from": {"shards": "s"}})


def hostile_shards() -> ShardManifest:
    """Return shards whose names come from somebody who means harm."""
    document = DOCUMENTS["shard"]
    assert isinstance(document, ShardManifest)
    return document.model_copy(
        update={
            "classes": [HOSTILE, "plain"],
            "rejected": [Rejected(path=f"{HOSTILE}.png", reason=HOSTILE)],
            "duplicates": Duplicates(groups=1, copies=2, leaking_groups=1, listed=[]),
            "made_from": {"listing": "l" * 64},
        }
    )
