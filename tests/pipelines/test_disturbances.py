"""Options of disturbances: what they become, and what is refused through the command before anything starts."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from contracts.config import RunConfig
from contracts.config.load import load_config
from contracts.errors import ConfigError
from pipelines.cli import app
from pipelines.rehearse.disturbances import Disturbances
from pipelines.rehearse.rehearsed import Rehearsed
from pipelines.rehearse.report import print_rehearsal
from rehearsal.jobs.market import Preempted

DIGITS = Path(__file__).parents[2] / "configs" / "digits-vertex.yaml"
REGIONS = "resources.regions=[us-east4]"


@pytest.fixture(scope="module")
def config() -> RunConfig:
    return load_config(DIGITS, (REGIONS,))


def test_a_stockout_is_of_a_region_in_which_the_run_is_tried(config: RunConfig) -> None:
    found = Disturbances(stockouts=("us-east4", "us-central1")).places(config)
    assert found == ("us-east4", "us-central1")
    for text in ("us-east4-b", "us-central1@1", "mars", "us-west1", ""):
        with pytest.raises(ConfigError) as caught:
            Disturbances(stockouts=(text,)).places(config)
        assert "us-central1, us-east4" in caught.value.allowed


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--stockout", "us-west1"), "a region in which the run is tried: us-central1"),
        (("--storage-faults", "0.9"), "from 0 to 0.5"),
        (("--time-scale", "0"), "--time-scale"),
        (("--schedule-days", "-1"), "--schedule-days"),
        (("--preempt", "x"), "--preempt"),
        (("--preempt", "101"), "--preempt"),
    ],
)
def test_bad_values_end_with_2_before_anything_starts(tmp_path: Path, options: tuple[str, ...], said: str) -> None:
    kept, source = tmp_path / "kept", tmp_path / "source"
    source.mkdir()
    given = ["rehearse", str(DIGITS), "--source", str(source), "--keep", str(kept), *options]
    answer = CliRunner().invoke(app, given)
    assert answer.exit_code == 2, answer.output
    assert said in answer.output
    assert not kept.exists()


def summary(**changes: Any) -> list[str]:
    """The lines of the report on what was survived, what ended the run, and what is not proven."""
    stream = io.StringIO()
    found = Rehearsed("run-1", "gs://b/line", changes.pop("exit_code", 0), load_config(DIGITS), [], {}, **changes)
    print_rehearsal(found, stream)
    words = ("survived", "happened", "ended by", "not proven")
    return [" ".join(line.split()) for line in stream.getvalue().splitlines() if line.strip().startswith(words)]


def test_the_summary_says_what_was_survived_what_ended_the_run_and_what_is_not_proven() -> None:
    gone = Preempted("job", "digits-train", 0, "sigkill", 7, 1, 0.0)
    lines = summary(preempted=[gone], struck=["no machines in us-central1: digits-profile"], idle=["--stockout mars"])
    assert lines[0] == "survived 1 machines taken away (0 by sigterm, 1 by sigkill)"
    assert lines[1] == "survived no machines in us-central1: digits-profile"
    assert "not proven --stockout mars struck nothing" in lines
    lines = summary(exit_code=75, struck=["no machines in us-central1: digits-train"], ended_by="stockout")
    assert lines[:2] == [
        "happened no machines in us-central1: digits-train",
        "ended by stockout (exit code 75)",
    ]
    assert summary()[0] == "survived nothing: nothing disturbed the run"
