"""The training of a run: its time, its curves, what happened to it, what it cost, and how its best checkpoint did."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from contracts import storage
from contracts.artifacts import EVALUATION_NAME, CheckpointManifest, Contract, EvaluationReport, RunRecord
from contracts.config import RunConfig
from contracts.goodput import account
from contracts.scalars import SCALARS_FOLDER
from inspection.attempts import Events
from inspection.goodput import find_attempts
from inspection.run.curves import read_curves
from inspection.run.marks import find_marks
from inspection.run.money import find_money
from inspection.run.reading import Reading
from inspection.run.view import Curves, Missing

TENSORBOARD_FOLDER = "tensorboard"
# Between an event and the scalars of the same step.
_SLACK_S = 5.0


def read_training(
    reading: Reading,
    trained: Contract | None,
    uri: str | None,
    config: dict[str, Any],
    record: RunRecord | None,
    told: Mapping[str, Events],
    *,
    points: int,
) -> dict[str, Any]:
    """Return the fields of a RunView that training fills; without curves and marks where `points` is 0."""
    place, used = reading.place, trained.fingerprint if trained is not None else ""
    attempts = reading.attempt(
        "the attempts at training", lambda: find_attempts(place.line, place.run_id, known=told, training=used)
    )
    if not attempts:
        return {}
    best = trained.best_step if isinstance(trained, CheckpointManifest) else None
    goodput = record.goodput if record and record.goodput else None
    goodput = goodput or reading.attempt("the account of the training's time", lambda: account(attempts.values()))
    folder = uri or training_folder(reading, attempts)
    curves: Curves | None = None
    if points and folder is not None and reading.inside(folder):
        curves = reading.attempt("learning curves", lambda: _read_curves(reading, folder, points=points))
    if curves is not None:
        curves = cut_curves(curves, [float(event["time"]) for events in told.values() for event in events])
        reading.missing += [Missing(what="learning curves", reason=text) for text in curves.missing]
    resolved = reading.attempt("the configuration", lambda: RunConfig.model_validate(config))
    money, reason = find_money(resolved, goodput) if resolved is not None else (None, "the configuration is not known")
    if money is None:
        reading.missing.append(Missing(what="cost", reason=reason))
    return {
        "goodput": goodput,
        "money": money,
        "marks": reading.attempt("what happened to the training", lambda: find_marks(attempts, best_step=best))
        if points
        else None,
        "curves": curves,
    }


def read_evaluation(reading: Reading, uri: str, trained: CheckpointManifest) -> EvaluationReport | None:
    """Return how the best checkpoint did on the test split; None: nobody has looked, or it cannot be read."""
    if trained.evaluation is None:
        return None
    where = trained.evaluation.uri(uri)
    if not where.endswith(f"/{EVALUATION_NAME}") or not reading.inside(where):
        reading.missing.append(Missing(what="the evaluation", reason=f"its name is {trained.evaluation.name!r}"))
        return None
    return reading.attempt("the evaluation", lambda: reading.contract(EvaluationReport, where))


def _read_curves(reading: Reading, folder: str, *, points: int) -> Curves:
    scalars = storage.join(folder, SCALARS_FOLDER)
    names = storage.list_names(scalars)
    for name in names:
        reading.door.require(storage.join(scalars, name))
    return read_curves(scalars, points=points)


def cut_curves(curves: Curves, times: list[float]) -> Curves:
    """Return curves up to a run's last word: another run of the line may have gone on with the same training."""
    if not times:
        return curves
    end = max(times) + _SLACK_S
    kept = []
    for curve in curves.curves:
        places = [place for place, time in enumerate(curve.times) if time <= end]
        if len(places) == len(curve.times):
            kept.append(curve)
        elif places:
            rows = curve.rows * len(places) // len(curve.times)
            kept.append(curve.at(places).model_copy(update={"rows": rows}))
    return curves.model_copy(update={"curves": kept, "rows": sum(curve.rows for curve in kept)})


def training_folder(reading: Reading, attempts: Mapping[str, Events]) -> str | None:
    """Return the folder that the newest attempt works on."""
    for events in reversed(list(attempts.values())):
        for event in events:
            if event["event"] == "folder" and isinstance(event.get("uri"), str):
                return reading.located(event["uri"])
    return None
