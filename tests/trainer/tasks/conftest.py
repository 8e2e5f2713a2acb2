"""Shards of texts and evaluations over ranks that several files read."""

import os
from typing import Any

import pytest

from tests.trainer.tasks.splits import results_by_ranks
from tests.trainer.tasks.texts import make_shards, make_texts


@pytest.fixture(scope="session")
def text_shards(tmp_path_factory: pytest.TempPathFactory) -> str:
    """URI of the shards of 90 texts of 1 to 12 words; read only."""
    rows = [(" ".join(text.split()[: 1 + place % 12]), label) for place, (text, label) in enumerate(make_texts(240))]
    return make_shards(tmp_path_factory.mktemp("texts"), rows)


@pytest.fixture(scope="session")
def evaluations(tmp_path_factory: pytest.TempPathFactory) -> dict[int, dict[str, Any]]:
    """The result of each case by the number of ranks."""
    folder = tmp_path_factory.getbasetemp()
    return results_by_ranks((folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder) / "evaluations")
