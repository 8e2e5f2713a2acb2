"""`shardline profile`: its options, and what it prints of a report."""

import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from contracts import storage
from contracts.artifacts import CheckpointManifest, ProfileReport, TrainingEstimate
from contracts.config import RunConfig
from inspection.profile import describe_training
from tests.conftest import small_config
from tests.inspection.test_profile import report as make_report

PRICED = RunConfig.model_validate({"train": {"epochs": 3}, "resources": {"price_usd_per_h": 2}})


def test_time_and_cost_are_of_this_configuration() -> None:
    """A report holds for other epochs and prices than it was measured under."""
    old = TrainingEstimate(samples=1, hours=99, usd=99, epoch_samples=1_000_000)
    told = describe_training(make_report(estimate=old), PRICED)
    assert told is not None
    # 3,000,000 samples by 2 ranks of 123.45 samples/s, at 2 USD/h.
    hours = 3e6 / (2 * 123.45) / 3600
    assert f"{hours:.2f} h, {2 * hours:.2f} USD for 3000000 samples by 2 ranks" in told
    assert f"by 2 ranks, {2 * hours / 3:.4f} USD per million samples, steps only" in told
    few = RunConfig.model_validate({"train": {"epochs": 1, "max_steps": 10, "global_batch_size": 10}})
    assert "0.4 s for 100 samples" in (describe_training(make_report(estimate=old), few) or "")
    assert describe_training(make_report(), PRICED) is None


def test_max_steps_cut_a_training() -> None:
    config = RunConfig.model_validate({"train": {"epochs": 3, "max_steps": 5, "global_batch_size": 10}})
    found = TrainingEstimate.of(config, epoch_samples=100, samples_per_s=0.5)
    assert (found.samples, found.usd, found.epoch_samples) == (50, None, 100)
    assert found.hours == pytest.approx(100 / 3600)


@pytest.mark.slow
def test_the_command_measures_prints_and_finds_again(
    tmp_path: Path, pictures: Path, environment: dict[str, str]
) -> None:
    """By the real stage: small, and within a small budget."""

    def shardline(*words: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "pipelines.cli", *words]
        return subprocess.run(
            command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300, check=False
        )

    values = small_config(
        run={"name": "small"},
        sharding={"source": str(pictures)},
        data={"num_workers": "auto"},
        parallel={"slot_size": "auto"},
        profile={"window_s": 0.05, "slot_sizes": [4, 8], "num_workers": [0]},
        resources={"price_usd_per_h": 1.0, "threads": 1},
    )
    (tmp_path / "c.yaml").write_text(yaml.safe_dump(values))
    assert shardline("shard", "c.yaml").returncode == 0
    grid = ("profile.budget_s=30", "profile.method=grid")
    first = shardline("profile", "c.yaml", *grid)
    assert first.returncode == 0, first.stderr
    *lines, place = first.stdout.splitlines()
    report = ProfileReport.load(storage.normalise(tmp_path / place))
    assert report.method == "grid"
    said = dict(line.split(": ", 1) for line in lines if not line.startswith(" "))
    assert said["choice"].startswith(f"slot size {report.choice.slot_size} x ")
    assert said["reason"].startswith(report.choice.reason)
    assert f"{report.chosen_point().samples_per_s:.1f} samples/s per rank" in said["measured"]
    assert {name for name in said if name.startswith("finding ")} == {
        f"finding {each.rule}" for each in report.findings
    }
    assert report.estimate is not None
    assert f"USD for {report.estimate.samples} samples by 2 ranks" in said["training"]
    assert f"Report {report.fingerprint}." in (tmp_path / said["page"]).read_text()
    again = shardline("profile", "c.yaml", *grid)
    assert "reused" in again.stderr
    assert again.stdout.splitlines()[0].startswith("reused: ")
    # The page is made anew, in the folder of this attempt.
    [*lines, page, _], [*same, former, _] = again.stdout.splitlines()[1:], first.stdout.splitlines()
    assert lines == same and page != former and "page: " in page
    # Training follows it where it is named.
    trained = shardline("train", "c.yaml", "--profile", place, "train.max_steps=1")
    assert trained.returncode == 0, trained.stderr
    made = CheckpointManifest.load(storage.normalise(tmp_path / trained.stdout.splitlines()[-1]))
    assert made.slot_size == report.choice.slot_size
    assert made.environment["threads_per_rank"] == "1"
