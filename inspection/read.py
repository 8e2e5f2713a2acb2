"""Reading of a run's files into a RunView.

A document that is missing, damaged, too large or of another format version is listed in `RunView.missing`, and all
other documents are read. Nothing is executed or unpickled.
"""

from __future__ import annotations

import hashlib
import re
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

from contracts import storage
from contracts.artifacts import (
    MANIFEST_NAME,
    MANIFESTS,
    CheckpointManifest,
    Contract,
    EvaluationReport,
    ExportManifest,
    ProfileReport,
    RunRecord,
    ShardManifest,
    TraceSummary,
    Verification,
)
from contracts.artifacts.profile import SUMMARY_NAME, summaries_type
from contracts.config import STAGES
from contracts.goodput import account
from contracts.previous import RUN_NAME
from contracts.proof import verification_uri
from contracts.scalars import SCALARS_FOLDER
from inspection.differences import find_previous_run
from inspection.documents import (
    MANIFEST_BYTES,
    READ_ERRORS,
    SMALL_BYTES,
    as_object,
    as_time,
    first_line,
    is_inside,
    parse_json,
    read_object,
    read_small,
)
from inspection.find import RunPlace
from inspection.money import find_money
from inspection.samples import worst_samples
from inspection.stages import MOST_CHARACTERS, Events, find_maker, find_state, in_order, list_attempts, read_events
from inspection.stages import read_stage as view_stage
from inspection.training import find_marks, read_attempts, read_curves
from inspection.view import Missing, RunView, StageView, State, shows_samples

# Summaries of the traces of all ranks; one has some 50 kB.
_SUMMARY_BYTES = 32 << 20
_MOST_WARNINGS = 50
_WORD = re.compile(r"[\w.:-]+", re.ASCII)
_JOB = re.compile(r"projects/[\w.:-]+/locations/([\w-]+)/pipelineJobs/[\w-]+", re.ASCII)
# Inputs of stages, and the stage that produces each.
_PRODUCERS = {"shards": "shard", "profile": "profile", "checkpoint": "train"}

T = TypeVar("T")
C = TypeVar("C", bound=Contract)


@dataclass
class Reading:
    """State of reading a run; `missing` collects unreadable parts."""

    place: RunPlace
    missing: list[Missing] = field(default_factory=list)
    recorded_line: str = ""
    """URI of the line in the run's documents."""
    documents: dict[str, Contract] = field(default_factory=dict)
    """Manifests that were read, by stage."""
    uris: dict[str, str] = field(default_factory=dict)
    """Folders of these, by stage."""
    sha256: dict[str, str] = field(default_factory=dict)
    """Hashes of the documents that were read, by URI."""

    def attempt(self, what: str, read: Callable[[], T]) -> T | None:
        """Return the result of `read`; None: it failed, and `missing` has the reason."""
        try:
            return read()
        except READ_ERRORS as error:
            self.add(what, "it does not exist" if isinstance(error, FileNotFoundError) else first_line(error))
            return None

    def add(self, what: str, reason: str) -> None:
        """Record a part that could not be read."""
        self.missing.append(Missing(what=what, reason=reason[:MOST_CHARACTERS]))

    def located(self, uri: str) -> str:
        """Map a URI in a document to its current place, since the line may have been moved or copied."""
        if self.recorded_line and uri.startswith(self.recorded_line + "/"):
            return self.place.line + uri[len(self.recorded_line) :]
        return uri

    def document(self, kind: type[C], uri: str, most_bytes: int = MANIFEST_BYTES) -> C:
        """Return a document of the line; raises one of READ_ERRORS."""
        if not is_inside(uri, self.place.line):
            raise ValueError(f"{storage.display(uri)} is not below {storage.display(self.place.line)}")
        content, where = read_small(uri, most_bytes), storage.display(uri)
        document = kind.of_values(parse_json(content, where), where=where)
        self.sha256[uri] = hashlib.sha256(content).hexdigest()
        return document

    def start(self) -> dict[str, Any]:
        """Return the run's start document; empty if it cannot be read."""
        start = self.attempt("the run's start document", lambda: read_object(self.place.start_uri)) or {}
        line = as_object(start.get("arguments")).get("line")
        self.recorded_line = line.rstrip("/") if isinstance(line, str) else ""
        return start

    def record(self) -> tuple[RunRecord | None, State | None]:
        """Return the run's record and the state in it; None: there is none."""
        uri = storage.join(self.place.folder, RUN_NAME)
        if not storage.exists(uri):
            return None, None
        record = self.attempt("the run's record", lambda: self.document(RunRecord, uri, SMALL_BYTES))
        return record, record.state if record is not None else "unreadable"

    def events(self, stage: str) -> dict[str, Events]:
        """Return the events of the run's attempts at a stage."""
        line, run_id = self.place.line, self.place.run_id
        names = self.attempt(f"the attempts at stage {stage}", lambda: list_attempts(line, stage, run_id)) or []
        attempts, problems = read_events(line, stage, names)
        for problem in problems:
            self.add(f"events of stage {stage}", problem)
        return attempts

    def stage(
        self,
        name: str,
        attempts: Mapping[str, Events],
        record: RunRecord | None,
        *,
        over: bool,
        now: float | None = None,
        cached_uri: str = "",
    ) -> StageView:
        """Return a stage of the run; arguments are those of `inspection.stages.read_stage`."""
        recorded = next((stage for stage in record.stages if stage.name == name), None) if record else None
        stage = view_stage(self.place, name, attempts, recorded=recorded, over=over, now=now, cached_uri=cached_uri)
        return stage.model_copy(update={"uri": self.located(stage.uri)}) if stage.uri else stage

    def training_folder(self, attempts: Mapping[str, Events]) -> str:
        """Return the output folder of the newest attempt; empty without an attempt."""
        uris = [event.get("uri") for events in attempts.values() for event in events if event["event"] == "folder"]
        folder = self.located(str(uris[-1])) if uris else ""
        return folder if is_inside(folder, self.place.line) else ""


def read_run(
    place: RunPlace,
    *,
    pictures: bool = True,
    points: int = 2_000,
    headline_only: bool = False,
    now: float | None = None,
) -> RunView:
    """Read a run.

    Args:
        place: Where it is.
        pictures: Also read the worst samples from its shards, unless its configuration hides them.
        points: Maximum number per curve.
        headline_only: Read only the state, the training's account and the documents of train and export.
        now: Seconds since the epoch; None: the clock's.
    """
    reading = Reading(place)
    now = time.time() if now is None else now
    start = reading.start()
    record, recorded = reading.record()
    config = as_object(start.get("config")) or (record.config if record else {})
    attempts = {stage: reading.events(stage) for stage in STAGES}
    started_at = as_time(start.get("started_at")) or (as_time(record.started_at) if record else None)
    times = [float(event["time"]) for stage in STAGES for events in attempts[stage].values() for event in events]
    last_event_at = max(times, default=None)
    state = find_state(place, recorded, last_event_at=last_event_at or started_at, now=now)
    running_until = now if state == "running" else None
    # A silent run may wait for machines.
    over, inputs = state not in ("running", "silent"), _find_inputs(attempts.values())
    stages = [
        reading.stage(name, attempts[name], record, over=over, now=running_until, cached_uri=inputs.get(name, ""))
        for name in STAGES
    ]
    _read_documents(reading, stages, ("train", "export") if headline_only else STAGES)
    fields: dict[str, Any] = {}
    if not headline_only:
        stages = [_with_producer(reading, stage) for stage in stages]
        shard = next(stage for stage in stages if stage.name == "shard")
        hashes = _check_hashes(reading, stages)
        sha256 = hashes.get("shard", shard.manifest_sha256 or "")
        previous = reading.attempt("the run before", lambda: find_previous_run(place, config, shard, sha256))
        fields = {"previous": previous, "manifest_sha256": hashes}
    pictures = pictures and not headline_only and shows_samples(config)
    fields |= _read_data(reading, attempts["shard"])
    fields |= _read_profile(reading)
    fields |= _read_training(reading, config, record, attempts["train"], points=0 if headline_only else points)
    fields |= _read_results(reading, pictures=pictures)
    error = next((f"stage {stage.name}: {stage.error}" for stage in stages if stage.state == "failed"), "")
    end, arguments = running_until or last_event_at, as_object(start.get("arguments"))
    wall_s = max(0.0, end - started_at) if started_at is not None and end is not None else None
    return RunView(
        id=place.run_id,
        name=_name(place, config),
        line=place.line,
        folder=place.folder,
        place="vertex" if "job" in arguments else "local",
        state=state,
        error=(record.error if record else error)[:MOST_CHARACTERS],
        started_at=started_at,
        ended_at=started_at + record.wall_s if record and started_at else None,
        wall_s=record.wall_s if record else wall_s,
        seen_at=now,
        last_event_at=last_event_at,
        console=_console(place, start, config),
        config=config,
        stages=stages,
        registration=as_object(as_object(record.results if record else {}).get("register")) or None,
        missing=reading.missing,
        **fields,
    )


def find_folder(place: RunPlace, stage: str) -> str | None:
    """Return the URI of the folder that a stage of a run has worked on last; None: the line has none."""
    reading = Reading(place)
    reading.start()
    record, _ = reading.record()
    attempts = reading.events(stage)
    folder = reading.stage(stage, attempts, record, over=True).uri or reading.training_folder(attempts)
    return folder if folder and is_inside(folder, place.line) else None


def read_verification(reading: Reading, uri: str, exported: ExportManifest) -> Verification | None:
    """Return the verification of an export's engine; None: missing or unreadable.

    Args:
        reading: Records unreadable documents.
        uri: Folder of the export.
        exported: Its manifest.
    """
    if exported.engine is None or not storage.exists(where := verification_uri(uri, exported.engine)):
        return None
    return reading.attempt("the verification", lambda: reading.document(Verification, where, SMALL_BYTES))


def _find_inputs(stages: Iterable[Mapping[str, Events]]) -> dict[str, str]:
    """Return the input folders of attempts, by producing stage."""
    starts = [event for attempts in stages for event in in_order(attempts) if event["event"] == "start"]
    inputs = [(name, uri) for event in starts for name, uri in as_object(event.get("inputs")).items()]
    return {_PRODUCERS[name]: uri for name, uri in inputs if name in _PRODUCERS and isinstance(uri, str)}


def _read_documents(reading: Reading, stages: list[StageView], names: Iterable[str]) -> None:
    for stage in stages:
        if stage.uri is not None and stage.name in names:
            read = partial(reading.document, MANIFESTS[stage.name], storage.join(stage.uri, MANIFEST_NAME))
            if (document := reading.attempt(f"the output of stage {stage.name}", read)) is not None:
                reading.documents[stage.name], reading.uris[stage.name] = document, stage.uri


def _with_producer(reading: Reading, stage: StageView) -> StageView:
    """Return a reused stage with the run that produced its output, and the output's summary."""
    if stage.state != "reused" or stage.uri is None:
        return stage
    line, uri, run_id = reading.place.line, stage.uri, reading.place.run_id
    producer = reading.attempt(
        f"the producer of stage {stage.name}", lambda: find_maker(line, stage.name, uri, except_run=run_id)
    )
    run, summary = producer or ("", "")
    return stage.model_copy(update={"reused_from": run, "made": summary or stage.made})


def _read_data(reading: Reading, attempts: Mapping[str, Events]) -> dict[str, Any]:
    shards = reading.documents.get("shard")
    if not isinstance(shards, ShardManifest):
        return {}
    fields: dict[str, Any] = {"shards": shards}
    if comparisons := [event for event in in_order(attempts) if event["event"] == "compared"]:
        warnings = comparisons[-1].get("warnings")
        warnings = warnings[:_MOST_WARNINGS] if isinstance(warnings, list) else []
        fields["data_warnings"] = [str(warning)[:MOST_CHARACTERS] for warning in warnings]
        fields["data_change"] = str(comparisons[-1].get("summary", ""))[:MOST_CHARACTERS]
    return fields


def _read_profile(reading: Reading) -> dict[str, Any]:
    profile = reading.documents.get("profile")
    if not isinstance(profile, ProfileReport):
        return {}
    fields: dict[str, Any] = {"profile": profile}
    if any(entry.name == SUMMARY_NAME for entry in profile.files):
        uri = storage.join(reading.uris["profile"], SUMMARY_NAME)

        def read() -> list[TraceSummary]:
            return summaries_type().validate_python(parse_json(read_small(uri, _SUMMARY_BYTES), SUMMARY_NAME))

        fields["trace_summaries"] = reading.attempt("the summaries of the traces", read) or []
    return fields


def _read_training(
    reading: Reading, config: dict[str, Any], record: RunRecord | None, attempts: Mapping[str, Events], *, points: int
) -> dict[str, Any]:
    """Return the fields that the training's events and scalars fill; no curves and marks if `points` is 0."""
    trained, place = reading.documents.get("train"), reading.place
    used = trained.fingerprint if trained is not None else ""
    read = partial(read_attempts, place.line, place.run_id, read_before=attempts, training=used)
    of_training = reading.attempt("the attempts at training", read) or {}
    goodput = record.goodput if record else None
    if goodput is None and of_training:
        goodput = reading.attempt("the training's account", lambda: account(of_training.values()))
    money, reason = find_money(config, goodput)
    if money is None:
        reading.add("cost", reason)
    fields: dict[str, Any] = {"goodput": goodput, "money": money}
    if not points:
        return fields
    best = trained.best_step if isinstance(trained, CheckpointManifest) else None
    marks = reading.attempt("events of the training", lambda: find_marks(of_training, best_step=best))
    fields["marks"] = marks or []
    if folder := reading.uris.get("train") or reading.training_folder(of_training):
        until = max((float(event["time"]) for event in in_order(attempts)), default=None)
        scalars = storage.join(folder, SCALARS_FOLDER)
        result = reading.attempt("learning curves", lambda: read_curves(scalars, points=points, until=until))
        fields["curves"], problems = result or ([], [])
        for problem in problems:
            reading.add("learning curves", problem)
    return fields


def _read_results(reading: Reading, *, pictures: bool) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    shards, trained, exported = map(reading.documents.get, ("shard", "train", "export"))
    if isinstance(trained, CheckpointManifest):
        fields["checkpoint"] = trained
        evaluation = None
        if trained.evaluation is not None:
            where = trained.evaluation.uri(reading.uris["train"])
            evaluation = reading.attempt("the evaluation", lambda: reading.document(EvaluationReport, where))
        fields["evaluation"] = evaluation
        if evaluation is not None and isinstance(shards, ShardManifest):
            read = partial(worst_samples, reading.uris["shard"], shards, evaluation, shown=pictures)
            fields["worst"] = reading.attempt("the worst samples", read) or []
    if isinstance(exported, ExportManifest):
        fields["export"] = exported
        fields["verification"] = read_verification(reading, reading.uris["export"], exported)
    return fields


def _check_hashes(reading: Reading, stages: list[StageView]) -> dict[str, str]:
    """Return the current hash of each manifest; a difference from the record is reported as a change."""
    hashes = {name: reading.sha256[storage.join(uri, MANIFEST_NAME)] for name, uri in reading.uris.items()}
    for stage in stages:
        sha256 = hashes.get(stage.name)
        if sha256 is not None and stage.manifest_sha256 not in (None, sha256):
            reason = f"its manifest has sha256 {sha256}, the run's record has {stage.manifest_sha256}: it was changed"
            reading.add(f"the output of stage {stage.name}", reason)
    return hashes


def _name(place: RunPlace, config: dict[str, Any]) -> str:
    name = as_object(config.get("run")).get("name")
    return name if isinstance(name, str) and name else storage.display(place.line).rstrip("/").rpartition("/")[2]


def _console(place: RunPlace, start: dict[str, Any], config: dict[str, Any]) -> str | None:
    """Return the page of a PipelineJob in Google's console; None for other runs."""
    project = str(as_object(config.get("cloud")).get("project"))
    job = _JOB.fullmatch(str(as_object(start.get("arguments")).get("job")))
    if job is None or not _WORD.fullmatch(project) or not _WORD.fullmatch(place.run_id):
        return None
    page = f"https://console.cloud.google.com/vertex-ai/locations/{job[1]}/pipelines/runs/{place.run_id}"
    return f"{page}?project={project}"
