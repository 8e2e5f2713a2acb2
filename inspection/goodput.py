"""Where the time of a training went, over all its attempts, read from the events that they left.

It works while a training goes on and for one that was killed: what was told so far is what counts.
"""

from __future__ import annotations

from collections.abc import Mapping

from contracts.artifacts import GoodputRecord
from contracts.goodput import account
from inspection.attempts import Events
from inspection.run.events import list_attempts, of_run, read_events_of

_STAGE = "train"


def read_goodput(line: str, run_id: str | None, *, training: str = "") -> GoodputRecord | None:
    """Return the account of a training of a line; None when there was none.

    Args:
        line: URI of the line's folder.
        run_id: The run that used the training; None: the newest run that has one.
        training: Fingerprint of the training that a run without attempts used: KFP's cache gave it.
    """
    attempts = find_attempts(line, run_id, training=training)
    return account(attempts.values()) if attempts else None


def find_attempts(
    line: str, run_id: str | None, *, known: Mapping[str, Events] | None = None, training: str = ""
) -> dict[str, Events]:
    """Return the events of every attempt at a training, by the attempt's name; none when there was no training.

    A training whose first attempt was in this run is told by this run's attempts alone. One that this run has
    continued, begun again or reused is told by those of every run of the line: a request for each, so they are read
    only then.

    Args:
        line: URI of the line's folder.
        run_id: The run that used the training; None: the newest run that has one.
        known: Events that were read before, by the attempt's name.
        training: Fingerprint of the training that a run without attempts used.
    """
    names = list_attempts(line, _STAGE)
    read: dict[str, Events] = dict(known or {})

    def read_all(wanted: list[str]) -> None:
        read.update(read_events_of(line, _STAGE, [name for name in wanted if name not in read])[0])

    # On Vertex AI a run has an attempt for each start of each machine: RUN.TIME.
    if run_id is None:
        read_all(names)
        run_id = next((name for name in reversed(names) if _training_of(read[name])), "").partition(".")[0]
    own = of_run(names, run_id)
    read_all(own)
    chosen = next((found for name in reversed(own) if (found := _training_of(read[name]))), training)
    if not chosen:
        return {}
    if not any(_began(read[name]) for name in own if _training_of(read[name]) == chosen):
        own = names
        read_all(names)
    return {name: read[name] for name in own if _training_of(read[name]) == chosen}


def _training_of(events: Events) -> str:
    """Return the fingerprint of the training that an attempt worked on; empty: it did not come to that."""
    return next((str(event.get("fingerprint", "")) for event in events if event.get("event") == "folder"), "")


def _began(events: Events) -> bool:
    """Return whether an attempt was the first at a training: one at step 0 may follow others that saved nothing."""
    return any(event.get("event") == "resume" and event.get("number") == 1 for event in events)
