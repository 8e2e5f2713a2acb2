"""Runs of every kind, as they are read: hand-made, of real documents."""

from __future__ import annotations

import base64
import io
import math
from functools import cache
from typing import Any

from PIL import Image

from contracts.artifacts import (
    Attempt,
    CheckpointManifest,
    EvaluationReport,
    ExportManifest,
    Gate,
    GoodputRecord,
    Headline,
    Latency,
    Rejected,
)
from contracts.artifacts.classification import ClassificationDetails, ClassOutcome, RocCurve, WorstSample
from inspection.run.view import (
    AttemptView,
    Curve,
    Curves,
    DataView,
    LineageView,
    Mark,
    Marks,
    Missing,
    MoneyView,
    PictureView,
    ProgressView,
    RunView,
    ShardView,
    SplitView,
    StageView,
)
from inspection.tasks.classification.worst import WorstView
from tests.export_fields import image_export, make_gates, make_manifest, make_verification
from tests.trainer.profiling.reports import gpu_report, gpu_summary

LINE = "file:///lines/flowers"
RUN_ID = "20260301-120000-0042"
START = 1_772_366_400.0
CLASSES = ["daisy", "dandelion", "iris", "poppy", "rose", "sunflower", "tulip", "violet"]


@cache
def jpeg(seed: int) -> str:
    """A small picture, a stripe a seed."""
    picture = Image.new("RGB", (24, 18), (seed * 37 % 256, seed * 71 % 256, seed * 113 % 256))
    for x in range(24):
        picture.putpixel((x, (x + seed) % 18), (255, 255, 255))
    held = io.BytesIO()
    picture.save(held, "JPEG", quality=60)
    return base64.b64encode(held.getvalue()).decode()


def picture(seed: int, label: str) -> PictureView:
    return PictureView(jpeg=jpeg(seed), width=24, height=18, label=label, key=f"key-{seed:04d}", split="train")


def make_data(classes: list[str] | None = None, *, shards: int = 40, rejected: int = 3) -> DataView:
    classes = CLASSES if classes is None else classes
    splits = [
        SplitView(
            name=name,
            samples=sum(share + place % 7 for place in range(len(classes))),
            source_bytes=10**8,
            by_class=[share + place % 7 for place in range(len(classes))],
        )
        for name, share in (("train", 800), ("validation", 100), ("test", 200))
    ]
    sizes = [67_000_000 + 40_000 * (place * 7 % 11) for place in range(shards)]
    return DataView(
        uri=f"{LINE}/shard/abc",
        format="webdataset",
        is_increment=True,
        classes=classes,
        num_classes=len(classes),
        splits=splits,
        shards=[
            ShardView(split="train", shards=shards, samples=6400, bytes=sum(sizes), sizes=sizes),
            ShardView(split="test", shards=2, samples=1600, bytes=sum(sizes[:2]), sizes=sizes[:2]),
        ],
        num_rejected=rejected,
        rejected=[
            Rejected(path=f"rose/{place}.jpg", reason=f"damaged jpeg: {place} bytes are left over")
            for place in range(min(rejected, 1000))
        ],
        rejected_by_reason={f"damaged jpeg: {place} bytes are left over": rejected // 3 or 1 for place in range(3)},
        num_ignored=2,
        formats={"jpeg": 8000, "png": 120},
        width=[120, 640],
        height=[90, 480],
        duplicate_groups=4,
        duplicate_copies=5,
        leaking_groups=1,
        mean=[0.46, 0.44, 0.41],
        std=[0.29, 0.27, 0.28],
    )


def make_curves(points: int = 400, *, rows: int | None = None, step_s: float = 6.0) -> Curves:
    steps = [10 * (place + 1) for place in range(points)]
    times = [START + 400 + step_s * step / 10 + (1800 if step > 5 * points else 0) for step in steps]

    def curve(name: str, values: list[float]) -> Curve:
        return Curve(name=name, steps=steps, times=times, values=values, rows=rows or points)

    shares = [place / points for place in range(points)]
    few = slice(None, None, max(1, points // 20))
    curves = [
        curve("train/loss", [2.1 * math.exp(-4 * share) + 0.05 + 0.02 * math.sin(40 * share) for share in shares]),
        curve("train/learning_rate", [0.003 * (1 + math.cos(math.pi * share)) / 2 for share in shares]),
        curve("train/gradient_norm", [3 * math.exp(-3 * share) + 0.1 for share in shares]),
        curve("data/samples_per_s", [790 + 15 * math.sin(30 * share) for share in shares]),
        curve("data/time_percent", [22 + 6 * math.sin(25 * share) for share in shares]),
        Curve(
            name="validation/loss",
            steps=steps[few],
            times=times[few],
            values=[2 * math.exp(-3.5 * share) + 0.09 for share in shares[few]],
            rows=20,
        ),
        Curve(
            name="validation/accuracy",
            steps=steps[few],
            times=times[few],
            values=[0.97 - 0.8 * math.exp(-5 * share) for share in shares[few]],
            rows=20,
        ),
    ]
    return Curves(curves=curves, rows=sum(each.rows for each in curves))


def make_marks(*, preemptions: int = 0, checkpoints: int = 12, whole_s: float = 4800.0) -> Marks:
    marks = [Mark(kind="start", time=START + 300, step=0, text="attempt 1")]
    marks += [
        Mark(
            kind="checkpoint", time=START + 400 + whole_s * (place + 0.9) / checkpoints, step=100 * (place + 1), text=""
        )
        for place in range(checkpoints)
    ]
    for place in range(preemptions):
        at = START + 400 + whole_s * (place + 0.5) / preemptions
        marks.append(Mark(kind="preemption", time=at, step=50 + 100 * place, text="told to stop (SIGTERM)"))
        marks.append(Mark(kind="resume", time=at + whole_s / preemptions / 4, step=40 + 100 * place, text="2 ranks"))
    marks.append(Mark(kind="end", time=START + 420 + whole_s, step=100 * checkpoints, text="all epochs"))
    marks.append(Mark(kind="best", time=marks[checkpoints].time, step=100 * checkpoints, text="best checkpoint"))
    marks.sort(key=lambda mark: mark.time)
    counts: dict[str, int] = {}
    for mark in marks:
        counts[mark.kind] = counts.get(mark.kind, 0) + 1
    return Marks(marks=marks, counts=counts)


def make_goodput(**changes: Any) -> GoodputRecord:
    values: dict[str, Any] = {
        "wall_s": 4900.0,
        "between_attempts_s": 310.0,
        "productive_s": 3600.0,
        "start_up_s": 420.0,
        "data_wait_s": 390.0,
        "checkpoint_s": 60.0,
        "evaluation_s": 130.0,
        "lost_s": 210.0,
        "recovery_s": 40.0,
        "stop_s": 50.0,
        "goodput_percent": 73.5,
        "attempts": 3,
        "starts": 4,
        "steps": 4000,
        "lost_steps": 90,
        "preemptions": 2,
        "crashes": 1,
        "node_hours": 2.72,
        "preemptions_per_node_hour": 0.73,
    }
    return GoodputRecord(**{**values, **changes})


def make_money() -> MoneyView:
    return MoneyView(
        node_hours=2.72,
        machine="g2-standard-8, 1 NVIDIA_L4",
        strategy="SPOT",
        cost_usd=1.31,
        on_demand_usd=2.71,
        source="the price table",
        as_of="2026-02-27",
        assumptions=["only the training's machines"],
    )


def make_checkpoint(classes: list[str]) -> CheckpointManifest:
    return CheckpointManifest(
        order={"kind": "full"},
        task={"name": "image_classification", "arguments": {}},
        fingerprint="c" * 16,
        finished=True,
        step=4000,
        position=256_000,
        epoch=40,
        slot_size=64,
        model={"architecture": "resnet"},
        classes=classes,
        data={},
        shards_fingerprint="5" * 16,
        metrics={"test_accuracy": 0.9375, "test_loss": 0.21, "validation_accuracy": 0.95, "validation_loss": 0.19},
        best_step=3900,
        headline=Headline(metric="accuracy", direction="max"),
        evaluated="ema",
        parameters_sha256="a1" * 32,
        ended_by="epochs",
        environment={"ranks": "2"},
        files=[],
    )


def make_evaluation(classes: list[str] | None = None, *, each: int = 40) -> EvaluationReport:
    """Of each class the last three samples are taken for the next one."""
    classes = CLASSES if classes is None else classes
    number = len(classes)
    outcomes = [
        ClassOutcome(
            name=name,
            samples=each,
            predicted=each,
            right=each - 3,
        )
        for name in classes
    ]
    points = [(1 - n / 20, round(each * (n / 20) ** 4), round(each * (n / 20) ** 0.25)) for n in range(1, 21)]
    cells = [(place, place, each - 3) for place in range(number)]
    cells += [(place, (place + 1) % number, 3) for place in range(number)]
    return EvaluationReport(
        task="image_classification",
        fingerprint="c" * 16,
        step=3900,
        weights="ema",
        parameters_sha256="a1" * 32,
        shards_fingerprint="5" * 16,
        samples=each * number,
        headline=Headline(metric="accuracy", direction="max"),
        metrics={"accuracy": (each - 3) / each},
        loss=0.21,
        details=ClassificationDetails(
            classes=outcomes,
            confusion=sorted(cells),
            confusion_left_out=0,
            roc=RocCurve(area=0.99, points=points) if number == 2 else None,
            worst=[
                WorstSample(
                    shard="test-0.tar",
                    key=f"{place:04d}",
                    place=place,
                    label=place % number,
                    predicted=(place + 1) % number,
                    probability=0.02 + 0.01 * place,
                    predicted_probability=0.9 - 0.01 * place,
                )
                for place in range(12)
            ],
        ).model_dump(mode="json"),
    )


def make_task_parts(evaluation: EvaluationReport) -> dict[str, Any]:
    details = ClassificationDetails.of(evaluation)
    assert details is not None
    names = [outcome.name for outcome in details.classes]
    worst = [
        WorstView(
            picture=picture(each.place, names[each.label]) if each.place % 5 else None,
            key=each.key,
            label=names[each.label],
            predicted=names[each.predicted],
            probability=each.probability,
            predicted_probability=each.predicted_probability,
        )
        for each in details.worst
    ]
    return {"worst": [each.model_dump(mode="json") for each in worst]}


def make_export(*, int8_refused: bool = False, **changes: Any) -> ExportManifest:
    tried = [Attempt(precision="fp16", kept_fp32=["encoder.norm"], outcome="kept")]
    gates = make_gates("model.fp16.onnx")
    if int8_refused:
        why = "accuracy is 0.909375, torch's is 0.9375"
        tried.insert(0, Attempt(precision="int8", outcome="failed", reason=f"metric of model.int8.onnx: {why}"))
        refused = {"precision": "int8", "file": "model.int8.onnx", "status": "failed", "reason": why}
        figures = {"figures": {"loss": 0.028125, "samples": 320}, "limits": {"loss": 0.005}}
        gates.append(gates[1].model_copy(update={**refused, **figures}))
    engine = {"name": "parity", "precision": "fp16", "file": "model.fp16.sm89.engine", "ran": "tensorrt_rtx 1.7.1"}
    gates.append(Gate(**engine, status="not run", reason="no GPU of sm89"))
    latency = [Latency(ran="onnxruntime 1.31.1, CPU", batch=batch, median_ms=1.5 * batch, calls=50) for batch in (1, 8)]
    values = {
        "asked_precision": "int8" if int8_refused else "fp16",
        "tried": tried,
        "gates": gates,
        "latency": latency,
        **image_export(224, 8),
    }
    return make_manifest(**{**values, **changes})


def make_stage(name: str, state: Any = "done", **changes: Any) -> StageView:
    made = {
        "shard": "8,800 samples (6,400 / 800 / 1,600) in 42 webdataset shards, 2.8 GB",
        "profile": "slot size 64, 4 workers, 22 points, 3 findings",
        "train": "best checkpoint at step 3900, test accuracy 0.9375",
        "export": "fp16; unproven: not run on a GPU",
    }
    folder = f"{LINE}/{name}/attempts/{RUN_ID}"
    ran = state in ("done", "running", "failed", "stopped")
    attempt = AttemptView(
        name=RUN_ID,
        started_at=START,
        ended_at=START + 90 if state != "running" else None,
        exit_code={"done": 0, "failed": 2}.get(state),
        error="",
        folder=folder,
        log=f"{folder}/log.txt",
    )
    values: dict[str, Any] = {
        "name": name,
        "state": state,
        "started_at": START if ran else None,
        "wall_s": 90.0 if ran else None,
        "start_s": 8.0 if ran else None,
        "made": made[name] if state in ("done", "reused") else "",
        "uri": f"{LINE}/{name}/0123456789abcdef" if state in ("done", "reused") else None,
        "attempts": [attempt] if ran else [],
    }
    return StageView(**{**values, **changes})


def make_lineage() -> list[LineageView]:
    return [
        LineageView(name="listing", stage="shard", uri=None, fingerprint="", sha256="11" * 32, made_from={}),
        LineageView(
            name="shards",
            stage="shard",
            uri=f"{LINE}/shard/5",
            fingerprint="5" * 16,
            sha256="5a" * 32,
            made_from={"listing": "11" * 32, "seed": "5feceb66ffc86f38"},
        ),
        LineageView(
            name="checkpoint",
            stage="train",
            uri=f"{LINE}/train/c",
            fingerprint="c" * 16,
            sha256="33" * 32,
            made_from={"shards": "5" * 16, "parameters (its own)": "a1" * 32},
        ),
        LineageView(
            name="export",
            stage="export",
            uri=f"{LINE}/export/e",
            fingerprint="e" * 16,
            sha256="44" * 32,
            made_from={"checkpoint parameters": "a1" * 32, "graph fp16 (its own)": "2" * 64},
        ),
        LineageView(
            name="engine",
            stage="export",
            uri=f"{LINE}/export/e/model.engine",
            fingerprint="e" * 16,
            sha256="ab" * 32,
            made_from={"graph": "2" * 64},
        ),
    ]


def fresh(**changes: Any) -> RunView:
    """A run that went through, without a preemption."""
    evaluation = make_evaluation()
    values: dict[str, Any] = {
        "id": RUN_ID,
        "name": "flowers",
        "line": LINE,
        "folder": f"{LINE}/runs/{RUN_ID}",
        "place": "local",
        "state": "succeeded",
        "started_at": START,
        "ended_at": START + 5600,
        "wall_s": 5600.0,
        "seen_at": START + 6000,
        "last_word_at": START + 5590,
        "config": {"run": {"name": "flowers", "seed": 0}, "train": {"epochs": 40, "learning_rate": 0.003}},
        "stages": [make_stage(name) for name in ("shard", "profile", "train", "export")],
        "data": make_data(),
        "pictures": [picture(place, CLASSES[place % 8]) for place in range(16)],
        "profile": gpu_report(),
        "trace_summaries": [gpu_summary()],
        "curves": make_curves(),
        "marks": make_marks(),
        "goodput": make_goodput(lost_s=0.0, lost_steps=0, preemptions=0, crashes=0, recovery_s=0.0),
        "money": make_money(),
        "checkpoint": make_checkpoint(CLASSES),
        "evaluation": evaluation,
        "task_parts": make_task_parts(evaluation),
        "export": make_export(),
        "lineage": make_lineage(),
    }
    return RunView(**{**values, **changes})


def resumed() -> RunView:
    """A submitted run, preempted three times, with an attempt of each kind of end."""
    attempts = [
        AttemptView(
            name=f"{RUN_ID}.{place}",
            started_at=START + 1200 * place,
            ended_at=START + 1200 * place + 900,
            exit_code=code,
            error=error,
            folder=f"gs://bucket/flowers/train/attempts/{RUN_ID}.{place}",
            log=f"gs://bucket/flowers/train/attempts/{RUN_ID}.{place}/log.txt",
        )
        for place, (code, error) in enumerate(
            [(75, "training was told to stop (SIGTERM)"), (None, ""), (75, "a rank hung"), (0, "")]
        )
    ]
    stages = [make_stage("shard", "reused"), make_stage("profile", "reused"), make_stage("train", attempts=attempts)]
    return fresh(
        line="gs://bucket/flowers",
        folder=f"gs://bucket/flowers/runs/{RUN_ID}",
        place="vertex",
        console="https://console.cloud.google.com/vertex-ai/pipelines/runs/1",
        stages=[*stages, make_stage("export", uri="gs://bucket/flowers/export/e"), registered()],
        marks=make_marks(preemptions=3),
        goodput=make_goodput(),
        registration={"verdict": "refused", "proof": "unproven: not run on a GPU"},
    )


def registered() -> StageView:
    return StageView(name="register", state="done", started_at=START, wall_s=4.0, made="refused: unproven")


def cached() -> RunView:
    """Every stage reused."""
    stages = [make_stage(name, "reused") for name in ("shard", "profile", "train", "export")]
    return fresh(stages=stages, wall_s=3.5)


def int8_refused() -> RunView:
    return fresh(export=make_export(int8_refused=True))


def proven() -> RunView:
    document = make_export()
    return fresh(export=document, verification=make_verification(document))


ERROR = "the source holds no images\n  allowed: at least one image a split\n  to do: check sharding.source"
# What a run has of each stage's documents.
_OF_STAGE: dict[str, tuple[str, ...]] = {
    "shard": ("data", "pictures"),
    "profile": ("profile", "trace_summaries"),
    "train": ("curves", "marks", "goodput", "money", "checkpoint", "evaluation", "task_parts"),
    "export": ("export",),
}
_EMPTY: dict[str, Any] = {"pictures": [], "trace_summaries": [], "task_parts": {}}
STAGES = tuple(_OF_STAGE)


def up_to(stage: str, state: str, **changes: Any) -> RunView:
    """A run whose stages before `stage` are done, and which has come to a state in it."""
    place = STAGES.index(stage)
    after = "waiting" if state == "running" else "not started"
    stages = [make_stage(name) for name in STAGES[:place]]
    error = ERROR if state == "failed" else ""
    stages.append(make_stage(stage, state, error=error))
    stages += [make_stage(name, after) for name in STAGES[place + 1 :]]
    missing = {name: _EMPTY.get(name) for later in STAGES[place:] for name in _OF_STAGE[later]}
    return fresh(
        **{
            **missing,
            "state": state,
            "stages": stages,
            "error": error,
            "ended_at": None if state == "running" else START + 900,
            "wall_s": 900.0,
            "lineage": make_lineage()[: place + 1],
            **changes,
        }
    )


def failed_in(stage: str) -> RunView:
    view = up_to(stage, "failed")
    (error,) = (one.error for one in view.stages if one.name == stage)
    # As its record says it.
    return view.model_copy(update={"error": f"stage {stage}: {error}"})


def running() -> RunView:
    """Training goes on: curves and the account are those so far."""
    progress = ProgressView(done=1200, total=4000, unit="steps", message="loss 0.81, data time 21.0 %", at=START + 800)
    view = up_to("train", "running", curves=make_curves(120), marks=make_marks(preemptions=1), goodput=make_goodput())
    stages = [
        stage.model_copy(update={"progress": progress}) if stage.name == "train" else stage for stage in view.stages
    ]
    return view.model_copy(update={"stages": stages})


def stopped() -> RunView:
    """Killed while it trained."""
    return up_to("train", "stopped", curves=make_curves(60), marks=make_marks(checkpoints=3, whole_s=600))


def interrupted() -> RunView:
    """Ctrl-C while it trained."""
    return up_to(
        "train",
        "interrupted",
        error="interrupted by SIGINT; the same command again continues",
        goodput=make_goodput(interruptions=1, kills=1),
    )


def silent() -> RunView:
    view = up_to("train", "running", curves=make_curves(60))
    return view.model_copy(update={"state": "silent", "line": "gs://bucket/flowers", "place": "vertex"})


def bare() -> RunView:
    """A run of which only its start is known, and of which much cannot be read."""
    return RunView(
        id=RUN_ID,
        name="flowers",
        line=LINE,
        folder=f"{LINE}/runs/{RUN_ID}",
        place="local",
        state="running",
        seen_at=START,
        config={},
        stages=[],
        missing=[
            Missing(what="the run's record", reason="format version 9: use the version of shardline that wrote it")
        ],
    )


KINDS = {
    "fresh": fresh,
    "resumed": resumed,
    "cached": cached,
    "int8 refused": int8_refused,
    "proven": proven,
    "running": running,
    "stopped": stopped,
    "interrupted": interrupted,
    "silent": silent,
    "bare": bare,
    **{f"failed in {stage}": (lambda stage=stage: failed_in(stage)) for stage in STAGES},
}


def large() -> RunView:
    """1,000 classes, 2,000 shards, 200 preemptions, 10,000 rejected files, very long names."""
    long = "a very long name " * 40
    classes = [f"class {place} {long}" for place in range(1000)]
    evaluation = make_evaluation(classes, each=5)
    attempts = make_stage("train").attempts * 200
    curves = make_curves(400, rows=150_000)
    more = [curves.curves[0].model_copy(update={"name": f"layer/{place}/{long[:100]}"}) for place in range(40)]
    return fresh(
        name=long,
        data=make_data(classes, shards=2000, rejected=10_000),
        pictures=[picture(place, classes[place]) for place in range(200)],
        curves=Curves(curves=[*curves.curves, *more], rows=1_000_000),
        marks=make_marks(preemptions=200, checkpoints=300),
        checkpoint=make_checkpoint(classes),
        evaluation=evaluation,
        task_parts=make_task_parts(evaluation),
        stages=[
            make_stage("shard"),
            make_stage("profile"),
            make_stage("train", attempts=attempts),
            make_stage("export"),
        ],
        missing=[Missing(what=f"document {place}", reason=long) for place in range(500)],
        config={"run": {f"key{place}": long for place in range(2000)}},
    )
