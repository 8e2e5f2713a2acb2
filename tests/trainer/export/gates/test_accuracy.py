from __future__ import annotations

import pytest

from trainer.tasks.classes.accuracy import allowed_drop, judge_accuracy


@pytest.mark.parametrize(("samples", "allowed"), [(199, 0), (200, 1), (399, 1), (400, 2), (539, 2), (50_000, 250)])
def test_half_a_point_in_images(samples: int, allowed: int) -> None:
    assert allowed_drop(samples) == allowed


@pytest.mark.parametrize(("right", "status"), [(530, "passed"), (520, "passed"), (518, "passed"), (517, "failed")])
def test_the_limit_is_an_image(right: int, status: str) -> None:
    found = judge_accuracy(precision="int8", reference_right=520, right=right, samples=539, ran="test")
    assert (found.name, found.precision, found.status) == ("accuracy", "int8", status)
    assert found.figures["drop_images"] == 520 - right
    assert found.limits["drop_images"] == 2
    if status == "failed":
        assert found.reason == (
            "517 of 539 test images are right, 3 fewer than fp32's 520; at most 2 fewer are allowed (0.5 points)"
        )


@pytest.mark.parametrize("samples", [0, 1, 199])
def test_too_few_images_fail_with_the_reason(samples: int) -> None:
    found = judge_accuracy(precision="int8", reference_right=samples, right=samples, samples=samples, ran="test")
    assert found.status == "failed"
    assert f"has {samples} images: with fewer than 200" in found.reason
