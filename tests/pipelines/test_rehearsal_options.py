"""Options of a rehearsal: each has an effect, or fails the command, before anything starts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from contracts.config import RunConfig
from contracts.config.load import load_config
from contracts.errors import ConfigError
from pipelines.cli import app
from pipelines.rehearse.options import RehearsalOptions
from pipelines.rehearse.rehearse import run_command

ROOT = Path(__file__).parents[2]
DIGITS = ROOT / "configs" / "digits-vertex.yaml"


@pytest.mark.parametrize(
    ("values", "given", "expected"),
    [
        ({}, {"has_config": False}, "shardline rehearse without CONFIG"),
        ({"clock_rate": 2.0}, {}, "--clock-rate 2 without --serve"),
        ({"schedule_days": 2.0}, {"serve": True}, "--schedule-days with --serve"),
        ({"preemptions": 2}, {"has_config": False, "serve": True}, "--serve without CONFIG, with an option"),
        ({"seed": 1}, {}, "--seed 1 without --preempt and --storage-faults"),
        ({"faults": Path("nothing.json")}, {}, "--faults nothing.json"),
    ],
)
def test_what_does_not_go_together(values: dict[str, Any], given: dict[str, Any], expected: str) -> None:
    with pytest.raises(ConfigError) as caught:
        RehearsalOptions(**values).check(**{"has_config": True, "serve": False, **given})
    assert caught.value.given.startswith(expected)


def test_errors_of_a_command_are_shown_whatever_they_name(capfd: pytest.CaptureFixture[str]) -> None:
    assert run_command("submit", "no-such-usd.yaml") == 2
    assert "no-such-usd.yaml" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("overrides", "values", "expected"),
    [
        ([], {"stockouts": ("us-west1",)}, "--stockout us-west1"),
        ([], {"schedule_days": 3.0}, "--schedule-days 3 without schedule.cron"),
        (["resources.strategy=STANDARD"], {"preemptions": 1}, "--preempt 1, and resources.strategy = STANDARD"),
        (["resources.ranks=2"], {"processes": 3}, "--processes 3, and resources.ranks = 2"),
    ],
)
def test_what_can_have_no_effect_with_a_configuration(
    overrides: list[str], values: dict[str, Any], expected: str
) -> None:
    config = load_config(DIGITS, ["resources.regions=[us-east4]", *overrides])
    RehearsalOptions(stockouts=("us-east4", "us-central1")).check_for(config)
    # The stand-in of a configuration that names no region.
    RehearsalOptions(stockouts=("us-central1",)).check_for(RunConfig())
    with pytest.raises(ConfigError) as caught:
        RehearsalOptions(**values).check_for(config)
    assert caught.value.given == expected


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (("--stockout", "us-west1"), "a region in which the run is tried: us-central1"),
        (("--weights", "w.pt"), "--weights w.pt, and model.weights is not set"),
        (("--time-scale", "0"), "--time-scale"),
        (("--storage-faults", "0.9"), "--storage-faults"),
    ],
)
def test_bad_values_end_with_2_before_anything_starts(tmp_path: Path, options: tuple[str, ...], expected: str) -> None:
    kept, source = tmp_path / "kept", tmp_path / "source"
    source.mkdir()
    given = ["rehearse", str(DIGITS), "--source", str(source), "--keep", str(kept), *options]
    answer = CliRunner().invoke(app, given)
    assert answer.exit_code == 2, answer.output
    assert expected in answer.output
    assert not kept.exists()


def test_rules_are_those_of_the_bucket_server(tmp_path: Path) -> None:
    path = tmp_path / "rules.json"
    path.write_text('[{"operation": "objects.media", "status": 503}]')
    given, rate = RehearsalOptions(faults=path, storage_fault_rate=0.1, seed=3).rules()
    assert (given.operation, given.status) == ("objects.media", 503)
    assert (rate.probability, rate.status, rate.seed) == (0.1, 503, 3)
    path.write_text('[{"operations": "objects.media"}]')
    with pytest.raises(ConfigError, match="--faults"):
        RehearsalOptions(faults=path).check(has_config=True, serve=False)
