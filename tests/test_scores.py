"""The references of tests/scores.py equal scikit-learn's figures, which tests/golden/scores.json holds."""

import json
from pathlib import Path

import numpy as np
import pytest

from tests import scores

GOLDEN = json.loads((Path(__file__).parent / "golden" / "scores.json").read_text())


def test_references_equal_scikit_learns_figures() -> None:
    labels, answers = (np.array(GOLDEN[name], bool) for name in ("labels", "answers"))
    ranked = np.array(GOLDEN["scores"])
    for name, figure in GOLDEN["figures"].items():
        given = ranked if name in ("average_precision", "roc_area") else answers
        assert getattr(scores, name)(labels, given) == pytest.approx(figure, abs=1e-12), name
    assert scores.roc_curve(labels, ranked) == [tuple(point) for point in GOLDEN["roc"]]
    matrix = scores.confusion_matrix(np.array(GOLDEN["four"]), np.array(GOLDEN["guesses"]), 4)
    assert matrix.tolist() == GOLDEN["confusion"]
