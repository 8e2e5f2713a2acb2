"""`shardline profile`: its options, and what it prints of a report."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from contracts import storage
from contracts.artifacts import FileEntry, TrainingEstimate
from contracts.config import RunConfig
from contracts.errors import ConfigError
from contracts.estimate import estimate_training
from pipelines.cli import app
from pipelines.profiled import describe_profile, parse_duration
from tests.inspection.test_profile import report

URI = storage.normalise("/line/profile/0123")
PRICED = RunConfig.model_validate({"train": {"epochs": 3}, "resources": {"price_usd_per_h": 2}})


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("120", 120), ("120s", 120), ("2m", 120), ("2min", 120), ("0.5h", 1800), (" 90 s ", 90), ("1.5m", 90)],
)
def test_a_budget_is_a_time(text: str, seconds: float) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize("text", ["", "soon", "-3s", "2 days", "1e3", "1m30s", "\u0663s", "nan", "inf"])
def test_what_is_no_time_is_refused(text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_duration(text)
    assert caught.value.given == f"--budget {text}"
    assert "120s, 2m or 120" in caught.value.todo


@pytest.mark.parametrize(
    ("budget", "said"),
    [("soon", "--budget soon"), ("0s", "profile.budget_s = 0"), ("900h", "profile.budget_s = ")],
)
def test_a_bad_budget_ends_with_2(tmp_path: Path, budget: str, said: str) -> None:
    (tmp_path / "c.yaml").write_text("run: {name: x}")
    answer = CliRunner().invoke(app, ["profile", str(tmp_path / "c.yaml"), "--budget", budget])
    assert answer.exit_code == 2
    assert said in answer.stderr
    assert not (tmp_path / "runs").exists()


def test_a_profile_that_was_made_before_says_so() -> None:
    first, *rest = describe_profile(report(), URI, PRICED, reused=True)
    assert first.startswith("reused: ") and "--fresh" in first
    assert list(describe_profile(report(), URI, PRICED, reused=False)) == rest


def test_the_page_is_named_where_there_is_one() -> None:
    assert list(describe_profile(report(), URI, PRICED, reused=False))[-1] == "page: none"
    page = FileEntry(name="profile.html", bytes=1, crc32c="00000000")
    lines = list(describe_profile(report(files=[page]), URI, PRICED, reused=False))
    assert lines[-1] == f"page: {storage.display(storage.join(URI, 'profile.html'))}"


def test_time_and_cost_are_of_this_configuration() -> None:
    """A report holds for other epochs and prices than it was measured under."""
    old = TrainingEstimate(samples=1, hours=99, usd=99, epoch_samples=1_000_000)
    told = "\n".join(describe_profile(report(estimate=old), URI, PRICED, reused=True))
    # 3,000,000 samples by 2 ranks of 123.45 samples/s, at 2 USD/h.
    hours = 3e6 / (2 * 123.45) / 3600
    assert f"training: {hours:.2f} h, {2 * hours:.2f} USD for 3000000 samples by 2 ranks" in told
    assert "training:" not in "\n".join(describe_profile(report(), URI, PRICED, reused=True))


def test_max_steps_cut_a_training() -> None:
    config = RunConfig.model_validate({"train": {"epochs": 3, "max_steps": 5, "global_batch_size": 10}})
    found = estimate_training(config, epoch_samples=100, samples_per_s=0.5)
    assert (found.samples, found.usd, found.epoch_samples) == (50, None, 100)
    assert found.hours == pytest.approx(100 / 3600)
