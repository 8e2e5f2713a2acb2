"""Everything that is known of a run, read from what it left: one RunView.

What a run holds never ends this: a document that is missing, damaged, too large, of a newer version, or none at all is
named in `RunView.missing`, and all else is read.
"""

from __future__ import annotations

import datetime
import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from pydantic import ValidationError

from contracts import storage
from contracts.artifacts import (
    EVALUATION_NAME,
    MANIFEST_NAME,
    CheckpointManifest,
    Contract,
    EvaluationReport,
    ExportManifest,
    ProfileReport,
    RunRecord,
    ShardManifest,
    Verification,
)
from contracts.config import STAGES, RunConfig
from contracts.errors import ShardlineError
from contracts.goodput import account
from contracts.registration import find_registration
from inspection.attempts import Events
from inspection.goodput import find_attempts
from inspection.record import RUN_NAME
from inspection.run.curves import read_curves
from inspection.run.data import describe_data
from inspection.run.events import list_attempts, of_run, read_events_of
from inspection.run.find import RunPlace
from inspection.run.lineage import find_lineage, manifest_sha256
from inspection.run.marks import find_marks
from inspection.run.money import find_money
from inspection.run.stages import MOST_CHARACTERS, read_stage
from inspection.run.state import find_state
from inspection.run.view import Curves, Missing, RunView, StageView

# A document that is larger is not read: no page could show it, and a hostile one must not fill the memory.
MOST_BYTES = 256 << 20
TENSORBOARD_FOLDER = "tensorboard"
VERIFIED_FOLDER = "verified"
_CONTRACTS: dict[str, type[Contract]] = {
    "shard": ShardManifest,
    "profile": ProfileReport,
    "train": CheckpointManifest,
    "export": ExportManifest,
}
T = TypeVar("T")
C = TypeVar("C", bound=Contract)


@dataclass
class _Reading:
    """What one reading of a run has found so far."""

    place: RunPlace
    missing: list[Missing] = field(default_factory=list)
    recorded_line: str = ""
    """Where the run's documents say that the line is."""

    def located(self, uri: str) -> str:
        """Return where something is that a document names: the line may have been moved or copied."""
        if self.recorded_line and uri.startswith(self.recorded_line + "/"):
            return self.place.line + uri[len(self.recorded_line) :]
        return uri

    def inside(self, uri: str) -> bool:
        """Whether something lies in the line: nothing else is read on the word of a document."""
        parts = uri.split("/")
        return uri.startswith(self.place.line + "/") and ".." not in parts and "." not in parts

    def attempt(self, what: str, read: Callable[[], T]) -> T | None:
        """Return what `read` returns; what goes wrong is written down."""
        try:
            return read()
        except (
            OSError,
            ShardlineError,
            ValidationError,
            ValueError,
            LookupError,
            TypeError,
            AttributeError,
            ImportError,
        ) as error:
            text = str(error).splitlines()[0] if str(error) else type(error).__name__
            if isinstance(error, FileNotFoundError):
                text = "it is not there"
            self.missing.append(Missing(what=what, reason=text[:MOST_CHARACTERS]))
            return None

    def document(self, what: str, uri: str) -> bytes:
        """Return the content of a document of bounded size."""
        if (size := storage.size(uri)) > MOST_BYTES:
            raise ValueError(f"{storage.display(uri)} has {size} bytes, more than the {MOST_BYTES} that are read")
        return storage.read_bytes(uri)


def read_run(place: RunPlace, *, pictures: bool = True, points: int = 400, now: float | None = None) -> RunView:
    """Return everything that is known of a run.

    Args:
        place: Where it is.
        pictures: Read images out of its shards too.
        points: Of a curve at most.
        now: Seconds since the epoch; None: the clock's.
    """
    reading = _Reading(place)
    now = time.time() if now is None else now
    start = _read_start(reading)
    record = _read_record(reading)
    config = _dict(start.get("config")) or (record.config if record else {})
    attempts = {stage: _read_attempts(reading, stage) for stage in STAGES}
    started_at = _moment(start.get("started_at")) or (_moment(record.started_at) if record else None)
    times = [float(event["time"]) for told in attempts.values() for events in told.values() for event in events]
    last_word_at = max(times, default=None)
    state = find_state(place, record.state if record else None, last_word_at=last_word_at or started_at, now=now)
    over = state != "running"
    stages = [
        read_stage(
            place, name, attempts[name], record=record, over=over, located=reading.located, missing=reading.missing
        )
        for name in STAGES
    ]
    documents = _read_documents(reading, stages)
    return RunView(
        id=place.run_id,
        name=_name(place, config),
        line=place.line,
        folder=place.folder,
        place="vertex" if "run_config" in _dict(start.get("arguments")) else "local",
        state=state,
        error=(record.error if record else _error(stages))[:MOST_CHARACTERS],
        started_at=started_at,
        ended_at=started_at + record.wall_s if record and started_at else None,
        wall_s=record.wall_s if record else _wall_s(started_at, now if state == "running" else last_word_at),
        seen_at=now,
        last_word_at=last_word_at,
        console=_console(place, start, config),
        config=config,
        stages=stages,
        **_read_stage_parts(reading, documents, stages, config, record, pictures=pictures, points=points),
        missing=reading.missing,
    )


def find_folder(place: RunPlace, stage: str) -> str | None:
    """Return the URI of the folder that a stage of a run has worked on last; None where there is none in the line."""
    reading = _Reading(place)
    _read_start(reading)
    record = _read_record(reading)
    told = _read_attempts(reading, stage)
    view = read_stage(place, stage, told, record=record, over=True, located=reading.located, missing=reading.missing)
    folder = view.uri or _training_folder(reading, told)
    return folder if folder is not None and reading.inside(folder) else None


def _read_start(reading: _Reading) -> dict[str, Any]:
    uri = reading.place.start_uri
    start = reading.attempt("the run's first document", lambda: _object(reading.document("start", uri), uri)) or {}
    line = _dict(start.get("arguments")).get("line")
    reading.recorded_line = line.rstrip("/") if isinstance(line, str) else ""
    return start


def _read_record(reading: _Reading) -> RunRecord | None:
    uri = storage.join(reading.place.folder, RUN_NAME)
    if not storage.exists(uri):
        return None
    return reading.attempt("the run's record", lambda: RunRecord.parse(reading.document("record", uri), where=uri))


def _read_attempts(reading: _Reading, stage: str) -> dict[str, Events]:
    names = of_run(list_attempts(reading.place.line, stage), reading.place.run_id)
    told, problems = read_events_of(reading.place.line, stage, names)
    reading.missing += [Missing(what=f"events of stage {stage}", reason=problem) for problem in problems]
    return told


def _read_documents(reading: _Reading, stages: list[StageView]) -> dict[str, Contract]:
    found: dict[str, Contract] = {}
    for stage in stages:
        if stage.uri is None:
            continue
        what = f"what stage {stage.name} made"
        if not reading.inside(stage.uri):
            reason = f"{storage.display(stage.uri)} is not below {storage.display(reading.place.line)}"
            reading.missing.append(Missing(what=what, reason=reason[:MOST_CHARACTERS]))
            continue
        uri = storage.join(stage.uri, MANIFEST_NAME)
        document = reading.attempt(what, lambda kind=_CONTRACTS[stage.name], uri=uri: _parse(reading, kind, uri))  # type: ignore[misc]
        if document is not None:
            found[stage.name] = document
    return found


def _parse(reading: _Reading, kind: type[C], uri: str) -> C:
    return kind.parse(reading.document(kind.__name__, uri), where=storage.display(uri))


def _read_stage_parts(
    reading: _Reading,
    documents: Mapping[str, Contract],
    stages: list[StageView],
    config: dict[str, Any],
    record: RunRecord | None,
    *,
    pictures: bool,
    points: int,
) -> dict[str, Any]:
    """Return the fields of a RunView that stages' documents fill."""
    place = reading.place
    uris = {stage.name: stage.uri for stage in stages if stage.uri is not None and stage.name in documents}
    parts: dict[str, Any] = {}
    shards = documents.get("shard")
    if isinstance(shards, ShardManifest):
        parts["data"] = reading.attempt("the data", lambda: describe_data(uris["shard"], shards))
        if pictures:
            parts["pictures"] = reading.attempt("the contact sheet", lambda: _contacts(uris["shard"], shards)) or []
    profile = documents.get("profile")
    if isinstance(profile, ProfileReport):
        parts["profile"] = profile
        page = profile.page_uri(uris["profile"])
        parts["profile_page"] = page if page is not None and reading.inside(page) else None
    trained = documents.get("train")
    if isinstance(trained, CheckpointManifest):
        parts["checkpoint"] = trained
        evaluation = _read_evaluation(reading, uris["train"], trained)
        parts["evaluation"] = evaluation
        if pictures and evaluation is not None and isinstance(shards, ShardManifest):
            parts["worst"] = (
                reading.attempt("the worst-classified samples", lambda: _worst(uris["shard"], shards, evaluation)) or []
            )
    parts |= _read_training(reading, trained, uris.get("train"), config, record, points=points)
    exported = documents.get("export")
    if isinstance(exported, ExportManifest):
        parts["export"] = exported
        parts["verifications"] = _read_verifications(reading, uris["export"])
    registration = reading.attempt("the model registry's word", lambda: find_registration(place.line, place.run_id))
    parts["registration"] = registration.model_dump(mode="json") if registration else None
    hashes = {stage.name: stage.manifest_sha256 for stage in stages if stage.manifest_sha256}
    for name, uri in uris.items():
        if name not in hashes and (found := reading.attempt(f"the hash of {name}", lambda uri=uri: _sha256(uri))):  # type: ignore[misc]
            hashes[name] = found
    parts["lineage"] = find_lineage(documents, uris, hashes)
    return parts


def _read_training(
    reading: _Reading,
    trained: Contract | None,
    uri: str | None,
    config: dict[str, Any],
    record: RunRecord | None,
    *,
    points: int,
) -> dict[str, Any]:
    attempts = reading.attempt(
        "the attempts at training", lambda: find_attempts(reading.place.line, reading.place.run_id)
    )
    if not attempts:
        return {}
    best = trained.best_step if isinstance(trained, CheckpointManifest) else None
    goodput = record.goodput if record and record.goodput else None
    goodput = goodput or reading.attempt("the account of the training's time", lambda: account(attempts.values()))
    folder = uri or _training_folder(reading, attempts)
    curves: Curves | None = None
    if folder is not None and reading.inside(folder):
        logs = storage.join(folder, TENSORBOARD_FOLDER)
        curves = reading.attempt("learning curves", lambda: read_curves(logs, points=points))
    if curves is not None:
        reading.missing += [Missing(what="learning curves", reason=text) for text in curves.missing]
    resolved = reading.attempt("the configuration", lambda: RunConfig.model_validate(config))
    money, reason = find_money(resolved, goodput) if resolved is not None else (None, "the configuration is not known")
    if money is None:
        reading.missing.append(Missing(what="cost", reason=reason))
    return {
        "goodput": goodput,
        "money": money,
        "marks": reading.attempt("what happened to the training", lambda: find_marks(attempts, best_step=best)),
        "curves": curves,
    }


def _training_folder(reading: _Reading, attempts: Mapping[str, Events]) -> str | None:
    """Return the folder that the newest attempt works on."""
    for events in reversed(list(attempts.values())):
        for event in events:
            if event["event"] == "folder" and isinstance(event.get("uri"), str):
                return reading.located(event["uri"])
    return None


def _read_evaluation(reading: _Reading, uri: str, trained: CheckpointManifest) -> EvaluationReport | None:
    if trained.evaluation is None:
        return None
    where = trained.evaluation.uri(uri)
    if not where.endswith(f"/{EVALUATION_NAME}") or not reading.inside(where):
        reading.missing.append(Missing(what="the evaluation", reason=f"its name is {trained.evaluation.name!r}"))
        return None
    return reading.attempt("the evaluation", lambda: _parse(reading, EvaluationReport, where))


def _read_verifications(reading: _Reading, uri: str) -> list[Verification]:
    folder = storage.join(uri, VERIFIED_FOLDER)
    found = []
    for name in storage.list_names(folder):
        if name.endswith(".json"):
            where = storage.join(folder, name)
            document = reading.attempt(f"verification {name}", lambda where=where: _parse(reading, Verification, where))  # type: ignore[misc]
            if document is not None:
                found.append(document)
    return found


def _contacts(uri: str, shards: ShardManifest) -> Any:
    from inspection.run.pictures import contact_sheet

    return contact_sheet(uri, shards)


def _worst(uri: str, shards: ShardManifest, evaluation: EvaluationReport) -> Any:
    from inspection.run.pictures import worst_samples

    return worst_samples(uri, shards, evaluation)


def _sha256(uri: str) -> str:
    return manifest_sha256(storage.join(uri, MANIFEST_NAME))


def _object(content: bytes, uri: str) -> dict[str, Any]:
    found = json.loads(content)
    if not isinstance(found, dict):
        raise ValueError(f"{storage.display(uri)} holds no JSON object")
    return found


def _dict(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _name(place: RunPlace, config: dict[str, Any]) -> str:
    name = _dict(config.get("run")).get("name")
    return name if isinstance(name, str) and name else storage.display(place.line).rstrip("/").rpartition("/")[2]


def _moment(text: object) -> float | None:
    try:
        return datetime.datetime.fromisoformat(str(text)).timestamp()
    except (ValueError, OverflowError):
        return None


def _wall_s(start: float | None, end: float | None) -> float | None:
    return max(0.0, end - start) if start is not None and end is not None else None


def _error(stages: list[StageView]) -> str:
    return next((f"stage {stage.name}: {stage.error}" for stage in stages if stage.state == "failed"), "")


def _console(place: RunPlace, start: dict[str, Any], config: dict[str, Any]) -> str | None:
    """Return the run's page in Google's console, where it is a PipelineJob."""
    vertex = _dict(config.get("vertex"))
    project, region = vertex.get("project"), vertex.get("region")
    if "run_config" not in _dict(start.get("arguments")) or not _is_word(project) or not _is_word(region):
        return None
    page = f"https://console.cloud.google.com/vertex-ai/locations/{region}/pipelines/runs/{place.run_id}"
    return f"{page}?project={project}" if _is_word(place.run_id) else None


def _is_word(value: object) -> bool:
    return isinstance(value, str) and value != "" and all(letter.isalnum() or letter in "-_.:" for letter in value)
