"""Metrics, thresholds and report at 2 and 3 ranks and at one: equal to scikit-learn's, and the same bits."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.metrics import average_precision_score, f1_score, precision_score, recall_score
from torch.nn import functional

from tests.trainer.one_rank import one_rank
from tests.trainer.tasks.image_multilabel import made
from tests.trainer.tasks.image_multilabel.made import CERTAIN, CLASSES, NOBODY, SAID_OF_NONE
from trainer.tasks.image_multilabel.report import WORST_SAMPLES

LOGITS, LABELS = (tensor.numpy() for tensor in made.make_split())
TRUE = LABELS == 1
PROBABILITIES = 1 / (1 + np.exp(-LOGITS.astype(np.float64)))
THERE = [number for number in range(CLASSES) if number != NOBODY]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("splits")
    command = [sys.executable, "-m", "tests.trainer.tasks.splits", str(folder), made.__name__]
    subprocess.run(command, check=True, timeout=240)
    return folder


@pytest.fixture(params=[2, 3])
def found(request: pytest.FixtureRequest, folder: Path) -> dict[str, Any]:
    """What each case returned at so many ranks."""
    return {case: torch.load(folder / f"{request.param}/{case}.pt") for case in made.CASES}


def test_metrics_are_scikit_learns(found: dict[str, Any]) -> None:
    exact = found["exact"]
    expected = np.mean([average_precision_score(TRUE[:, number], LOGITS[:, number]) for number in THERE])
    assert exact["headline"] == "average_precision"
    assert exact["metrics"]["average_precision"] == pytest.approx(expected, abs=1e-12)
    said = LOGITS >= 0
    for average, labels in (("macro", THERE), ("micro", None)):
        # A class without a sample is left out, though it is said of some.
        expected = f1_score(TRUE, said, average=average, labels=labels)
        assert exact["metrics"][f"f1_{average}"] == pytest.approx(expected, abs=1e-12), average
    losses = functional.binary_cross_entropy_with_logits(
        torch.from_numpy(LOGITS), torch.from_numpy(LABELS), reduction="none"
    ).mean(dim=1)
    assert exact["loss"] == pytest.approx(float(losses.double().mean()), rel=1e-6)


def test_a_split_that_does_not_fit_is_counted_in_bins(found: dict[str, Any]) -> None:
    binned, exact = found["binned"], found["exact"]
    assert binned["headline"] == "average_precision_binned" and "average_precision" not in binned["metrics"]
    within = [number for number in THERE if number != CERTAIN]
    for number in within:
        ours, theirs = (one["classes"][number]["average_precision"] for one in (binned, exact))
        assert ours == pytest.approx(theirs, abs=1e-12), "one decimal, 1,024 bins of 0.023: no two values share one"
        # The lower edge of the best score's bin, but for ties.
        assert binned["classes"][number]["f1"] == pytest.approx(exact["classes"][number]["f1"], abs=1e-12)
    # Logits from 36 up are all in the highest bin.
    share = TRUE[:, CERTAIN].mean()
    assert binned["classes"][CERTAIN]["average_precision"] == pytest.approx(share, abs=1e-12)


def test_every_class_at_its_threshold(found: dict[str, Any]) -> None:
    for case in ("exact", "binned"):
        thresholds = np.array(found[case]["thresholds"])
        said = thresholds <= PROBABILITIES
        for number, outcome in enumerate(found[case]["classes"]):
            true, own = TRUE[:, number], said[:, number]
            assert (outcome["positives"], outcome["predicted"], outcome["right"]) == (
                true.sum(),
                own.sum(),
                (true & own).sum(),
            ), (case, number)
            for name, score in (("f1", f1_score), ("precision", precision_score), ("recall", recall_score)):
                expected = score(true, own, zero_division=np.nan)
                ours = np.nan if outcome[name] is None else outcome[name]
                assert ours == pytest.approx(expected, abs=1e-12, nan_ok=True), (case, number, name)
        assert found[case]["exact"] == (said == TRUE).all(axis=1).sum()


def test_thresholds_are_the_best_on_the_split(found: dict[str, Any]) -> None:
    thresholds = found["exact"]["thresholds"]
    assert thresholds[NOBODY] == 0.5, "a class without samples"
    assert thresholds[SAID_OF_NONE] < 0.01
    for number in THERE:
        column = PROBABILITIES[:, number]
        best = max(f1_score(TRUE[:, number], column >= cut, zero_division=0) for cut in np.unique(column))
        assert f1_score(TRUE[:, number], column >= thresholds[number]) == best


def test_the_worst_samples_have_the_largest_loss(found: dict[str, Any]) -> None:
    logits, labels = torch.from_numpy(LOGITS), torch.from_numpy(LABELS)
    losses = functional.binary_cross_entropy_with_logits(logits, labels, reduction="none").mean(dim=1)
    order = losses.neg().argsort(stable=True)[:WORST_SAMPLES].tolist()
    worst = found["exact"]["worst"]
    assert [one["place"] for one in worst] == order and worst[0]["key"] == str(order[0])
    thresholds = np.array(found["exact"]["thresholds"])
    for one in worst:
        said, true = PROBABILITIES[one["place"]] >= thresholds, TRUE[one["place"]]
        assert one["labels"] == np.flatnonzero(true).tolist()
        assert {each["label"] for each in one["missed"]} == set(np.flatnonzero(true & ~said))
        assert {each["label"] for each in one["wrong"]} == set(np.flatnonzero(said & ~true))
        rising = [each["probability"] for each in one["missed"]]
        assert rising == sorted(rising)
    assert any(one["missed"] for one in worst) and any(one["wrong"] for one in worst)


def test_all_is_the_same_at_any_number_of_ranks(found: dict[str, Any]) -> None:
    with one_rank():
        for case, run in made.CASES.items():
            expected = run()
            assert expected is not None
            loss = expected.pop("loss")
            assert found[case].pop("loss") == pytest.approx(loss, rel=1e-15)
            assert found[case] == expected, "the same bits"
