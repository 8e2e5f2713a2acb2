"""What differs between two runs, and between a run and the one before it in its line."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import cache, lru_cache
from typing import Any

from contracts import storage
from contracts.config import RunConfig
from contracts.previous import RUN_NAME
from contracts.result import RUN_START_NAME, RUNS_FOLDER, run_uri
from inspection.run.door import HARM, SMALL_BYTES, Door, as_object, parse_json
from inspection.run.find import RunPlace, order_of
from inspection.run.view import BeforeView, ChangeView, StageView

# Sections of sections; a configuration of ours has four.
_DEEPEST = 32
_MOST_CHANGES = 1000
_MOST_CHARACTERS = 2000
_TRIED = 5


def find_before(place: RunPlace, config: Mapping[str, Any], shard: StageView | None) -> BeforeView | None:
    """Return what a run has other than the run before it in its line; None: it is the first, or none can be read.

    Args:
        place: The run.
        config: Its configuration; empty: it is not known.
        shard: Its stage of that name.
    """
    found = _read_before(place)
    if found is None or not config:
        return None
    run_id, text = found
    former = json.loads(text)
    leaves = compare([former["config"], config]).items()
    # A key that the version of the run before did not have is no change while nobody has set it.
    different = [
        (name, was, now) for name, (was, now) in leaves if was != now and (was or now != _defaults().get(name))
    ]
    changes = [
        ChangeView(name=name[:200], before=_cut(was), now=_cut(now)) for name, was, now in different[:_MOST_CHANGES]
    ]
    was: dict[str, Any] = next((each for each in former["stages"] if as_object(each).get("name") == "shard"), {})
    sha256, now = was.get("manifest_sha256"), shard.manifest_sha256 if shard is not None else None
    if shard is not None and sha256 and now and sha256 != now:
        made = [str(was.get("made", "")), shard.made]
        words = made if all(made) and made[0] != made[1] else [str(sha256)[:12], now[:12]]
        changes.insert(0, ChangeView(name="data", before=_cut(words[0]), now=_cut(words[1])))
    return BeforeView(id=run_id, changes=changes, data_known=bool(sha256 and now))


@cache
def _defaults() -> dict[str, str]:
    return flatten(RunConfig().model_dump(mode="json"))


def _read_before(place: RunPlace) -> tuple[str, str] | None:
    """Return the id of the run before, and its configuration and stages as JSON.

    The text, because what it says could be changed by whoever gets it from here.
    """
    try:
        return _read_ended(place)
    except _NotEnded as found:
        return found.id, found.text


class _NotEnded(Exception):
    """What is known of a run before that has left no record yet."""

    def __init__(self, run_id: str, text: str) -> None:
        super().__init__(run_id)
        self.id, self.text = run_id, text


@lru_cache(maxsize=256)
def _read_ended(place: RunPlace) -> tuple[str, str] | None:
    """Return as `_read_before`, once per run: the record of a run that has ended does not change.

    Raises:
        _NotEnded: The run before may still leave one; an error is not kept.
    """
    names = storage.list_names(storage.join(place.line, RUNS_FOLDER))
    earlier = sorted((name for name in names if order_of(name) < order_of(place.run_id)), key=order_of, reverse=True)
    door = Door(place.line)
    for name in earlier[:_TRIED]:
        folder = run_uri(place.line, name)
        try:
            start = as_object(parse_json(door.read(storage.join(folder, RUN_START_NAME), SMALL_BYTES)))
            config = as_object(start.get("config"))
        except HARM:
            continue
        try:
            record = as_object(parse_json(door.read(storage.join(folder, RUN_NAME), SMALL_BYTES)))
        except HARM:
            record = {}
        stages = record.get("stages")
        if config and isinstance(stages, list):
            return name, json.dumps({"config": config, "stages": stages})
        if config:
            raise _NotEnded(name, json.dumps({"config": config, "stages": []}))
    return None


def _cut(text: str | None) -> str:
    return (text or "")[:_MOST_CHARACTERS]


def flatten(values: Mapping[str, Any]) -> dict[str, str]:
    """Return the leaves of nested sections by their dotted names, as JSON; a list is a leaf, and what lies too deep."""
    found: dict[str, str] = {}
    rest: list[tuple[str, Any, int]] = [(name, value, 1) for name, value in values.items()]
    while rest:
        name, value, depth = rest.pop()
        if isinstance(value, Mapping) and value and depth < _DEEPEST:
            rest += [(f"{name}.{key}", each, depth + 1) for key, each in value.items()]
        else:
            found[name] = leaf(value)
    return found


def leaf(value: object) -> str:
    """Return a value as JSON."""
    try:
        return json.dumps(value, sort_keys=True, default=str, ensure_ascii=False)
    except RecursionError:
        return "nested too deep to be shown"


def compare(documents: Sequence[Mapping[str, Any]]) -> dict[str, tuple[str | None, ...]]:
    """Return every leaf of the documents by its dotted name: its value in each of them; None: one has it not."""
    flat = [flatten(document) for document in documents]
    return {name: tuple(each.get(name) for each in flat) for name in sorted(set().union(*flat))}
