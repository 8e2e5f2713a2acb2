"""Promotion to production from this machine: the gate at the end of `shardline run`, and `shardline promote`.

The production document and the gate are in components/gate.py, Vertex AI's registry in components/register_model.py.
"""

from __future__ import annotations

from components.gate import (
    Decision,
    Runner,
    decide,
    put_into_production,
    read_production,
    record_decision,
)
from components.register_model import move_alias
from contracts import storage
from contracts.artifacts import ExportManifest, RunRecord
from contracts.config import RunConfig
from contracts.config.load import parse_config
from contracts.errors import ConfigError, TryAgain
from contracts.previous import RUN_NAME
from contracts.proof import require_proven
from inspection.documents import as_object
from inspection.find import RunPlace, find_place
from pipelines.google import explained


def decide_here(config: RunConfig, line: str, run_id: str, *, export: str, shards: str, run: Runner) -> Decision:
    """Decide whether the export of a local run goes into production, and record the decision.

    Args:
        config: The resolved configuration.
        line: URI of the line's folder.
        run_id: Id of the run.
        export: URI of its export.
        shards: URI of its shards.
        run: Runs the comparison (the judge).

    Raises:
        UserError: The line's document or the export is damaged.
        ShardlineError: The comparison failed.
    """
    production = read_production(line)
    current = None if production is None else production.export_uri(line)
    decided = {} if production is None else production.decided
    decision = decide(config, export, shards, current=current, decided=decided, run=run)
    if read_production(line) != production:
        raise TryAgain("production has changed meanwhile: run the same command again")
    record_decision(config, line, run_id, ExportManifest.load(export).fingerprint, decision)
    return decision


def promote(run: str, reason: str) -> str:
    """Put the export of a run into production, regardless of the gate; return its URI or registry version.

    Args:
        run: As for `inspection.find.find_place`.
        reason: Recorded in production.json.

    Raises:
        ConfigError: There is no such run, it has no finished export or registered version, or the export is unproven
            and export.allow_unproven is false.
        DataError: A document of the line is damaged.
    """
    place = find_place(run)
    record = _read_record(place)
    config = parse_config(record.config, where=storage.join(place.folder, RUN_NAME))
    folder = next((stage.uri for stage in record.stages if stage.name == "export" and stage.uri), None)
    if folder is None:
        raise ConfigError(
            f"run {place.run_id} has no finished export",
            allowed="a run with a finished export",
            todo=f"list the runs: shardline runs {storage.display(place.line)}",
        )
    # The record's URI is wrong if the line was moved.
    export = storage.join(place.line, "export", folder.rpartition("/")[2])
    document = ExportManifest.load(export)
    require_proven(export, document, allow_unproven=config.export.allow_unproven)
    resource = str(as_object(record.results.get("register")).get("resourceName", ""))
    if not resource and not storage.is_local(place.line):
        raise ConfigError(
            f"run {place.run_id} has no version in the model registry",
            allowed="a run on Vertex AI with register.upload: true",
            todo="set register.upload=true and cloud.images.serving, and submit again: finished stages are found",
        )
    # Raises for a damaged document, before the alias moves.
    read_production(place.line)
    if resource:
        _move_alias(resource)
    put_into_production(config, place.line, place.run_id, document.fingerprint, reason)
    return resource or storage.display(export)


def _read_record(place: RunPlace) -> RunRecord:
    uri = storage.join(place.folder, RUN_NAME)
    try:
        return RunRecord.parse(storage.read_bytes(uri), where=storage.display(uri))
    except FileNotFoundError:
        raise ConfigError(
            f"run {place.run_id} has no {RUN_NAME}: it is still running, or was killed",
            allowed="a run that has ended",
            todo="wait for its end, or name another run",
        ) from None


def _move_alias(resource: str) -> None:
    from google.api_core.exceptions import NotFound

    with explained(f"moving the alias to {resource}"):
        try:
            move_alias(resource)
        except NotFound:
            raise ConfigError(
                f"the model registry has no {resource}",
                allowed="a version that the registry has",
                todo="submit the line again, which uploads the export again, or name another run",
            ) from None
