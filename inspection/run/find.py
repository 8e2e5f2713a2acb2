"""Which run a user means by RUN, in every command, and which runs there are below a root.

A run is known by its first document, runs/ID/run-start.json below its line's folder. The line may have been moved, or
copied out of a bucket: where it is now counts, not where its documents say they were written.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from contracts import storage
from contracts.config import RunSection
from contracts.errors import ConfigError
from contracts.result import RUN_START_NAME, RUNS_FOLDER, run_uri
from inspection.run.door import Door

# Requests under way at a time: a listing of a bucket takes some 30 ms, whatever it holds.
_THREADS = 16
LATEST = ":latest"
"""Behind the name or folder of a line: its newest run."""
_TIME = re.compile(r"\d{8}-\d{6}(?!.*\d{8}-\d{6})")


@dataclass(frozen=True, order=True)
class RunPlace:
    """Where a run's documents are."""

    line: str
    """URI of the line's folder."""
    run_id: str

    @property
    def folder(self) -> str:
        """URI of the run's own folder."""
        return run_uri(self.line, self.run_id)

    @property
    def start_uri(self) -> str:
        """URI of the document that makes it a run."""
        return storage.join(self.folder, RUN_START_NAME)


def find_place(run: str) -> RunPlace:
    """Return where a run is.

    Args:
        run: Folder of a run, or of a line for its newest run (path or URI); below ./runs: the id of a run, LINE/ID, or
            LINE:latest. A folder may have `:latest` too.

    Raises:
        ConfigError: There is no such run.
        StorageError: The place cannot be read.
    """
    uri = storage.normalise(run)
    try:
        return _find(run, uri)
    except PermissionError as error:
        raise ConfigError(
            f"{run} cannot be read ({error.strerror})",
            allowed="a folder that you may read",
            todo="correct its permissions, or look as who ran it",
        ) from None


def _find(run: str, uri: str) -> RunPlace:
    if storage.exists(storage.join(uri, RUN_START_NAME)):
        folder, _, run_id = uri.rpartition("/")
        return RunPlace(folder.rpartition("/")[0], _decoded(uri, run_id))
    root = storage.normalise(RunSection().root)
    if run.endswith(LATEST):
        line = run.removesuffix(LATEST)
        uri = storage.normalise(line) if "/" in line else storage.join(root, line)
    if places := runs_of_line(uri):
        return newest(places)
    name, _, run_id = run.rpartition("/")
    # As lists print it: LINE/ID.
    for line in [name] if name else storage.list_names(root):
        place = RunPlace(storage.join(root, line), run_id)
        if "/" not in line and storage.exists(place.start_uri):
            return place
    raise ConfigError(
        f"{run} is no run",
        allowed="the folder of a run (LINE/runs/ID) or of a line that has one (path or gs://); an id or LINE:latest "
        f"below ./{RunSection().root}",
        todo="see what there is: shardline runs [ROOT]",
    )


def newest(places: Sequence[RunPlace]) -> RunPlace:
    """Return the newest of a line's runs: by the time in their ids, where one has none by their start documents."""
    if all(_time_in(place.run_id) for place in places):
        in_order = places
    else:
        in_order = sorted(places, key=lambda place: (str(read_start(place).get("started_at", "")), place.run_id))
    return in_order[-1]


def read_start(place: RunPlace) -> Mapping[str, Any]:
    """Return the start document of a run; empty: it is damaged."""
    try:
        content = json.loads(storage.read_bytes(place.start_uri))
    except ValueError:
        return {}
    return content if isinstance(content, dict) else {}


def runs_of_line(line: str) -> list[RunPlace]:
    """Return the runs of a line, the oldest first, by the time in their ids; none where it cannot be looked into.

    Args:
        line: URI of its folder.
    """
    runs = storage.join(line, RUNS_FOLDER)
    try:
        names = [name for name in storage.list_names(runs) if _may_be_one(name)]
    except PermissionError:
        return []
    places = [RunPlace(line, name) for name in names]

    def is_run(place: RunPlace) -> bool:
        try:
            return storage.exists(place.start_uri)
        except PermissionError:
            # Whoever reads it says why it cannot.
            return True

    with ThreadPoolExecutor(_THREADS) as pool:
        there = list(pool.map(is_run, places))
    found = [place for place, is_there in zip(places, there, strict=True) if is_there]
    return sorted(found, key=lambda place: order_of(place.run_id))


def order_of(run_id: str) -> tuple[str, str]:
    """Return what runs of a line are sorted by: the time in their ids."""
    return _time_in(run_id), run_id


def list_places(root: str) -> list[RunPlace]:
    """Return every run below a root: of the lines in it, or of the line that it is; raises as `list_lines`."""
    with ThreadPoolExecutor(_THREADS) as pool:
        return [place for places in pool.map(runs_of_line, list_lines(root)) for place in places]


def list_lines(root: str) -> list[str]:
    """Return the URIs of the lines in a root, or of the line that it is.

    A line that is a link out of the root is none of its lines.

    Args:
        root: Path or URI.

    Raises:
        ConfigError: Nothing is there.
    """
    uri = storage.normalise(root)
    names = storage.list_names(uri)
    if uri.endswith(f"/{RUNS_FOLDER}") and any(_is_run(uri, name) for name in names):
        # The folder of a line's runs.
        return [uri.rpartition("/")[0]]
    if RUNS_FOLDER in names and _is_line(uri):
        return [uri]
    if not names and (not storage.exists(uri) or (storage.is_local(uri) and not storage.local_path(uri).is_dir())):
        raise ConfigError(
            f"{root} is no folder" if storage.exists(uri) else f"{root} is not there",
            allowed="the folder that holds lines (run.root), or one line, as a path or gs://",
            todo="check the path; `shardline run CONFIG` makes ./runs",
        )
    door = Door(uri)
    return [line for name in names if _may_be_one(name) and door.inside(line := storage.join(uri, name))]


def _is_line(uri: str) -> bool:
    runs = storage.join(uri, RUNS_FOLDER)
    try:
        return any(_is_run(runs, name) for name in storage.list_names(runs))
    except PermissionError:
        return False


def _is_run(runs: str, name: str) -> bool:
    try:
        return _may_be_one(name) and storage.exists(storage.join(runs, name, RUN_START_NAME))
    except PermissionError:
        return False


def _may_be_one(name: str) -> bool:
    """Whether a folder may be a line or a run: not hidden, and its name is text, without which it has no URI."""
    return not name.startswith(".") and not any("\ud800" <= letter <= "\udfff" for letter in name)


def _decoded(uri: str, name: str) -> str:
    # A URI of a local file is percent-encoded, an id is not.
    return storage.local_path(uri).name if storage.is_local(uri) else name


def _time_in(run_id: str) -> str:
    """Return the time in an id (20261122-073447-7019, digits-20261122-073447-7019); empty: it has none."""
    found = _TIME.search(run_id)
    return found[0] if found else ""
