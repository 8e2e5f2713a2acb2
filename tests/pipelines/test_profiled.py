"""`shardline profile`: what it prints of a report, and that training follows it."""

import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from contracts import storage
from contracts.artifacts import CheckpointManifest, ProfileReport, TrainingEstimate
from contracts.config import RunConfig
from inspection.terminal import describe_training
from tests.conftest import small_config
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


@pytest.mark.slow
def test_the_command_prints_a_report_finds_it_again_and_training_follows(
    tmp_path: Path, pictures: Path, environment: dict[str, str]
) -> None:
    """By the real stage: small, and within a small budget."""

    def shardline(command: str, *words: str) -> subprocess.CompletedProcess[str]:
        line = [sys.executable, "-m", "pipelines.cli", command, "c.yaml", *words]
        done = subprocess.run(line, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stderr
        return done

    values = small_config(
        sharding={"source": str(pictures)},
        data={"num_workers": "auto"},
        parallel={"slot_size": "auto"},
        profile={"method": "sweep", "window_s": 0.05, "slot_sizes": [4, 8], "num_workers": [0], "budget_s": 120},
        resources={"price_usd_per_h": 1.0, "threads": 1},
    )
    (tmp_path / "c.yaml").write_text(yaml.safe_dump(values))
    shardline("shard")
    *lines, place = shardline("profile").stdout.splitlines()
    report = ProfileReport.load(storage.normalise(tmp_path / place))
    printed = dict(line.split(": ", 1) for line in lines if ": " in line)
    assert printed["choice"].startswith(f"slot size {report.choice.slot_size} x ")
    assert f"{report.chosen_point().samples_per_s:.1f} samples/s per rank" in printed["measured"]
    assert report.estimate is not None and f" for {report.estimate.samples} samples" in printed["training"]
    assert any("chosen" in line and f"{report.choice.slot_size} " in line for line in lines)
    first, *same, again = shardline("profile").stdout.splitlines()
    assert first.startswith("reused: ") and (same, again) == (lines, place)
    made = shardline("train", "--profile", place, "train.max_steps=1").stdout.splitlines()[-1]
    assert CheckpointManifest.load(storage.normalise(tmp_path / made)).slot_size == report.choice.slot_size
