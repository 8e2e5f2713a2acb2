"""Resolution of the argument RUN, and listing of the runs below a root.

A folder is a run if it has the document LINE/runs/ID/run-start.json. A line may have been moved or copied out of a
bucket, so its current location is used, not the one recorded in its documents.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from contracts import storage
from contracts.config import STAGES, RunSection
from contracts.errors import ConfigError
from contracts.events import ATTEMPTS_FOLDER
from contracts.result import RUN_START_NAME, RUNS_FOLDER, run_uri

# Concurrent requests: listing a bucket takes some 30 ms, independent of its size.
THREADS = 16
LATEST = ":latest"
"""Suffix of a line's name or folder for its newest run."""
_TIME = re.compile(r"\d{8}-\d{6}(?!.*\d{8}-\d{6})")


@dataclass(frozen=True, order=True)
class RunPlace:
    """Place of a run's documents."""

    line: str
    """URI of the line's folder."""
    run_id: str

    @property
    def folder(self) -> str:
        """URI of the run's folder."""
        return run_uri(self.line, self.run_id)

    @property
    def start_uri(self) -> str:
        """URI of the run's start document."""
        return storage.join(self.folder, RUN_START_NAME)


def find_place(run: str) -> RunPlace:
    """Return the place of a run.

    Args:
        run: Folder of a run, or of a line for its newest run (path or URI); below ./runs: the id of a run, LINE/ID, or
            LINE:latest. A folder may have `:latest` too.

    Raises:
        ConfigError: There is no such run.
        StorageError: The place cannot be read.
    """
    try:
        return _find(run, storage.normalise(run))
    except PermissionError as error:
        raise ConfigError(
            f"{run} cannot be read ({error.strerror})",
            allowed="a folder that you may read",
            todo="correct its permissions, or use the account that ran it",
        ) from None


def _find(run: str, uri: str) -> RunPlace:
    if storage.exists(storage.join(uri, RUN_START_NAME)):
        folder, _, run_id = uri.rpartition("/")
        # A URI of a local file is percent-encoded, an id is not.
        run_id = storage.local_path(uri).name if storage.is_local(uri) else run_id
        return RunPlace(folder.rpartition("/")[0], run_id)
    root = storage.normalise(RunSection().root)
    if run.endswith(LATEST):
        line = run.removesuffix(LATEST)
        uri = storage.normalise(line) if "/" in line else storage.join(root, line)
    if places := runs_of_line(uri):
        if all(_TIME.search(place.run_id) for place in places):
            return places[-1]
        return max(places, key=lambda place: (str(read_start(place).get("started_at", "")), place.run_id))
    name, _, run_id = run.rpartition("/")
    # LINE/ID, as printed by lists.
    for line in [name] if name else storage.list_names(root):
        place = RunPlace(storage.join(root, line), run_id)
        if "/" not in line and storage.exists(place.start_uri):
            return place
    if has_outputs(uri):
        raise ConfigError(
            f"{run} has outputs of stages, and no run",
            allowed="a line with a run",
            todo="start `shardline run` with the same configuration: it reuses them and records a run",
        )
    is_line = "/" not in run and bool(runs_of_line(storage.join(root, run)))
    raise ConfigError(
        f"{run} is no run",
        allowed="the folder of a run (LINE/runs/ID) or of a line that has one (path or gs://); an id or LINE:latest "
        f"below ./{RunSection().root}",
        todo=f"did you mean {run}{LATEST}?" if is_line else "list the runs: shardline runs [ROOT]",
    )


def has_outputs(line: str) -> bool:
    """Return whether stages have worked in the folder of a line, given by its URI."""
    return any(storage.list_names(storage.join(line, stage, ATTEMPTS_FOLDER)) for stage in STAGES)


def read_start(place: RunPlace) -> Mapping[str, Any]:
    """Return the start document of a run; empty if it is damaged."""
    try:
        content = json.loads(storage.read_bytes(place.start_uri))
    except ValueError:
        return {}
    return content if isinstance(content, dict) else {}


def runs_of_line(line: str) -> list[RunPlace]:
    """Return the runs of a line (URI of its folder), the oldest first; none without permission to read it."""
    names: list[str] = []
    with suppress(PermissionError):
        names = [name for name in storage.list_names(storage.join(line, RUNS_FOLDER)) if _is_usable(name)]
    places = [RunPlace(line, name) for name in names]

    def is_run(place: RunPlace) -> bool:
        try:
            return storage.exists(place.start_uri)
        except PermissionError:
            # Reading the run reports the reason.
            return True

    if storage.is_local(line):
        runs = [place for place in places if is_run(place)]
    else:
        with ThreadPoolExecutor(THREADS) as pool:
            runs = [place for place, exists in zip(places, pool.map(is_run, places), strict=True) if exists]
    return sorted(runs, key=lambda place: order_of(place.run_id))


def order_of(run_id: str) -> tuple[str, str]:
    """Return the sort key of a line's runs: the time in the id (20261122-073447-7019), then the id."""
    time = _TIME.search(run_id)
    return time[0] if time else "", run_id


def list_places(root: str) -> list[RunPlace]:
    """Return every run below a root, which is a line or a folder of lines.

    Args:
        root: Path or URI.

    Raises:
        ConfigError: The root does not exist.
    """
    uri = storage.normalise(root)
    names = storage.list_names(uri)
    if uri.endswith(f"/{RUNS_FOLDER}") and _holds_runs(uri):
        # The folder of a line's runs.
        return runs_of_line(uri.rpartition("/")[0])
    if RUNS_FOLDER in names and _holds_runs(storage.join(uri, RUNS_FOLDER)):
        return runs_of_line(uri)
    if not names and (not storage.exists(uri) or (storage.is_local(uri) and not storage.local_path(uri).is_dir())):
        raise ConfigError(
            f"{root} is no folder" if storage.exists(uri) else f"{root} is not there",
            allowed="the folder that holds lines (run.root), or one line, as a path or gs://",
            todo="check the path; `shardline run CONFIG` makes ./runs",
        )
    lines = [storage.join(uri, name) for name in names if _is_usable(name)]
    with ThreadPoolExecutor(1 if storage.is_local(uri) else THREADS) as pool:
        return [place for places in pool.map(runs_of_line, lines) for place in places]


def _holds_runs(folder: str) -> bool:
    with suppress(PermissionError):
        names = filter(_is_usable, storage.list_names(folder))
        return any(storage.exists(storage.join(folder, name, RUN_START_NAME)) for name in names)
    return False


def _is_usable(name: str) -> bool:
    """Return whether a folder may be a line or a run: not hidden, and with a name that a URI can represent."""
    return not name.startswith(".") and not any("\ud800" <= letter <= "\udfff" for letter in name)
