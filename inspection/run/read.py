"""Everything that is known of a run, read from what it left: one RunView.

What a run holds never ends this: a document that is missing, damaged, too large, of a newer version, or none at all is
named in `RunView.missing`, and all else is read.
"""

from __future__ import annotations

import time
from collections.abc import Container, Iterable, Mapping
from functools import partial
from typing import Any, TypeGuard

from contracts import storage
from contracts.artifacts import (
    FIRST_SLOT_NAME,
    MANIFEST_NAME,
    MANIFESTS,
    CheckpointManifest,
    Contract,
    ExportManifest,
    ProfileReport,
    RunRecord,
    ShardManifest,
    TraceSummary,
    Verification,
)
from contracts.artifacts.profile import SUMMARY_NAME, summaries_type
from contracts.config import STAGES
from contracts.previous import RUN_NAME
from contracts.proof import verification_uri
from inspection.attempts import Events
from inspection.run.before import find_before
from inspection.run.data import describe_data, with_comparison
from inspection.run.door import SMALL_BYTES, Door, as_moment, as_object, parse_json
from inspection.run.events import list_attempts, of_run, read_events_of
from inspection.run.find import RunPlace
from inspection.run.lineage import find_lineage
from inspection.run.pictures import contact_sheet, find_first_slot
from inspection.run.reading import Reading
from inspection.run.stages import MOST_CHARACTERS, read_stage
from inspection.run.state import find_state
from inspection.run.training import TENSORBOARD_FOLDER, read_evaluation, read_training, training_folder
from inspection.run.view import Missing, RunView, StageView, shows_samples
from inspection.tasks import find_pages
from inspection.tasks.pictures import NamedSamples

# What the parts are called that come out of shards and pictures.
CONTACT_SHEET, OF_TASK = "the contact sheet", "what the task shows"
# Summaries of the traces of all ranks; one has some 50 kB.
SUMMARY_BYTES = 32 << 20
RECORD = "the run's record"
# Inputs of stages, and the stage that makes each.
_MAKERS = {"shards": "shard", "profile": "profile", "checkpoint": "train"}
FIRST_SLOT = "the picture of the training's first samples"


def read_run(
    place: RunPlace,
    *,
    pictures: bool = True,
    points: int = 2_000,
    headline_only: bool = False,
    now: float | None = None,
) -> RunView:
    """Return everything that is known of a run.

    Args:
        place: Where it is.
        pictures: Read pictures, text and rows out of its shards too, unless its configuration hides them.
        points: Of a curve at most.
        headline_only: Read no more than its headline needs: not the data, the profile, curves, pictures and hashes.
        now: Seconds since the epoch; None: the clock's.
    """
    reading = Reading(place, Door(place.line))
    now = time.time() if now is None else now
    start = _read_start(reading)
    record = _read_record(reading)
    config = as_object(start.get("config")) or (record.config if record else {})
    shows = not headline_only and shows_samples(config)
    attempts = {stage: _read_attempts(reading, stage) for stage in STAGES}
    started_at = as_moment(start.get("started_at")) or (as_moment(record.started_at) if record else None)
    times = [float(event["time"]) for told in attempts.values() for events in told.values() for event in events]
    last_word_at = max(times, default=None)
    unreadable = any(one.what == RECORD for one in reading.missing)
    recorded = record.state if record else "unreadable" if unreadable else None
    state = find_state(place, recorded, last_word_at=last_word_at or started_at, now=now)
    # A silent run may wait for machines.
    over = state not in ("running", "silent")
    taken = _find_inputs(attempts.values())
    stages = [
        read_stage(
            place,
            name,
            attempts[name],
            record=record,
            over=over,
            located=reading.located,
            door=reading.door,
            now=now if state == "running" else None,
            taken=taken.get(name, ""),
        )
        for name in STAGES
    ]
    documents = _read_documents(reading, stages, ("train", "export") if headline_only else STAGES)
    told = attempts["train"]
    parts = _read_stage_parts(
        reading,
        documents,
        stages,
        config,
        record,
        told,
        pictures=pictures and shows,
        first_slot=shows,
        points=0 if headline_only else points,
    )
    if parts.get("data") is not None:
        parts["data"] = with_comparison(parts["data"], attempts["shard"])
    if not headline_only:
        uris = _find_uris(stages, documents)
        parts["lineage"] = find_lineage(documents, uris, _check_hashes(reading, stages, uris))
        shard = next(stage for stage in stages if stage.name == "shard")
        parts["before"] = reading.attempt("the run before", partial(find_before, place, config, shard))
    return RunView(
        id=place.run_id,
        name=_name(place, config),
        line=place.line,
        folder=place.folder,
        place="vertex" if "job" in as_object(start.get("arguments")) else "local",
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
        **parts,
        missing=reading.missing,
    )


def find_folder(place: RunPlace, stage: str) -> str | None:
    """Return the URI of the folder that a stage of a run has worked on last; None where there is none in the line."""
    reading = Reading(place, Door(place.line))
    _read_start(reading)
    record = _read_record(reading)
    told = _read_attempts(reading, stage)
    view = read_stage(
        place,
        stage,
        told,
        record=record,
        over=True,
        located=reading.located,
        door=reading.door,
    )
    folder = view.uri or training_folder(reading, told)
    return folder if folder is not None and reading.inside(folder) else None


def _read_start(reading: Reading) -> dict[str, Any]:
    uri = reading.place.start_uri
    start = reading.attempt("the run's first document", lambda: _object(reading.door.read(uri, SMALL_BYTES), uri)) or {}
    line = as_object(start.get("arguments")).get("line")
    reading.recorded_line = line.rstrip("/") if isinstance(line, str) else ""
    return start


def _read_record(reading: Reading) -> RunRecord | None:
    uri = storage.join(reading.place.folder, RUN_NAME)
    if not storage.exists(uri):
        return None
    return reading.attempt(RECORD, lambda: reading.contract(RunRecord, uri, SMALL_BYTES))


def _read_attempts(reading: Reading, stage: str) -> dict[str, Events]:
    names = of_run(list_attempts(reading.place.line, stage), reading.place.run_id)
    told, problems = read_events_of(reading.place.line, stage, names)
    reading.missing += [Missing(what=f"events of stage {stage}", reason=problem) for problem in problems]
    return told


def _find_inputs(told: Iterable[Mapping[str, Events]]) -> dict[str, str]:
    """Return the folders that attempts have begun with, by the stage that made them."""
    starts = [event for attempts in told for events in attempts.values() for event in events]
    inputs = [as_object(event.get("inputs")) for event in starts if event["event"] == "start"]
    return {_MAKERS[name]: uri for each in inputs for name, uri in each.items() if name in _MAKERS and _is_text(uri)}


def _is_text(value: object) -> TypeGuard[str]:
    return isinstance(value, str)


def _read_documents(reading: Reading, stages: list[StageView], wanted: Container[str]) -> dict[str, Contract]:
    found: dict[str, Contract] = {}
    for stage in stages:
        if stage.uri is None or stage.name not in wanted:
            continue
        what = f"what stage {stage.name} made"
        if not reading.inside(stage.uri):
            reason = f"{storage.display(stage.uri)} is not below {storage.display(reading.place.line)}"
            reading.missing.append(Missing(what=what, reason=reason[:MOST_CHARACTERS]))
            continue
        uri = storage.join(stage.uri, MANIFEST_NAME)
        document = reading.attempt(what, partial(reading.contract, MANIFESTS[stage.name], uri))
        if document is not None:
            found[stage.name] = document
    return found


def _read_stage_parts(
    reading: Reading,
    documents: Mapping[str, Contract],
    stages: list[StageView],
    config: dict[str, Any],
    record: RunRecord | None,
    told: Mapping[str, Events],
    *,
    pictures: bool,
    first_slot: bool,
    points: int,
) -> dict[str, Any]:
    """Return the fields of a RunView that stages' documents fill; no curves where `points` is 0."""
    uris = _find_uris(stages, documents)
    parts: dict[str, Any] = {}
    shards = documents.get("shard")
    if isinstance(shards, ShardManifest):
        parts["data"] = reading.attempt("the data", lambda: describe_data(uris["shard"], shards))
        if pictures:
            contacts = partial(contact_sheet, reading.door, uris["shard"], shards)
            parts["pictures"] = reading.attempt(CONTACT_SHEET, contacts) or []
    profile = documents.get("profile")
    if isinstance(profile, ProfileReport):
        parts["profile"] = profile
        if any(entry.name == SUMMARY_NAME for entry in profile.files):
            read_summaries = partial(_read_summaries, reading.door, uris["profile"])
            parts["trace_summaries"] = reading.attempt("the summaries of the traces", read_summaries) or []
    trained = documents.get("train")
    if isinstance(trained, CheckpointManifest):
        parts["checkpoint"] = trained
        evaluation = read_evaluation(reading, uris["train"], trained)
        parts["evaluation"] = evaluation
        if evaluation is not None and isinstance(shards, ShardManifest):
            read = partial(_task_parts, NamedSamples(reading.door, uris["shard"], shards, evaluation, pictures))
            parts["task_parts"] = reading.attempt(OF_TASK, read) or {}
    training = uris.get("train") or training_folder(reading, told)
    if first_slot and training is not None and reading.inside(training):
        first = partial(find_first_slot, reading.door, storage.join(training, TENSORBOARD_FOLDER, FIRST_SLOT_NAME))
        parts["first_slot"] = reading.attempt(FIRST_SLOT, first)
    parts |= read_training(reading, trained, uris.get("train"), config, record, told, points=points)
    exported = documents.get("export")
    if isinstance(exported, ExportManifest):
        parts["export"] = exported
        parts["verification"] = read_verification(reading, uris["export"], exported)
    registration = as_object(as_object(record.results if record else {}).get("register"))
    parts["registration"] = registration or None
    return parts


def _read_summaries(door: Door, uri: str) -> list[TraceSummary]:
    return summaries_type().validate_python(parse_json(door.read(storage.join(uri, SUMMARY_NAME), SUMMARY_BYTES)))


def _find_uris(stages: list[StageView], documents: Mapping[str, Contract]) -> dict[str, str]:
    return {stage.name: stage.uri for stage in stages if stage.uri is not None and stage.name in documents}


def read_verification(reading: Reading, uri: str, exported: ExportManifest) -> Verification | None:
    """Return the verification of an export's engine; None: there is none, or it cannot be read.

    Args:
        reading: Its `missing` takes what cannot be read.
        uri: Folder of the export.
        exported: Its manifest.
    """
    if exported.engine is None or not storage.exists(place := verification_uri(uri, exported.engine)):
        return None
    return reading.attempt("the verification", lambda: reading.contract(Verification, place, SMALL_BYTES))


def _task_parts(samples: NamedSamples) -> dict[str, Any]:
    pages = find_pages(samples.evaluation.task)
    return {} if pages is None else {"worst": [each.model_dump(mode="json") for each in pages.worst(samples)]}


def _check_hashes(reading: Reading, stages: list[StageView], uris: Mapping[str, str]) -> dict[str, str]:
    """Return the hash of each manifest as it is now; where the run says another, it was changed since."""
    found = {name: reading.hashes[storage.join(uri, MANIFEST_NAME)] for name, uri in uris.items()}
    for stage in stages:
        sha256 = found.get(stage.name)
        if sha256 is not None and stage.manifest_sha256 not in (None, sha256):
            reason = f"its manifest has sha256 {sha256} now, and the run says {stage.manifest_sha256}: it was changed"
            reading.missing.append(Missing(what=f"what stage {stage.name} made", reason=reason))
    return found


def _object(content: bytes, uri: str) -> dict[str, Any]:
    found = parse_json(content)
    if not isinstance(found, dict):
        raise ValueError(f"{storage.display(uri)} holds no JSON object")
    return found


def _name(place: RunPlace, config: dict[str, Any]) -> str:
    name = as_object(config.get("run")).get("name")
    return name if isinstance(name, str) and name else storage.display(place.line).rstrip("/").rpartition("/")[2]


def _wall_s(start: float | None, end: float | None) -> float | None:
    return max(0.0, end - start) if start is not None and end is not None else None


def _error(stages: list[StageView]) -> str:
    return next((f"stage {stage.name}: {stage.error}" for stage in stages if stage.state == "failed"), "")


def _console(place: RunPlace, start: dict[str, Any], config: dict[str, Any]) -> str | None:
    """Return the run's page in Google's console, where it is a PipelineJob."""
    job, project = as_object(start.get("arguments")).get("job"), as_object(config.get("cloud")).get("project")
    if not isinstance(job, str) or len(parts := job.split("/")) != 6 or not all(map(_is_word, (project, *parts))):
        return None
    page = f"https://console.cloud.google.com/vertex-ai/locations/{parts[3]}/pipelines/runs/{place.run_id}"
    return f"{page}?project={project}" if _is_word(place.run_id) else None


def _is_word(value: object) -> bool:
    return isinstance(value, str) and value != "" and all(letter.isalnum() or letter in "-_.:" for letter in value)
