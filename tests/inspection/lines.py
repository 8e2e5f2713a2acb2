"""Lines on disk as runs of every kind leave them: real documents of the real classes, real shards, real scalars.

No stage ran: `plant` writes one run of one kind.
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from contracts import storage
from contracts.artifacts import (
    Attempt,
    Baseline,
    Contract,
    EvaluationReport,
    FileEntry,
    Headline,
    Latency,
    ShardManifest,
)
from contracts.artifacts.classification import ClassificationDetails, ClassOutcome, WorstSample
from contracts.config import STAGES, RunConfig
from contracts.config.load import parse_config
from contracts.output import Lock
from contracts.scalars import SCALARS_FOLDER, part_name, scalars_line, start_line
from inspection.record import close_run, make_record
from inspection.stages import StageTrace, in_order, list_attempts, read_events
from inspection.training import read_goodput
from tests.conftest import small_config
from tests.export_fields import make_checkpoint, make_manifest

Kind = Literal["fresh", "resumed", "cached", "int8 refused", "running", "killed", "failed", "interrupted"]
START = 1_795_000_000.0
STEPS, EVERY = 200, 20
TRAINING = "c" * 16


@dataclass
class Planted:
    """A run that was planted."""

    line: Path
    run_id: str
    uris: dict[str, str] = field(default_factory=dict)

    @property
    def folder(self) -> Path:
        return self.line / "runs" / self.run_id


def plant(
    line: Path,
    shards: str,
    *,
    kind: Kind = "fresh",
    run_id: str = "20261122-070000-0001",
    failed: str = "train",
    now: float = START,
    sections: dict[str, Any] | None = None,
) -> Planted:
    """Write a run.

    Args:
        line: The line's folder.
        shards: URI of real shards, which are copied into the line.
        kind: How it went.
        run_id: Its id.
        failed: Of kind failed: the stage.
        now: When it started.
        sections: Changes of the configuration.
    """
    planted = Planted(line, run_id)
    values = small_config(run={"name": line.name, "root": str(line.parent)}, sharding={"source": "/nowhere"})
    for name, section in (sections or {}).items():
        values[name] = {**values.get(name, {}), **section}
    config = parse_config(values, where="planted")
    planted.folder.mkdir(parents=True)
    arguments = {"line": line.as_uri()}
    start = {"id": run_id, "started_at": _text(now), "config": config.model_dump(mode="json"), "arguments": arguments}
    (planted.folder / "run-start.json").write_text(json.dumps(start))
    reached = STAGES[: STAGES.index(failed) + 1] if kind == "failed" else STAGES
    reached = STAGES[:3] if kind in ("running", "killed", "interrupted") else reached
    at = now + 1
    for stage in reached:
        ends = stage != reached[-1] or kind not in ("running", "killed", "failed", "interrupted")
        if ends:
            planted.uris[stage] = _WRITERS[stage](planted, shards, kind)
        at = _write_attempts(planted, stage, at, kind=kind, ends=ends)
    if kind not in ("running", "killed"):
        _close(planted, config, kind=kind, failed=failed, now=now, wall_s=at - now)
    return planted


@contextmanager
def alive(planted: Planted) -> Iterator[None]:
    """Be the process of a run."""
    lock = Lock(storage.normalise(planted.folder))
    try:
        yield
    finally:
        lock.release()


def leave_lock(planted: Planted) -> None:
    """Leave the lock's file of a killed process, which nobody holds."""
    (planted.folder.parent / f".{planted.folder.name}.lock").write_text("4194304")


def _shard(planted: Planted, shards: str, kind: Kind) -> str:
    target = planted.line / "shard" / ShardManifest.load(shards).fingerprint
    if not target.exists():
        shutil.copytree(storage.local_path(shards), target)
    return storage.normalise(target)


def _profile(planted: Planted, shards: str, kind: Kind) -> str:
    from tests.trainer.profiling.reports import gpu_report

    return _publish(planted, "profile", gpu_report())


def _train(planted: Planted, shards: str, kind: Kind) -> str:
    manifest = ShardManifest.load(shards)
    folder = planted.line / "train" / TRAINING
    write_scalars(folder / SCALARS_FOLDER)
    name = "checkpoints/step-00000180.000001/evaluation.json"
    (folder / name).parent.mkdir(parents=True, exist_ok=True)
    (folder / name).write_bytes(evaluation_of(shards, manifest).to_json())
    document = make_checkpoint(
        fingerprint=TRAINING,
        made_from={"shards": manifest.fingerprint, "train": "7" * 16},
        step=180,
        best_step=180,
        position=2880,
        epoch=2,
        slot_size=4,
        model={"architecture": "resnet"},
        classes=manifest.classes,
        data={"image_size": 16},
        shards_fingerprint=manifest.fingerprint,
        metrics={"validation_accuracy": 0.95, "validation_loss": 0.2, "test_accuracy": 0.9375, "test_loss": 0.25},
        headline=Headline(metric="accuracy", direction="max"),
        parameters_sha256="b" * 64,
        environment={"ranks": "2", "num_workers": "0", "torch": "2.13.0+cpu"},
        evaluation=FileEntry.of(storage.normalise(folder), name),
    )
    return _publish(planted, "train", document)


def evaluation_of(shards: str, manifest: ShardManifest) -> EvaluationReport:
    """Return an evaluation of the test split whose worst samples are real ones."""
    from records.index import SampleIndex, key_of

    split = manifest.splits["test"]
    index = SampleIndex(manifest, shards)
    rows = [index[split.first + place] for place in range(min(5, split.samples))]
    worst = [
        WorstSample(
            shard=manifest.shards[manifest.shards.locate(split.first + place)[0]].relative_path,
            key=key_of(row),
            place=place,
            label=int(row["label"]),
            predicted=(int(row["label"]) + 1) % max(len(manifest.classes), 1),
            probability=0.01 * (place + 1),
            predicted_probability=0.9,
        )
        for place, row in enumerate(rows)
    ]
    names = manifest.classes
    details = ClassificationDetails(
        classes=[ClassOutcome(name=name, samples=5, predicted=5, right=4) for name in names],
        confusion=[(place, place, 5) for place in range(len(names))] + [(0, len(names) - 1, 1)],
        confusion_left_out=0,
        roc=None,
        worst=worst,
    )
    return EvaluationReport(
        task="image_classification",
        fingerprint=TRAINING,
        step=180,
        weights="model",
        parameters_sha256="b" * 64,
        shards_fingerprint=manifest.fingerprint,
        samples=16,
        headline=Headline(metric="accuracy", direction="max"),
        metrics={"accuracy": 0.9375},
        baseline=Baseline(description="always red", value=1 / 3),
        loss=0.25,
        details=details.model_dump(mode="json"),
    )


def _export(planted: Planted, shards: str, kind: Kind) -> str:
    reason = "parity of model.int8.onnx: relative_error 0.31"
    refused = [Attempt(precision="int8", outcome="failed", reason=reason)] if kind == "int8 refused" else []
    document = make_manifest(
        made_from={"checkpoint": "b" * 64, "export": "8" * 16},
        asked_precision="int8" if refused else "fp16",
        tried=[*refused, Attempt(precision="fp16", outcome="kept")],
        latency=[Latency(ran="onnxruntime 1.31.1, CPU", batch=1, median_ms=1.5, calls=50)],
        checkpoint_sha256="b" * 64,
        shards_fingerprint=ShardManifest.load(shards).fingerprint,
    )
    return _publish(planted, "export", document)


_WRITERS = {"shard": _shard, "profile": _profile, "train": _train, "export": _export}


def _publish(planted: Planted, stage: str, document: Contract) -> str:
    folder = planted.line / stage / document.fingerprint
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "manifest.json").write_bytes(document.to_json())
    return storage.normalise(folder)


def _write_attempts(planted: Planted, stage: str, at: float, *, kind: Kind, ends: bool) -> float:
    """Write the events of a stage's attempts; return when the last one ended."""
    uri = planted.uris.get(stage, (planted.line / stage / TRAINING).as_uri())
    opening: list[dict[str, Any]] = [
        {"event": "start", "launched_at": at},
        {"event": "folder", "uri": uri, "fingerprint": uri.rpartition("/")[2]},
        {"event": "ready"},
    ]
    if kind == "cached":
        return _write(planted, stage, "", at, [*opening, {"event": "reused", "uri": uri}, _exit(at, 0)])
    suffix, events = "", [*opening]
    if stage == "train" and kind == "resumed":
        # Lost without a message after the checkpoint at step 100.
        at = _write(planted, stage, ".20261122-070100-0001", at, [*events, *_training("0.1", 0, 120, at)]) + 30
        events = [{**opening[0], "launched_at": at}, *opening[1:], *_training("0.2", 100, STEPS, at)]
        suffix = ".20261122-070200-0001"
    elif stage == "train":
        events += _training("0.1", 0, STEPS if ends else 80, at)
    else:
        events.append({"event": "progress", "done": 4, "total": 4, "unit": "shards", "message": "4 of 4"})
    if ends:
        events += [{"event": "finish", "uri": uri, "made": f"what {stage} makes"}, _exit(at, 0)]
    elif kind == "failed":
        message = f"{stage} cannot <b>work</b>\n  allowed: something else\n  to do: mend it"
        events += [{"event": "error", "exit_code": 2, "message": message}, _exit(at, 2)]
    elif kind == "interrupted":
        events += [{"event": "interrupted", "signal": "SIGINT"}, _exit(at, -15)]
    at = _write(planted, stage, suffix, at, events)
    log = planted.line / stage / "attempts" / f"{planted.run_id}{suffix}" / "log.txt"
    log.write_text(f"{stage}: starts\n{stage}: <script>alert(1)</script>\n")
    return at


def _exit(at: float, code: int) -> dict[str, Any]:
    return {"event": "exit", "exit_code": code, "launched_at": at, "wall_s": 20}


def _training(life: str, first: int, last: int, at: float) -> Iterator[dict[str, Any]]:
    yield {"event": "life", "life": life, "started_at": at + 1}
    yield {"event": "resume", "life": life, "step": first, "number": 2 if first else 1, "ranks": 2, "nodes": 1}
    for step in range(first + EVERY, last + 1, EVERY):
        message = f"loss {2 / step:.4f}"
        yield {"event": "progress", "done": step, "total": STEPS, "unit": "steps", "message": message}
        yield {"event": "spent", "life": life, "step": step, "seconds": {"data": 0.1, "step": 0.8, "checkpoint": 0.05}}
        # Every second time; what comes after the last one is lost with a machine.
        if step % (2 * EVERY) == EVERY:
            yield {"event": "checkpoint", "life": life, "step": step, "seconds": 0.05}


def _write(planted: Planted, stage: str, suffix: str, at: float, events: list[dict[str, Any]]) -> float:
    name = f"{planted.run_id}{suffix}"
    folder = planted.line / stage / "attempts" / name
    folder.mkdir(parents=True, exist_ok=True)
    lines = []
    for event in events:
        at += 0.5
        lines.append(json.dumps({"time": at, "stage": stage, "attempt": name, **event}) + "\n")
    (folder / "events.jsonl").write_text("".join(lines))
    return at


def write_scalars(folder: Path) -> None:
    """Write curves as a training does."""
    lines = [start_line(0, START + 6)]
    for step in range(EVERY, STEPS + 1, EVERY):
        # As far as the planted events are at that step.
        values = {"train/loss": 2 / step, "train/learning_rate": 0.01, "validation/accuracy": 1 - 1 / step}
        lines.append(scalars_line(step, START + 6 + 0.07 * step, values))
    folder.mkdir(parents=True, exist_ok=True)
    (folder / part_name(1, 0)).write_bytes(b"".join(lines))


def _close(planted: Planted, config: RunConfig, *, kind: Kind, failed: str, now: float, wall_s: float) -> None:
    """Write the record as `shardline run` does."""
    line = storage.normalise(planted.line)
    traces = [StageTrace(stage) for stage in STAGES]
    for trace in traces:
        names = list_attempts(line, trace.name, planted.run_id)
        for event in in_order(read_events(line, trace.name, names)[0]):
            trace.apply(event)
    errors = {
        "failed": f"stage {failed}: {failed} cannot <b>work</b>\n  to do: mend it",
        "interrupted": "stage train: interrupted by SIGINT\n  to do: run the same command again",
    }
    record = make_record(
        run_id=planted.run_id,
        started_at=_text(now),
        config=config,
        traces=traces,
        wall_s=wall_s,
        error=errors.get(kind, ""),
        interrupted=kind == "interrupted",
        goodput=read_goodput(line, planted.run_id),
    )
    close_run(record, line=line)


def _text(at: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(at))
