"""Documents of stages as tests of what is told of them need them: small ones, and hostile ones."""

from contracts.artifacts import (
    EVALUATION_NAME,
    CheckpointManifest,
    Duplicates,
    EvaluationReport,
    FileEntry,
    Headline,
    Rejected,
    ShardManifest,
)
from contracts.artifacts.classification import ClassificationDetails, ClassOutcome, RocCurve
from tests.inspection.test_summary import DOCUMENTS

# Ends a cell, begins markup and code, turns the direction of what follows, and is a formula, a link and a picture.
HOSTILE = "a|b`c`<img src=x onerror=alert(1)>\u202e[x](javascript:alert(1))![y](http://evil.example/z)*d*\n# e"


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
