"""The registry of a line: its models, and the decisions that say which of them is in production.

LINE/models/N.json and LINE/promotions/N.json are create-only, and the bucket gives them their order: of two runs that
end at once one gets the number, the other reads what has become of production and takes the next. Whoever is killed
between two requests leaves the old state or the new one, since each decision is one object.
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from pydantic import ValidationError

from contracts import storage
from contracts.artifacts.promotion import (
    MODELS_FOLDER,
    PROMOTIONS_FOLDER,
    Action,
    Decision,
    Judgement,
    ModelVersion,
)
from contracts.errors import DataError, UserError

Numbered = TypeVar("Numbered", ModelVersion, Decision)
_NAME = re.compile(r"([1-9][0-9]*)\.json")
# Others that take the number first: each of them is a run that ended in the same second.
_TRIES = 50
_MOST_BYTES = 1 << 20
_THREADS = 16
_CHANGES: tuple[Action, ...] = ("promoted", "rolled back")


class ProductionChanged(UserError):
    """Another decision came between the judgement and its own: the model has to be judged again."""


def list_models(line: str) -> list[ModelVersion]:
    """Return the versions of a line, the oldest first, one per run.

    Raises:
        DataError: One is damaged or missing.
    """
    found: dict[str, ModelVersion] = {}
    for version in _read(line, MODELS_FOLDER, ModelVersion):
        # A task that was tried again while its first attempt was at work may have left a second one.
        found.setdefault(version.run, version)
    return list(found.values())


def find_model(line: str, run: str) -> ModelVersion | None:
    """Return the version that a run has made; None: it has made none."""
    return next((version for version in list_models(line) if version.run == run), None)


def register_model(line: str, *, run: str, export: str, proven: bool) -> ModelVersion:
    """Give the export of a run a version; a run that has one keeps it.

    Args:
        line: URI of the line's folder.
        run: Id of the run.
        export: URI of the export's folder.
        proven: Whether it is proven on every target.

    Raises:
        DataError: A version is damaged or missing.
    """
    for _ in range(_TRIES):
        known = _read(line, MODELS_FOLDER, ModelVersion)
        if (own := next((version for version in known if version.run == run), None)) is not None:
            return own
        version = ModelVersion(number=len(known) + 1, run=run, export=export, made_at=_now(), proven=proven)
        if _publish(line, MODELS_FOLDER, version):
            return version
    raise _too_many(line, MODELS_FOLDER)


def read_decisions(line: str) -> list[Decision]:
    """Return the decisions of a line, the oldest first.

    Raises:
        DataError: One is damaged or missing.
    """
    return _read(line, PROMOTIONS_FOLDER, Decision)


def find_production(line: str) -> ModelVersion | None:
    """Return the version that is in production; None: none is.

    Raises:
        DataError: A decision or a version is damaged or missing.
    """
    decisions = read_decisions(line)
    run = decisions[-1].production if decisions else ""
    if not run:
        return None
    if (version := find_model(line, run)) is None:
        raise DataError(
            f"{storage.display(line)} has run {run} in production, and no model of it",
            allowed=f"a version of each promoted run in {MODELS_FOLDER}/",
            todo="copy the line's folder whole, or promote another run",
        )
    return version


def find_former(decisions: Sequence[Decision]) -> str:
    """Return the run whose model a rollback brings back; empty: there is none.

    Going back twice goes back two promotions, and never forth again.
    """
    former: list[str] = []
    for decision in decisions:
        if decision.action == "promoted":
            former.append(decision.production)
        elif decision.action == "rolled back":
            while former and former[-1] != decision.production:
                former.pop()
    before = [run for run in former if run != (former[-1] if former else "")]
    return before[-1] if before else ""


def find_decision(line: str, run: str) -> Decision | None:
    """Return what was decided of a run's own judgement; None: nothing was."""
    return _own(read_decisions(line), run)


def decide(
    line: str, *, by: str, action: Action, run: str, reasons: Sequence[str], judgement: Judgement | None = None
) -> Decision:
    """Write down a decision; one object, create-only.

    A run that has decided on its judgement before gets that decision: its task was tried again.

    Args:
        line: URI of the line's folder.
        by: Who decides.
        action: `promoted` and `rolled back` put the model of `run` into production, the others change nothing.
        run: Run that has a version.
        reasons: Why; at least one.
        judgement: What the decision follows from; None: it is made by hand.

    Raises:
        ProductionChanged: The judgement is beside a model that is not in production any more.
        DataError: A decision is damaged or missing.
    """
    for _ in range(_TRIES):
        known = read_decisions(line)
        if judgement is not None and (own := _own(known, run)) is not None:
            return own
        before = known[-1].production if known else ""
        if judgement is not None and action in _CHANGES and judgement.champion != before:
            raise ProductionChanged(
                f"run {run} was judged beside {judgement.champion or 'nothing'}, and {before or 'nothing'} is in "
                "production now",
                allowed="a judgement beside the model in production",
                todo="judge again",
            )
        decision = Decision(
            number=len(known) + 1,
            at=_now(),
            by=by,
            action=action,
            run=run,
            before=before,
            production=run if action in _CHANGES else before,
            reasons=list(reasons),
            judgement=judgement,
        )
        if _publish(line, PROMOTIONS_FOLDER, decision):
            return decision
    raise _too_many(line, PROMOTIONS_FOLDER)


def _own(decisions: Sequence[Decision], run: str) -> Decision | None:
    return next((each for each in decisions if each.run == run and each.judgement is not None), None)


def _now() -> str:
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds").replace("+00:00", "Z")


def _publish(line: str, folder: str, document: ModelVersion | Decision) -> bool:
    """Create the document; False: another one has its number."""
    content = (document.model_dump_json(indent=1) + "\n").encode()
    try:
        storage.publish(storage.join(line, folder, f"{document.number}.json"), content)
    except storage.AlreadyPublished:
        return False
    return True


def _read(line: str, folder: str, kind: type[Numbered]) -> list[Numbered]:
    root = storage.join(line, folder)
    names = storage.list_names(root)
    numbers = sorted(int(match[1]) for name in names if (match := _NAME.fullmatch(name)) is not None)
    if numbers != list(range(1, len(numbers) + 1)):
        lost = next(number for number in range(1, len(numbers) + 1) if number not in numbers)
        raise _damaged(storage.join(root, f"{lost}.json"), "is missing")

    def read(number: int) -> Numbered:
        return _parse(kind, number, storage.join(root, f"{number}.json"))

    # Side by side: in a bucket each is a request.
    with ThreadPoolExecutor(_THREADS) as pool:
        return list(pool.map(read, numbers))


def _parse(kind: type[Numbered], number: int, where: str) -> Numbered:
    try:
        content = storage.read_range(where, 0, _MOST_BYTES + 1)
    except FileNotFoundError:
        raise _damaged(where, "is missing") from None
    if len(content) > _MOST_BYTES:
        raise _damaged(where, f"has more than {_MOST_BYTES:,} bytes")
    try:
        document = kind.model_validate_json(content)
    except ValidationError as error:
        raise _damaged(where, f"cannot be read: {str(error).splitlines()[0]}") from None
    if document.number != number:
        raise _damaged(where, f"is number {document.number}")
    return document


def _damaged(where: str, what: str) -> DataError:
    return DataError(
        f"{storage.display(where)} {what}",
        allowed="documents as they were written, numbered from 1 without gaps",
        todo="restore the object: which model is in production is not known without it",
    )


def _too_many(line: str, folder: str) -> DataError:
    return DataError(
        f"{storage.display(storage.join(line, folder))}: {_TRIES} others took the next number first",
        allowed="a few runs that end at once",
        todo="run the command again",
    )
