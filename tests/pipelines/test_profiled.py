"""`shardline profile`: what it prints of a report, and that training follows it."""

from contracts.artifacts import TrainingEstimate
from contracts.config import RunConfig
from inspection.terminal import describe_training
from tests.inspection.test_terminal import make_report


def test_time_and_cost_are_of_this_configuration() -> None:
    """A report holds for other epochs and prices than it was measured under."""
    old = TrainingEstimate(samples=1, hours=99, usd=99, epoch_samples=1_000_000)
    priced = RunConfig.model_validate({"train": {"epochs": 3}, "resources": {"price_usd_per_h": 2}})
    line = describe_training(make_report(estimate=old), priced) or ""
    # 3,000,000 samples by 2 ranks of 123.45 samples/s, at 2 USD/h.
    hours = 3e6 / (2 * 123.45) / 3600
    cost = f"{2 * hours:.2f} USD ({2 * hours / 3:.4f} USD per million samples)"
    assert f"{hours:.2f} h, {cost} for 3000000 samples by 2 ranks; steps only" in line
    few = RunConfig.model_validate({"train": {"epochs": 1, "max_steps": 10, "global_batch_size": 10}})
    assert "405 ms for 100 samples" in (describe_training(make_report(estimate=old), few) or "")
    assert describe_training(make_report(), priced) is None
