"""A root with runs of several kinds, served."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from inspection.ui import store
from tests.inspection.lines import Planted, plant
from tests.inspection.ui.serving import Serving, serving


@pytest.fixture
def soon_stale(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let servers that start within the test read again what they know after a tenth of a second, not after one."""
    monkeypatch.setattr(store, "_LEAST_FRESH_S", 0.1)
    monkeypatch.setattr(store, "_PATIENCE_S", 0.1)


@pytest.fixture(scope="package")
def planted(small_shards: str, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Planted]:
    """Runs below one root, by kind; read only."""
    root = tmp_path_factory.mktemp("root")
    changed = {"train": {"learning_rate": 0.02}}
    tagged = {"cloud": {"labels": {"team": "vision"}}}
    return {
        "fresh": plant(root / "roses", small_shards, run_id="20261122-070000-0001"),
        "resumed": plant(
            root / "tulips", small_shards, kind="resumed", run_id="20261122-070000-0002", sections=changed
        ),
        "failed": plant(root / "roses", small_shards, kind="failed", run_id="20261122-060000-0003", sections=tagged),
    }


@pytest.fixture(scope="package")
def root(planted: dict[str, Planted]) -> Path:
    """Their root; read only."""
    return planted["fresh"].line.parent


@pytest.fixture(scope="package")
def server(root: Path) -> Iterator[Serving]:
    """A server of them."""
    with serving(root) as found:
        yield found
