"""Lines on disk as runs of every kind leave them: real documents of the real classes, real shards, real scalars.

Only the work is missing: no stage ran. `plant` writes one run of one kind.
"""

from __future__ import annotations

import hashlib
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
    CheckpointManifest,
    Contract,
    EvaluationReport,
    FileEntry,
    GoodputRecord,
    Headline,
    Latency,
    RunRecord,
    ShardManifest,
    StageRecord,
)
from contracts.artifacts.classification import ClassificationDetails, ClassOutcome, WorstSample
from contracts.config import STAGES
from contracts.config.load import parse_config
from contracts.goodput import account
from contracts.output import Lock
from contracts.scalars import SCALARS_FOLDER, part_name, scalars_line, start_line
from inspection.goodput import find_attempts
from inspection.summary import collect_results
from tests.conftest import small_config
from tests.export_fields import make_manifest

Kind = Literal["fresh", "resumed", "cached", "int8 refused", "running", "killed", "failed"]
START = 1_795_000_000.0
STEPS, EVERY = 200, 20


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
        kind: What became of it.
        run_id: Its id.
        failed: Of kind failed: the stage.
        now: When it started.
        sections: Changes of the configuration.
    """
    planted = Planted(line, run_id)
    config = parse_config(_sections(line, sections or {}), where="planted").model_dump(mode="json")
    planted.folder.mkdir(parents=True)
    start = {"id": run_id, "started_at": _text(now), "config": config, "arguments": {"line": line.as_uri()}}
    (planted.folder / "run-start.json").write_text(json.dumps(start))
    reached = STAGES[: STAGES.index(failed) + 1] if kind == "failed" else STAGES
    reached = STAGES[:3] if kind in ("running", "killed") else reached
    at = now + 1
    for stage in reached:
        ends = stage != reached[-1] or kind not in ("running", "killed", "failed")
        if ends:
            planted.uris[stage] = _WRITERS[stage](planted, shards, kind)
        at = _tell(planted, stage, at, kind=kind, ends=ends)
    if kind not in ("running", "killed"):
        _record(planted, config, kind=kind, failed=failed, now=now, wall_s=at - now)
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
    """Leave what a killed process leaves: the lock's file, which nobody holds."""
    (planted.folder.parent / f".{planted.folder.name}.lock").write_text("4194304")


# --- documents --------------------------------------------------------------------------------------------------------


def _shard(planted: Planted, shards: str, kind: Kind) -> str:
    source = storage.local_path(shards)
    target = planted.line / "shard" / ShardManifest.load(shards).fingerprint
    if not target.exists():
        shutil.copytree(source, target)
    return storage.normalise(target)


def _profile(planted: Planted, shards: str, kind: Kind) -> str:
    from tests.trainer.profiling.reports import gpu_report

    return _publish(planted, "profile", gpu_report())


def _train(planted: Planted, shards: str, kind: Kind) -> str:
    manifest = ShardManifest.load(shards)
    folder = planted.line / "train" / ("c" * 16)
    folder.mkdir(parents=True, exist_ok=True)
    write_scalars(folder / SCALARS_FOLDER)
    evaluation = evaluation_of(shards, manifest)
    checkpoint = folder / "checkpoints" / "step-00000180.000001"
    checkpoint.mkdir(parents=True, exist_ok=True)
    (checkpoint / "evaluation.json").write_bytes(evaluation.to_json())
    entry = FileEntry.of(storage.normalise(folder), "checkpoints/step-00000180.000001/evaluation.json")
    document = CheckpointManifest(
        order={"kind": "full"},
        task={"name": "image_classification", "arguments": {}},
        fingerprint="c" * 16,
        made_from={"shards": manifest.fingerprint, "train": "7" * 16},
        finished=True,
        step=180,
        position=2880,
        epoch=2,
        slot_size=4,
        model={"architecture": "resnet"},
        classes=manifest.classes,
        data={"image_size": 16},
        shards_fingerprint=manifest.fingerprint,
        metrics={"validation_accuracy": 0.95, "validation_loss": 0.2, "test_accuracy": 0.9375, "test_loss": 0.25},
        best_step=180,
        headline=Headline(metric="accuracy", direction="max"),
        parameters_sha256="b" * 64,
        environment={"ranks": "2", "num_workers": "0", "torch": "2.13.0+cpu"},
        evaluation=entry,
        files=[],
    )
    return _publish(planted, "train", document)


def evaluation_of(shards: str, manifest: ShardManifest) -> EvaluationReport:
    """Return what an evaluation of the test split says; its worst samples are real ones."""
    from records.index import SampleIndex, key_of

    split = manifest.splits["test"]
    index = SampleIndex(manifest, shards)
    rows = [index[split.first + place] for place in range(split.samples)]
    worst = [
        WorstSample(
            shard=manifest.shards[manifest.shards.locate(split.first + place)[0]].relative_path,
            key=key_of(rows[place]),
            place=place,
            label=int(rows[place]["label"]),
            predicted=(int(rows[place]["label"]) + 1) % max(len(manifest.classes), 1),
            probability=0.01 * (place + 1),
            predicted_probability=0.9,
        )
        for place in range(min(5, split.samples))
    ]
    names = manifest.classes
    return EvaluationReport(
        task="image_classification",
        fingerprint="c" * 16,
        step=180,
        weights="model",
        parameters_sha256="b" * 64,
        shards_fingerprint=manifest.fingerprint,
        samples=16,
        headline=Headline(metric="accuracy", direction="max"),
        metrics={"accuracy": 0.9375},
        loss=0.25,
        details=ClassificationDetails(
            classes=[
                ClassOutcome(
                    name=name,
                    samples=5,
                    predicted=5,
                    right=4,
                )
                for name in names
            ],
            confusion=[(place, place, 5) for place in range(len(names))] + [(0, len(names) - 1, 1)],
            confusion_left_out=0,
            roc=None,
            worst=worst,
        ).model_dump(mode="json"),
    )


def _export(planted: Planted, shards: str, kind: Kind) -> str:
    refused = kind == "int8 refused"
    reason = "parity of model.int8.onnx: relative_error 0.31"
    tried = [Attempt(precision="int8", outcome="failed", reason=reason)] if refused else []
    document = make_manifest(
        made_from={"checkpoint": "b" * 64, "export": "8" * 16},
        asked_precision="int8" if refused else "fp16",
        tried=[*tried, Attempt(precision="fp16", outcome="kept")],
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


# --- events -----------------------------------------------------------------------------------------------------------


def _tell(planted: Planted, stage: str, at: float, *, kind: Kind, ends: bool) -> float:
    """Write the events of a stage's attempts; return when the last one ended."""
    cached = kind == "cached"
    uri = planted.uris.get(stage, (planted.line / stage / ("c" * 16)).as_uri())
    opening = [
        {"event": "start", "launched_at": at},
        {"event": "folder", "uri": uri, "fingerprint": uri.rpartition("/")[2]},
        {"event": "ready"},
    ]
    if cached:
        return _write(planted, stage, "", at, [*opening, {"event": "reused", "uri": uri}, _exit(at, 0, 2)])
    told: list[dict[str, Any]] = [*opening]
    if stage == "train":
        if kind == "resumed":
            # Killed after the checkpoint at step 100, without a word.
            at = _write(planted, stage, ".20261122-070100-0001", at, [*told, *_training("0.1", 0, 120, at)])
            at += 30
            told = [{**opening[0], "launched_at": at}, *opening[1:], *_training("0.2", 100, STEPS, at)]
        else:
            told += _training("0.1", 0, STEPS if ends else 80, at)
    else:
        told.append({"event": "progress", "done": 4, "total": 4, "unit": "shards", "message": "4 of 4"})
    suffix = ".20261122-070200-0001" if kind == "resumed" and stage == "train" else ""
    if ends:
        told += [{"event": "finish", "uri": uri, "made": f"what {stage} makes"}, _exit(at, 0, 20)]
    elif kind == "failed":
        message = f"{stage} cannot <b>work</b>\n  allowed: something else\n  to do: mend it"
        told += [{"event": "error", "exit_code": 2, "message": message}, _exit(at, 2, 20)]
    at = _write(planted, stage, suffix, at, told)
    log = planted.line / stage / "attempts" / f"{planted.run_id}{suffix}" / "log.txt"
    log.write_text(f"{stage}: starts\n{stage}: <script>alert(1)</script>\n")
    return at


def _exit(at: float, code: int, wall_s: float) -> dict[str, Any]:
    return {"event": "exit", "exit_code": code, "launched_at": at, "wall_s": wall_s}


def _training(life: str, first: int, last: int, at: float) -> list[dict[str, Any]]:
    told: list[dict[str, Any]] = [
        {"event": "life", "life": life, "started_at": at + 1},
        {"event": "resume", "life": life, "step": first, "number": 2 if first else 1, "ranks": 2, "nodes": 1},
    ]
    for step in range(first + EVERY, last + 1, EVERY):
        told.append(
            {"event": "progress", "done": step, "total": STEPS, "unit": "steps", "message": f"loss {2 / step:.4f}"}
        )
        # A checkpoint every second time; what comes after the last one is lost with a machine.
        seconds = {"data": 0.1, "step": 0.8} | ({"checkpoint": 0.05} if step % (2 * EVERY) == 20 else {})
        told.append({"event": "spent", "life": life, "step": step, "seconds": seconds})
    return told


def _write(planted: Planted, stage: str, suffix: str, at: float, told: list[dict[str, Any]]) -> float:
    name = f"{planted.run_id}{suffix}"
    folder = planted.line / stage / "attempts" / name
    folder.mkdir(parents=True, exist_ok=True)
    lines = []
    for event in told:
        at += 0.5
        lines.append(json.dumps({"time": at, "stage": stage, "attempt": name, **event}))
    (folder / "events.jsonl").write_text("\n".join(lines) + "\n")
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


# --- the record -------------------------------------------------------------------------------------------------------


def _record(planted: Planted, config: dict[str, Any], *, kind: Kind, failed: str, now: float, wall_s: float) -> None:
    def state(stage: str) -> str:
        if stage in planted.uris:
            return "reused" if kind == "cached" else "done"
        return "failed" if stage == failed else "not started"

    resolved = parse_config(config, where="planted")
    line = storage.normalise(planted.line)
    attempts = find_attempts(line, planted.run_id)
    goodput: GoodputRecord | None = account(attempts.values()) if attempts else None
    record = RunRecord(
        fingerprint="d" * 16,
        id=planted.run_id,
        state="failed" if kind == "failed" else "succeeded",
        error=f"stage {failed}: {failed} cannot <b>work</b>\n  to do: mend it" if kind == "failed" else "",
        started_at=_text(now),
        config=config,
        stages=[
            StageRecord(
                name=stage,
                state=state(stage),  # type: ignore[arg-type]
                wall_s=20.0 if state(stage) != "not started" else 0.0,
                start_s=1.0,
                uri=planted.uris.get(stage),
                manifest_sha256=_sha256(planted.uris[stage]) if stage in planted.uris else None,
                made=f"what {stage} makes" if stage in planted.uris else "",
            )
            for stage in STAGES
        ],
        wall_s=wall_s,
        process_start_s=4.0,
        results=collect_results(resolved, planted.uris),
        goodput=goodput,
    )
    (planted.folder / "run.json").write_bytes(record.to_json())


def _sha256(uri: str) -> str:
    return hashlib.sha256((storage.local_path(uri) / "manifest.json").read_bytes()).hexdigest()


def _sections(line: Path, changes: dict[str, Any]) -> dict[str, Any]:
    values = small_config(run={"name": line.name, "root": str(line.parent)}, sharding={"source": "/nowhere"})
    for name, section in changes.items():
        values[name] = {**values.get(name, {}), **section}
    return values


def _text(at: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(at))
