"""What is concluded from two models' answers."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from trainer.export.bundle.shipped import Answers
from trainer.judge import judging
from trainer.judge.judging import Limits, NotJudged, _conclude, _pair_classes

CLASSES = ["a", "b", "c"]


def judge(truths: list[str], theirs: list[Any], ours: list[Any], known: list[str], **options: Any) -> Any:
    pair = _pair_classes(Answers(truths, ours), Answers(truths, theirs), CLASSES, known)
    return _conclude(pair, Limits(**options), options.get("metric") or "accuracy")


def test_a_verdict_is_what_the_section_says() -> None:
    truths = ["a", "b"] * 500
    wrong = ["b" if place % 10 == 0 else label for place, label in enumerate(truths)]
    better = judge(truths, wrong, truths, CLASSES, least_gain=0.05)
    assert (better.verdict, better.samples, better.champion_value) == ("promote", 1000, 0.9)
    gained = judge(truths, wrong, truths, CLASSES, least_gain=0.2)
    assert (gained.verdict, "least_gain 0.2" in gained.reasons[0]) == ("keep", True)
    worse = judge(truths, truths, wrong, CLASSES)
    assert (worse.verdict, "largest_loss 0.02" in worse.reasons[0]) == ("keep", True)
    # All of the loss is one class's, and the whole may lose it.
    lost = judge(truths, truths, wrong, CLASSES, largest_loss=0.5, metric="f1_macro")
    assert lost.verdict == "keep"
    assert lost.reasons[0].startswith("class a loses 0.200 of its recall (1.000 to 0.800 on 500 samples)")
    assert judge(truths, truths, wrong, CLASSES, largest_loss=0.5, class_floor=0.3).verdict == "promote"


def test_the_whole_test_split_is_compared_and_equally_good_models_are_let_pass(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Two models that differ on one sample of 25 in each direction: of 512 samples the worse end would be -0.019."""
    asked: list[Any] = []

    def ask(uri: str, trial: Any, places: Any, work: Any, *, task: str) -> tuple[Answers, list[str]]:
        asked.append(places)
        truths = ["a", "b"] * 2500
        wrong = 7 if uri == "old" else 13
        answers = ["c" if place % 50 == wrong else label for place, label in enumerate(truths)]
        return Answers(truths, answers), CLASSES

    monkeypatch.setattr(judging, "_ask", ask)
    trial = SimpleNamespace(export="new", shards_uri="nowhere", shards=SimpleNamespace(classes=CLASSES))
    document = SimpleNamespace(task="image_classification", proof_samples=512, proof_seed=0)
    pair = judging._ask_both(trial, document, "old")  # type: ignore[arg-type]
    assert asked == [None, None]
    assert _conclude(pair, Limits(), "accuracy").verdict == "promote"


def test_what_cannot_be_compared_is_left_out_and_said() -> None:
    truths = ["a", "b", "c"] * 20
    found = judge(truths, ["a", "b", None] * 20, truths, ["a", "b"], largest_loss=0.2)
    assert (found.verdict, found.samples) == ("promote", 40)
    assert found.reasons[-1] == "20 samples of classes that production lacks (c) are left out"
    with pytest.raises(NotJudged, match="classes that production lacks"):
        judge(["c"] * 30, ["a"] * 30, ["c"] * 30, ["a", "b"])
    with pytest.raises(NotJudged, match=r"10 test samples are fewer than least_samples 20"):
        judge(["a"] * 10, ["a"] * 10, ["a"] * 10, CLASSES)
    # An answer that one of both does not give is a wrong one.
    silent = np.where(np.arange(60) % 2 == 0, None, "a").tolist()
    assert judge(["a"] * 60, ["a"] * 60, silent, CLASSES).challenger_value == 0.5
