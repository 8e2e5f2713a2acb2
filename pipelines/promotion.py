"""What is in production, moved by hand: `shardline promote` and `shardline rollback`.

Nothing is copied and nothing is deployed: a decision is one object (contracts/promotions.py), and who serves
asks for it.
"""

from __future__ import annotations

import getpass

from contracts import storage
from contracts.artifacts import ExportManifest, RunRecord
from contracts.artifacts.promotion import Decision
from contracts.errors import ConfigError, DataError, ShardlineError
from contracts.previous import RUN_NAME
from contracts.promotions import (
    decide,
    find_decision,
    find_former,
    find_model,
    list_models,
    read_decisions,
    register_model,
)
from contracts.proof import find_unproven, require_proven
from contracts.result import run_uri
from inspection.run.find import find_place
from pipeline_tasks.registry import follow_production
from pipelines.google import explained


def promote(run: str, *, reason: str, allow_unproven: bool) -> Decision | None:
    """Put the model of a run into production; None: it is in production already.

    Args:
        run: As `inspection.run.find.find_place` takes it.
        reason: Why, in the user's words; empty: by hand.
        allow_unproven: Whether an export that is not proven may be.

    Raises:
        ConfigError: There is no such run, it made no export, or its export is unproven or damaged.
    """
    place = find_place(run)
    uri = _export_of(place.line, place.run_id)
    document = ExportManifest.load(uri)
    # What is damaged is refused whatever is allowed.
    require_proven(uri, document, allow_unproven=True)
    if (unproven := find_unproven(uri, document)) and not allow_unproven:
        raise ConfigError(
            f"the export of run {place.run_id} is unproven: {', '.join(unproven)}",
            allowed="a served model and engines that ran on their GPU and passed, or --allow-unproven",
            todo=f"run `shardline verify {storage.display(uri)}` on a GPU of each target, or give --allow-unproven",
        )
    register_model(place.line, run=place.run_id, export=uri, proven=not unproven)
    decisions = read_decisions(place.line)
    if decisions and decisions[-1].production == place.run_id:
        return None
    return decide(
        place.line, by=_user(), action="promoted", run=place.run_id, reasons=[reason.strip() or "promoted by hand"]
    )


def roll_back(run: str, *, reason: str) -> Decision:
    """Put the model into production that was there before the one that is.

    Args:
        run: The line, or any run of it, as `inspection.run.find.find_place` takes it.
        reason: Why, in the user's words; empty: by hand.

    Raises:
        ConfigError: There is nothing to go back to.
        DataError: Its export is gone or damaged.
    """
    line = find_place(run).line
    decisions = read_decisions(line)
    former = find_former(decisions)
    if not former:
        now = decisions[-1].production if decisions else ""
        raise ConfigError(
            f"{storage.display(line)} has {f'run {now}' if now else 'no model'} in production, and had none before it",
            allowed="a line with two promotions",
            todo="put another run's model into production: shardline promote RUN"
            + (f" (models of runs {_names(line)})" if list_models(line) else ""),
        )
    version = find_model(line, former)
    if version is None or not storage.exists(version.export):
        raise DataError(
            f"the model of run {former}, which was in production before, is gone",
            allowed="an export that is still there",
            todo="put another run's model into production: shardline promote RUN",
        )
    # Its files are whole, or nothing moves.
    require_proven(version.export, ExportManifest.load(version.export), allow_unproven=True)
    return decide(line, by=_user(), action="rolled back", run=former, reasons=[reason.strip() or "rolled back by hand"])


def follow(run: str) -> str:
    """Let Vertex's registry follow the newest decision of a line; return what became of that, in words; empty: nothing.

    Args:
        run: The line, or any run of it, as `inspection.run.find.find_place` takes it.
    """
    line = find_place(run).line
    try:
        with explained("Vertex's model registry"):
            return follow_production(line)
    except ShardlineError as error:
        said = str(error).splitlines()[0]
        now = read_decisions(line)[-1].production
        return (
            f"warning: the decision stands, and the alias in the model registry does not follow yet: {said}\n"
            f"  to do: shardline promote {storage.display(run_uri(line, now))} (it changes nothing else)"
        )


def in_words(decision: Decision) -> str:
    """Return what a decision has changed, in a line."""
    before = f"before it run {decision.before}" if decision.before else "there was none before it"
    return f"{decision.action}: run {decision.production} is in production, {before} (decision {decision.number})"


def judged_in_words(line: str, run_id: str) -> str:
    """Return what a run has decided on its model and why, in a line; empty: nothing, or nobody can read it."""
    try:
        decision = find_decision(line, run_id)
    except DataError:
        # The run has warned of it already.
        return ""
    return "" if decision is None else f"{decision.action}: {'; '.join(decision.reasons)}"


def _export_of(line: str, run_id: str) -> str:
    where = storage.join(run_uri(line, run_id), RUN_NAME)
    try:
        record = RunRecord.parse(storage.read_bytes(where), where=storage.display(where))
    except FileNotFoundError:
        raise ConfigError(
            f"run {run_id} has not ended: {storage.display(where)} is not there",
            allowed="a run that has ended and made an export",
            todo=f"look at how it stands: shardline inspect {run_id}",
        ) from None
    uri = next((stage.uri for stage in record.stages if stage.name == "export" and stage.uri), None)
    if uri is None:
        raise ConfigError(
            f"run {run_id} {record.state}, and made no export",
            allowed="a run whose stage export ended well",
            todo=f"see why: shardline inspect {run_id}",
        )
    return uri


def _names(line: str) -> str:
    return ", ".join(version.run for version in list_models(line)[-5:])


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return "unknown"
