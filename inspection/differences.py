"""Differences of two runs: configuration keys, data, headline figures; and of a run from the previous one."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from contracts import storage
from contracts.previous import RUN_NAME
from contracts.result import RUNS_FOLDER, run_uri
from inspection.documents import READ_ERRORS, as_object, read_object
from inspection.find import RunPlace, order_of
from inspection.headline import headline
from inspection.view import Change, PreviousRun, RunView, StageView

# Sections of sections; a configuration has four.
_DEEPEST = 32
_MOST_CHANGES, _VALUE_CHARACTERS = 1000, 2000
# Earlier runs to try, if documents are damaged.
_ATTEMPTS = 5


def find_previous_run(place: RunPlace, config: Mapping[str, Any], shard: StageView, sha256: str) -> PreviousRun | None:
    """Return the run before this one in its line, with the differences; None: no earlier run can be read.

    Args:
        place: The run.
        config: Its configuration; empty if unknown.
        shard: Its stage shard.
        sha256: Of the manifest of its shards; empty if unknown.
    """
    names = storage.list_names(storage.join(place.line, RUNS_FOLDER))
    earlier = sorted((name for name in names if order_of(name) < order_of(place.run_id)), key=order_of)
    for name in earlier[: -_ATTEMPTS - 1 : -1] if config else ():
        earlier_place = RunPlace(place.line, name)
        try:
            former = as_object(read_object(earlier_place.start_uri).get("config"))
        except READ_ERRORS:
            continue
        if former:
            break
    else:
        return None
    changes = compare_configs(former, config)
    recorded = _recorded_shard(place.line, name)
    before_sha256 = str(recorded.get("manifest_sha256") or "")
    if before_sha256 and sha256 and before_sha256 != sha256:
        summaries = [str(recorded.get("made", "")), shard.made]
        is_known = all(summaries) and summaries[0] != summaries[1] and "reused" not in summaries
        before, after = summaries if is_known else (before_sha256[:12], sha256[:12])
        changes.insert(0, Change(name="data", before=_cut(before), now=_cut(after)))
    return PreviousRun(id=name, changes=changes[:_MOST_CHANGES], data_known=bool(before_sha256 and sha256))


def compare_configs(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[Change]:
    """Return the keys whose values differ, by dotted name, with values as JSON."""
    old, new = _flatten(before), _flatten(now)
    return [
        Change(name=name[:200], before=_cut(old.get(name)), now=_cut(new.get(name)))
        for name in sorted(old.keys() | new.keys())
        if old.get(name) != new.get(name)
    ]


def compare_runs(before: RunView, now: RunView) -> list[Change]:
    """Return the differences of two runs: data, configuration keys, and headline figures."""
    changes = []
    hashes = [view.manifest_sha256.get("shard", "") for view in (before, now)]
    if all(hashes) and hashes[0] != hashes[1]:
        summaries = [stage.made if (stage := view.stage("shard")) is not None else "" for view in (before, now)]
        texts = summaries if summaries[0] != summaries[1] else [sha256[:12] for sha256 in hashes]
        changes.append(Change(name="data", before=_cut(texts[0]), now=_cut(texts[1])))
    changes += compare_configs(before.config, now.config)
    figures = zip(headline(before).figures, headline(now).figures, strict=True)
    changes += [
        Change(name=(new if new.text else old).title.lower(), before=old.text, now=new.text)
        for old, new in figures
        if old.text != new.text
    ]
    return changes


def _recorded_shard(line: str, run_id: str) -> dict[str, Any]:
    """Return the stage shard in the record of a run; empty without a record."""
    try:
        stages = read_object(storage.join(run_uri(line, run_id), RUN_NAME)).get("stages")
    except READ_ERRORS:
        return {}
    entries = [as_object(stage) for stage in stages] if isinstance(stages, list) else []
    return next((stage for stage in entries if stage.get("name") == "shard"), {})


def _cut(text: str | None) -> str:
    return (text or "")[:_VALUE_CHARACTERS]


def _flatten(values: Mapping[str, Any]) -> dict[str, str]:
    """Return the leaves of nested sections by dotted name, as JSON; lists and the deepest sections are leaves."""
    leaves: dict[str, str] = {}
    pending: list[tuple[str, Any, int]] = [(name, value, 1) for name, value in values.items()]
    while pending:
        name, value, depth = pending.pop()
        if isinstance(value, Mapping) and value and depth < _DEEPEST:
            pending += [(f"{name}.{key}", inner, depth + 1) for key, inner in value.items()]
            continue
        try:
            leaves[name] = json.dumps(value, sort_keys=True, default=str, ensure_ascii=False)
        except RecursionError:
            leaves[name] = "nested too deep to be shown"
    return leaves
