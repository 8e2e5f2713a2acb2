"""Shards of texts that several files read."""

import pytest

from tests.trainer.tasks.text_classification.texts import make_shards, make_texts


@pytest.fixture(scope="session")
def text_shards(tmp_path_factory: pytest.TempPathFactory) -> str:
    """URI of the shards of 90 texts of 1 to 12 words; read only."""
    rows = [(" ".join(text.split()[: 1 + place % 12]), label) for place, (text, label) in enumerate(make_texts(240))]
    return make_shards(tmp_path_factory.mktemp("texts"), rows)
