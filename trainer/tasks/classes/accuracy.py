"""What int8 may cost in right answers: half a point on the test split, said in samples, which are what is counted.

Here: `judge_accuracy`, a pure function; bundle.py calls it with the counts of the fp32 graph and of the
one that is to ship. Parity (trainer/export/gates/parity.py) is about logits; this is about answers and needs labels.
"""

from __future__ import annotations

from contracts.artifacts.export import Gate

# Points (hundredths of the split) that a graph may have fewer right than fp32.
MAX_DROP_POINTS = 0.5
# One image of 200 is half a point: with fewer, the limit is below what can be counted.
MIN_SAMPLES = 200


def allowed_drop(samples: int) -> int:
    """Return how many fewer may be right, of `samples`."""
    # In whole numbers: 0.005 has no exact float, and 200 * 0.005 must be 1.
    return samples * int(MAX_DROP_POINTS * 10) // 1000


def judge_accuracy(
    *, precision: str, reference_right: int, right: int, samples: int, ran: str, noun: str = "images"
) -> Gate:
    """Hold the right answers of a graph on the test split against those of fp32 on the same samples.

    Args:
        precision: Of the graph.
        reference_right: Samples that the fp32 graph gets right.
        right: Samples that this graph gets right.
        samples: Samples of the test split.
        ran: What computed the answers.
        noun: What samples are called.

    Returns:
        The gate `accuracy`. It fails with fewer than 200 samples: half a point is then less than one.
    """
    drop, allowed = reference_right - right, allowed_drop(samples)
    reason = ""
    if samples < MIN_SAMPLES:
        reason = (
            f"the test split has {samples} {noun}: with fewer than {MIN_SAMPLES} a loss of {MAX_DROP_POINTS} points is "
            "less than one of them, so that this limit cannot be checked"
        )
    elif drop > allowed:
        reason = (
            f"{right} of {samples} test {noun} are right, {drop} fewer than fp32's {reference_right}; "
            f"at most {allowed} fewer are allowed ({MAX_DROP_POINTS} points)"
        )
    return Gate(
        name="accuracy",
        precision=precision,
        status="failed" if reason else "passed",
        ran=ran,
        figures={
            "samples": samples,
            "reference_right": reference_right,
            "right": right,
            f"drop_{noun}": drop,
            "drop_points": 100 * drop / samples if samples else None,
        },
        limits={f"drop_{noun}": allowed, "drop_points": MAX_DROP_POINTS, "samples": MIN_SAMPLES},
        reason=reason,
    )
