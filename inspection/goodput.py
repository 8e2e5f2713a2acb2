"""Where the time of a training went, over all its attempts, read from the events that they left.

It works while a training goes on and for one that was killed: what was told so far is what counts.
"""

from __future__ import annotations

from contracts import storage
from contracts.artifacts import GoodputRecord
from contracts.events import ATTEMPTS_FOLDER, EVENTS_NAME
from contracts.goodput import account
from inspection.attempts import Events, read_events

_STAGE = "train"


def read_goodput(line: str, run_id: str | None) -> GoodputRecord | None:
    """Return the account of a training of a line; None when there was none.

    A training that began in this run is told by this run's attempts alone. One that this run has continued or reused
    is told by those of every run of the line: a request for each, so they are read only then.

    Args:
        line: URI of the line's folder.
        run_id: The run that used the training; None: the newest run that has one.
    """
    attempts_uri = storage.join(line, _STAGE, ATTEMPTS_FOLDER)
    names = sorted(storage.list_names(attempts_uri))
    read: dict[str, Events] = {}

    def events_of(name: str) -> Events:
        if name not in read:
            read[name] = read_events(storage.join(attempts_uri, name, EVENTS_NAME))
        return read[name]

    # On Vertex AI a run has an attempt for each start of each machine: RUN.TIME.
    if run_id is None:
        newest = next((name for name in reversed(names) if _training_of(events_of(name))), "")
        run_id = newest.partition(".")[0]
    own = [name for name in names if name.partition(".")[0] == run_id]
    chosen = next((found for name in reversed(own) if (found := _training_of(events_of(name)))), "")
    if not chosen:
        return None
    began_here = any(_began(events_of(name)) for name in own if _training_of(events_of(name)) == chosen)
    told = own if began_here else names
    return account(events_of(name) for name in told if _training_of(events_of(name)) == chosen)


def _training_of(events: Events) -> str:
    """Return the fingerprint of the training that an attempt worked on; empty: it did not come to that."""
    return next((str(event.get("fingerprint", "")) for event in events if event.get("event") == "folder"), "")


def _began(events: Events) -> bool:
    """Return whether an attempt began a training, and went on from no checkpoint of an earlier one."""
    return any(event.get("event") == "resume" and event.get("step") == 0 for event in events)
