"""Confusion, curves and worst samples against scikit-learn, and their bounds."""

import numpy as np
import pytest
import torch
from sklearn.metrics import confusion_matrix, roc_auc_score

import trainer.tasks.classes.outcomes
from trainer.tasks.classes.outcomes import MOST_THRESHOLDS, NUM_THRESHOLDS, WORST_SAMPLES, Outcomes

CPU = torch.device("cpu")


def drawn(samples: int, classes: int, *, scale: float = 2.0) -> tuple[torch.Tensor, torch.Tensor]:
    random = np.random.default_rng(2)
    labels = random.integers(0, classes, samples)
    logits = random.normal(size=(samples, classes)) * scale
    logits[np.arange(samples), labels] += scale
    return torch.from_numpy(logits).float(), torch.from_numpy(labels)


def outcomes_of(logits: torch.Tensor, labels: torch.Tensor, *, batch: int = 64) -> Outcomes:
    found = Outcomes(logits.shape[1], CPU)
    for start in range(0, len(labels), batch):
        found.add(logits[start : start + batch], labels[start : start + batch], first_place=start)
    return found


def test_they_agree_with_scikit_learn() -> None:
    logits, labels = drawn(2000, 5)
    found = outcomes_of(logits, labels)
    expected = confusion_matrix(labels, logits.argmax(dim=1))
    cells, left_out = found.confusion()
    assert left_out == 0
    matrix = np.zeros((5, 5), int)
    for label, predicted, samples in cells:
        matrix[label, predicted] = samples
    assert np.array_equal(matrix, expected)
    probabilities = logits.softmax(dim=1)
    for number, one in enumerate(found.by_class(list("abcde"))):
        assert (one.samples, one.predicted) == (expected[number].sum(), expected[:, number].sum())
        assert one.right == expected[number, number]
        assert one.roc is not None
        exact = roc_auc_score(labels == number, probabilities[:, number])
        # Samples of one of 256 bins count as tied.
        assert one.roc.area == pytest.approx(exact, abs=2e-3)
        assert len(one.roc.points) <= MOST_THRESHOLDS
        for threshold, false, true in one.roc.points:
            # An edge's probability is rounded: samples right at it may stand on either side.
            passing = probabilities[:, number] >= threshold - 1e-6
            assert int((passing & (labels != number)).sum()) == pytest.approx(false, abs=1)
            assert int((passing & (labels == number)).sum()) == pytest.approx(true, abs=1)
        assert one.roc.points[-1][1:] == (2000 - one.samples, one.samples)


def test_the_worst_are_those_whose_label_got_least() -> None:
    logits, labels = drawn(500, 4)
    own = logits.softmax(dim=1).gather(1, labels[:, None])[:, 0]
    worst = outcomes_of(logits, labels).worst()
    assert [one.place for one in worst] == own.argsort(stable=True)[:WORST_SAMPLES].tolist()
    assert worst[0].label_probability == pytest.approx(float(own.min()), rel=1e-5)
    assert worst[0].predicted == int(logits[worst[0].place].argmax())
    assert worst[0].label == int(labels[worst[0].place])


def test_batches_change_nothing() -> None:
    logits, labels = drawn(300, 3)
    whole, cut = outcomes_of(logits, labels, batch=300), outcomes_of(logits, labels, batch=7)
    assert whole.confusion() == cut.confusion()
    assert whole.by_class(list("abc")) == cut.by_class(list("abc"))
    assert whole.worst() == cut.worst()


def test_certain_and_absent_classes() -> None:
    logits = torch.tensor([[200.0, -200.0, 0.0], [-200.0, 200.0, 0.0]])
    found = outcomes_of(logits, torch.tensor([0, 0]))
    sure, absent, _ = found.by_class(list("abc"))
    assert (sure.samples, sure.right, absent.samples, absent.predicted) == (2, 1, 0, 1)
    assert sure.roc is None, "no sample of another class"
    assert absent.roc is None, "no sample of the class"
    assert found.worst()[0].label_probability < 1e-100


def test_memory_is_bounded_by_what_occurs(monkeypatch: pytest.MonkeyPatch) -> None:
    """With many classes: cells that occur, a total of thresholds, a list of fixed length."""
    monkeypatch.setattr(trainer.tasks.classes.outcomes, "_COUNTED_TOGETHER", 100)
    classes = 5000
    logits, labels = drawn(400, classes, scale=1.0)
    found = outcomes_of(logits, labels, batch=50)
    assert sum(map(len, found._pending)) < 100
    assert len(found._cells) <= 400
    assert found._histogram.shape == (2, classes, 16)
    assert found.counts().shape == (2, classes, NUM_THRESHOLDS)
    assert len(found.worst()) == WORST_SAMPLES


def test_the_smallest_cells_are_left_out_of_the_document(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trainer.tasks.classes.outcomes, "MOST_CELLS", 2)
    labels = torch.tensor([0] * 5 + [1] * 3 + [2] * 2)
    predicted = torch.tensor([0, 1, 1, 2, 2, 0, 0, 0, 0, 2])
    found = outcomes_of(torch.nn.functional.one_hot(predicted, 3).float(), labels)
    # Three of (1, 0); two each of (0, 1) and (0, 2), of which the first stays; one of (2, 0).
    assert found.confusion() == ([(0, 0, 1), (0, 1, 2), (1, 0, 3), (2, 2, 1)], 3)
