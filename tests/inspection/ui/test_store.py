"""What the server remembers of runs and for how long, and what one run that is slow or gone does to the others."""

import json
import shutil
import threading
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from inspection.run.before import compare, flatten
from inspection.run.find import RunPlace
from inspection.run.read import OF_TASK, read_run
from inspection.run.summary import RunLine, RunLister
from inspection.run.view import RunView
from inspection.ui import store as store_module
from inspection.ui.store import RunStore
from tests.inspection.lines import Planted, alive, plant
from tests.inspection.ui.serving import serving
from tests.inspection.ui.test_server import count_reads, wait_for

FRESH = "roses/20261122-070000-0001"
RESUMED = "tulips/20261122-070000-0002"


class Gate:
    """Holds readings until it is opened."""

    def __init__(self) -> None:
        self.reached = threading.Event()
        self._open = threading.Event()

    def wait(self) -> None:
        self.reached.set()
        assert self._open.wait(120)

    def open(self) -> None:
        self._open.set()


@pytest.fixture
def gate() -> Any:
    found = Gate()
    yield found
    found.open()


def in_background(stack: ExitStack, ask: Callable[[], int], times: int) -> list[int]:
    """Ask at once in threads that end with the stack; return the list that answers come to."""
    answers: list[int] = []
    threads = [threading.Thread(target=lambda: answers.append(ask())) for _ in range(times)]
    for thread in threads:
        thread.start()
        stack.callback(thread.join)
    return answers


# --- slow -------------------------------------------------------------------------------------------------------------


def test_one_slow_run_keeps_no_other_page(root: Path, monkeypatch: pytest.MonkeyPatch, gate: Gate) -> None:
    reads: list[str] = []

    def slow(place: RunPlace, **options: Any) -> RunView:
        if place.line.endswith("/roses"):
            reads.append(place.run_id)
            gate.wait()
        return read_run(place, **options)

    monkeypatch.setattr(store_module, "read_run", slow)
    with serving(root) as server, ExitStack() as stack:
        # More than there are threads for handlers.
        answers = in_background(stack, lambda: server.ask(f"/api/run/{FRESH}").status, 60)
        stack.callback(gate.open)
        assert gate.reached.wait(120)
        wait_for(lambda: len(server.store._runs) == 1)
        for path in ("/", "/api/rows", "/api/runs", f"/run/{RESUMED}", "/static/live.js"):
            assert server.ask(path).status == 200
        assert answers == []
    assert answers == [200] * 60
    assert len(reads) == 1


@pytest.mark.usefixtures("soon_stale")
def test_the_list_waits_for_no_refresh(root: Path, monkeypatch: pytest.MonkeyPatch, gate: Gate) -> None:
    refreshes: list[int] = []
    read = RunLister.read

    def slow(lister: RunLister) -> list[RunLine]:
        refreshes.append(len(refreshes))
        if len(refreshes) > 1:
            gate.wait()
        return read(lister)

    monkeypatch.setattr(RunLister, "read", slow)
    with serving(root) as server, ExitStack() as stack:
        stack.callback(gate.open)
        assert len(server.get("/api/runs")["runs"]) == 3

        def asked() -> bool:
            assert len(server.get("/api/rows")["rows"]) == 3
            return gate.reached.is_set()

        wait_for(asked)
        for path in ("/", "/api/rows", "/api/runs"):
            assert server.ask(path).status == 200
        # One of them refreshes, whoever asks meanwhile.
        assert len(refreshes) == 2


def test_a_comparison_asks_for_two_runs_alone(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def unreadable(store: RunStore) -> Any:
        raise OSError("the bucket lists nothing")

    monkeypatch.setattr(RunStore, "_list", unreadable)
    with serving(root) as server:
        assert server.ask("/api/runs").status == 503
        results = server.body(f"/api/compare?run={FRESH}&run={RESUMED}")
        results = results[results.index('id="results"') : results.index('id="curves"')]
        assert results.count(">93.75\u00a0%") == 2, results


# --- gone -------------------------------------------------------------------------------------------------------------


def remove(run: Planted) -> None:
    shutil.rmtree(run.line)


@pytest.mark.usefixtures("soon_stale")
@pytest.mark.parametrize("looks_at_the_list", [True, False])
def test_a_run_that_is_removed_is_not_there(small_shards: str, tmp_path: Path, looks_at_the_list: bool) -> None:
    run = plant(tmp_path / "roses", small_shards, kind="running")
    plant(tmp_path / "tulips", small_shards, kind="failed", run_id="20261122-070000-0002")
    with alive(run), serving(tmp_path) as server:
        assert server.ask(f"/run/{FRESH}").status == 200
        remove(run)
        if looks_at_the_list:
            wait_for(lambda: len(server.get("/api/runs")["runs"]) == 1)
        wait_for(lambda: server.ask(f"/run/{FRESH}").status == 404)
        assert server.ask(f"/api/compare?run={FRESH}&run={RESUMED}").status == 404
        assert server.ask(f"/run/{RESUMED}").status == 200
        # And is there when it comes back.
        plant(tmp_path / "roses", small_shards)
        wait_for(lambda: server.ask(f"/run/{FRESH}").status == 200)


@pytest.mark.slow
def test_an_ended_run_that_is_removed_goes_with_its_row(small_shards: str, tmp_path: Path) -> None:
    run = plant(tmp_path / "roses", small_shards)
    plant(tmp_path / "tulips", small_shards, kind="failed", run_id="20261122-070000-0002")
    with serving(tmp_path) as server:
        assert server.ask(f"/run/{FRESH}").status == 200
        remove(run)
        wait_for(lambda: len(server.get("/api/runs")["runs"]) == 1)
        wait_for(lambda: server.ask(f"/run/{FRESH}").status == 404)


# --- remembered -------------------------------------------------------------------------------------------------------


def test_what_views_hold_counts(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reads: list[str] = []

    def large(place: RunPlace, **options: Any) -> RunView:
        reads.append(place.run_id)
        view = read_run(place, **options)
        assert view.profile is not None
        # Nothing that a page shows.
        return view.model_copy(update={"console": None, "config": {**view.config, "x": {"y": "z" * 30_000_000}}})

    monkeypatch.setattr(store_module, "read_run", large)
    with serving(root, cache_bytes=50_000_000) as server:
        for run in (FRESH, RESUMED, FRESH):
            assert len(server.body(f"/api/run/{run}")) < 10_000_000
    assert len(reads) == 3


def test_documents_that_only_the_page_is_made_of_are_not_remembered(root: Path) -> None:
    with serving(root) as server:
        server.get(f"/api/run/{FRESH}")
        (remembered,) = server.store._runs.values()
        assert remembered._last is not None
        view = remembered._last.view
        assert view.curves is not None and view.profile is not None and view.lineage
        assert (view.evaluation, view.checkpoint, view.export, view.data) == (None, None, None, None)
        # The next answers take from it.
        for path in (f"/api/curves/{FRESH}", f"/compare?run={FRESH}&run={FRESH}", f"/run/{FRESH}"):
            assert server.ask(path).status == 200


@pytest.mark.usefixtures("soon_stale")
def test_why_pictures_are_missing_is_said_again(
    small_shards: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = plant(tmp_path / "roses", small_shards, kind="running")
    reads = count_reads(monkeypatch)
    original = store_module.read_run

    def without_parts(place: RunPlace, **options: Any) -> RunView:
        view = original(place, **options)
        if not options.get("pictures", True):
            return view
        reason = {"what": OF_TASK, "reason": "shards of test are gone"}
        missing = [*view.missing, view.missing[0].model_copy(update=reason)]
        return view.model_copy(update={"task_parts": {}, "missing": missing})

    monkeypatch.setattr(store_module, "read_run", without_parts)
    with alive(run), serving(tmp_path) as server:

        def is_read_again() -> bool:
            body = server.body(f"/api/run/{FRESH}")
            assert body.count("shards of test are gone") == 1
            return len(reads) > 3

        wait_for(is_read_again)


# --- compared ---------------------------------------------------------------------------------------------------------


def nested(depth: int, leaf: object) -> dict[str, Any]:
    found: Any = leaf
    for _ in range(depth):
        found = {"k": found}
    return {"deep": found, "flat": 1}


@pytest.mark.parametrize("depth", [5, 500, 100_000])
def test_sections_of_sections_without_end(depth: int) -> None:
    found = flatten(nested(depth, 0.5))
    assert found["flat"] == "1" and len(found) == 2
    if depth <= 500:
        leaves = compare([nested(depth, 0.5), nested(depth, 0.6)]).values()
        ((a, b),) = [values for values in leaves if values[0] != values[1]]
        assert "0.5" in str(a) and "0.6" in str(b)


@pytest.mark.parametrize("depth", [10, 500])
def test_a_comparison_with_what_is_nested_deep(small_shards: str, tmp_path: Path, depth: int) -> None:
    plant(tmp_path / "tulips", small_shards, kind="failed", run_id="20261122-070000-0002")
    run = plant(tmp_path / "roses", small_shards)
    start = json.loads((run.folder / "run-start.json").read_text())
    start["config"]["train"] = nested(depth, 1)
    (run.folder / "run-start.json").write_text(json.dumps(start))
    with serving(tmp_path) as server:
        body = server.body(f"/api/compare?run={FRESH}&run={RESUMED}")
        # What is nested deeper may not be read at all.
        assert ("train.deep" in body or depth > 10) and len(body) < 1_000_000
