import json
import math
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from contracts import storage
from contracts.artifacts import (
    GoodputRecord,
    ProfileChoice,
    ProfilePoint,
    ProfileReport,
    RunRecord,
    StageRecord,
    TrainingEstimate,
)
from contracts.errors import ConfigError, DataError
from contracts.fingerprint import model_fingerprint
from pipelines.cli import app
from pipelines.plan.compare import compare
from pipelines.plan.estimate import Profile, estimate_time, find_profile, read_profile
from pipelines.plan.inputs import PlanInputs
from pipelines.plan.measured import find_measurements, parse_machines, parse_numbers
from pipelines.plan.plan import outline
from tests.pipelines.compiled import require_plan
from tests.pipelines.test_plan import VALID, config

SAMPLES, RATE = 36_000, 100.0


def report(gpus: str = "NVIDIA L4", **changes: Any) -> ProfileReport:
    """A report of 100 samples/s per rank; batch and network are those of the tests' configuration."""
    point = ProfilePoint(
        slot_size=8,
        num_workers=2,
        samples_per_s=RATE,
        samples_per_s_min=95,
        samples_per_s_max=105,
        data_time_fraction=0.1,
    )
    values: dict[str, Any] = {
        "fingerprint": "0" * 16,
        "model_fingerprint": model_fingerprint(config()),
        "shards_fingerprint": "1" * 16,
        "hardware": {"cores": "12", "cpu": "x", "gpus": gpus},
        "torch_version": "2.13.0",
        "ranks": 1,
        "threads_per_rank": 12,
        "global_batch_size": config().train.global_batch_size,
        "points": [point, point.model_copy(update={"slot_size": 4, "samples_per_s": 60.0})],
        "choice": ProfileChoice(slot_size=8, num_workers=2, reason="the fastest"),
    }
    return ProfileReport(**(values | changes))


def profile(gpus: str = "NVIDIA L4", samples: int | None = SAMPLES, **changes: Any) -> Profile:
    return Profile(report(gpus, **changes), "gs://my-bucket/runs/flowers/profile/00", samples)


def test_time_is_samples_over_speed() -> None:
    plan = require_plan(config("train.epochs=10"), PlanInputs(profile=profile()))
    assert plan.time is not None
    # 36,000 samples x 10 epochs / (100 samples/s x 2 machines of one GPU).
    assert plan.time.hours == pytest.approx(0.5)
    assert plan.time.epoch_hours == pytest.approx(0.05)
    assert "100.0 samples/s per rank on NVIDIA L4" in plan.time.source
    assert any("no evaluation" in text for text in plan.time.assumptions)
    rung = plan.rungs[0]
    assert rung.price is not None
    assert rung.cost is not None
    assert rung.cost.high_usd == pytest.approx(rung.price.high_usd_per_h * 0.5)


def test_max_steps_cut_the_time() -> None:
    cut = config("train.epochs=10", "train.max_steps=9")
    plan = require_plan(cut, PlanInputs(profile=profile()))
    assert plan.time is not None
    assert plan.time.hours == pytest.approx(9 * cut.train.global_batch_size / 200 / 3600)


def test_a_cap_below_the_cost_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"training takes 5\.0 h .*max_cost_usd = 8") as caught:
        require_plan(config("train.epochs=100", "resources.max_cost_usd=8"), PlanInputs(profile=profile()))
    assert "raise resources.max_cost_usd" in caught.value.todo
    assert outline(config("train.epochs=100", "resources.max_cost_usd=12"), PlanInputs(profile=profile())).ok


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (None, "no profile"),
        (profile("Tesla T4"), "was measured on Tesla T4, not on g2-standard-12"),
        (profile("none"), "12 cores without GPUs"),
        (profile(samples=None), "are not in its line"),
        (profile(model_fingerprint="f" * 16), "another model"),
        (profile(global_batch_size=7), "another model or train.global_batch_size"),
    ],
)
def test_what_does_not_fit_leaves_the_time_unknown(given: Profile | None, said: str) -> None:
    plan = outline(config(), PlanInputs(profile=given))
    assert plan.time is None
    assert said in plan.time_unknown
    assert plan.ok


def test_a_comparison_says_where_each_figure_is_from() -> None:
    machines = parse_machines("g2-standard-12,g2-standard-48,a2-highgpu-1g,n2-standard-8")
    found = compare(config("train.epochs=10"), machines, [1, 4], profile=profile(), kept_per_doubling=0.9)
    rows = {(entry.machine.type, entry.nodes): entry for entry in found.candidates}
    one, four = rows["g2-standard-12", 1], rows["g2-standard-12", 4]
    assert (one.samples_per_s, one.speed_from, one.efficiency) == (RATE, "profile", 1.0)
    assert one.hours == pytest.approx(1.0)
    assert four.efficiency == pytest.approx(0.9 ** math.log2(4))
    assert (four.speed_from, four.efficiency_from) == ("assumed", "assumed")
    assert four.samples_per_s == pytest.approx(4 * RATE * 0.81)
    assert one.high_usd is not None
    assert one.high_usd_per_epoch == pytest.approx(one.high_usd / 10)
    assert rows["g2-standard-48", 1].samples_per_s == 4 * RATE
    other = rows["a2-highgpu-1g", 1]
    assert other.samples_per_s == pytest.approx(RATE * 1555 / 300)
    assert other.speed_from == "assumed"
    assert rows["n2-standard-8", 1].hours is None
    assert rows["n2-standard-8", 1].speed_from == "unknown"
    said = "\n".join(found.assumptions)
    assert "1555 and 300 GB/s" in said
    assert "keeps 90% of the speed" in said
    assert any("n2-standard-8" in reason for reason in found.unknown)


def test_without_a_profile_nothing_is_known() -> None:
    found = compare(config(), parse_machines(None), [1], profile=None)
    assert all(entry.hours is None and entry.speed_from == "unknown" for entry in found.candidates)
    assert any("no profile" in reason for reason in found.unknown)


def goodput(seconds: float, steps: int) -> GoodputRecord:
    fields: dict[str, Any] = dict.fromkeys(GoodputRecord.model_fields, 0)
    fields |= {"productive_s": seconds * 0.75, "data_wait_s": seconds * 0.25, "steps": steps, "wall_s": seconds}
    return GoodputRecord(**fields)


def write_run(line: Path, run_id: str, nodes: int, samples_per_s: float, **changes: Any) -> None:
    ran = config(f"resources.nodes={nodes}")
    steps = 100
    record = RunRecord(
        fingerprint="2" * 16,
        id=run_id,
        state="succeeded",
        started_at="2026-11-20T00:00:00Z",
        config=ran.model_dump(mode="json"),
        stages=[StageRecord(name="train", state="done")],
        wall_s=1,
        kfp_s=0,
        process_start_s=0,
        results={},
        goodput=goodput(steps * ran.train.global_batch_size / samples_per_s, steps),
    )
    folder = line / "runs" / run_id
    folder.mkdir(parents=True)
    (folder / "run.json").write_bytes(record.model_copy(update=changes).to_json())


def test_finished_trainings_are_measurements(tmp_path: Path) -> None:
    write_run(tmp_path, "20261120-1", 1, 80.0)
    write_run(tmp_path, "20261121-1", 2, 130.0)
    write_run(tmp_path, "20261122-1", 2, 999.0, goodput=None)
    write_run(tmp_path, "20261122-2", 2, 999.0, stages=[StageRecord(name="train", state="reused")])
    other = config("train.precision=bf16").model_dump(mode="json")
    write_run(tmp_path, "20261122-3", 2, 999.0, config=other)
    measurements = find_measurements(f"file://{tmp_path}", config())
    assert [(entry.run_id, entry.nodes) for entry in measurements] == [("20261121-1", 2), ("20261120-1", 1)]
    found = compare(config(), parse_machines("g2-standard-12"), [1, 2, 4], profile=profile(), measurements=measurements)
    one, two, four = found.candidates
    assert (one.samples_per_s, one.speed_from) == (pytest.approx(80.0), "measured")
    assert two.efficiency == pytest.approx(130 / 160)
    assert two.efficiency_from == two.speed_from == "measured"
    assert four.efficiency_from == "assumed"
    # A plan goes by what was measured before it goes by a profile.
    plan = outline(config("train.epochs=10"), PlanInputs(profile=profile(), measurements=tuple(measurements)))
    assert plan.time is not None and plan.time.source.startswith("run 20261121-1: 130.0 samples/s")
    assert plan.time.hours == pytest.approx(10 * SAMPLES / 130 / 3600)


def test_the_line_s_report_is_found(tmp_path: Path) -> None:
    good, bad = report(), report(global_batch_size=3, fingerprint="9" * 16)
    for entry in (good, bad):
        folder = tmp_path / "profile" / entry.fingerprint
        folder.mkdir(parents=True)
        (folder / "manifest.json").write_bytes(entry.to_json())
    (tmp_path / "profile" / "broken").mkdir()
    (tmp_path / "profile" / "broken" / "manifest.json").write_text("{")
    found = find_profile(f"file://{tmp_path}", config())
    assert found is not None
    assert found.report == good
    assert found.train_samples is None
    machine = outline(config()).machine
    assert machine is not None
    assert estimate_time(config(), machine, 1, found)[0] is None


@pytest.mark.parametrize(
    "text", ["g2-standard-13", "n1-standard-8+L4", "n1-standard-8 + 2", "", "n1-standard-8+NVIDIA_L4"]
)
def test_machines_that_are_none(text: str) -> None:
    with pytest.raises(ConfigError):
        parse_machines(text or ",")


def test_machines_and_numbers() -> None:
    one, two = parse_machines("n1-standard-8+2xNVIDIA_TESLA_T4, g2-standard-24")
    assert (one.gpus, two.gpus) == (2, 2)
    assert parse_numbers("4, 1,2,4") == [1, 2, 4]
    with pytest.raises(ConfigError, match="--nodes 0"):
        parse_numbers("0")


def test_the_command(tmp_path: Path) -> None:
    path = tmp_path / "flowers.yaml"
    path.write_text(yaml.safe_dump(VALID))
    folder = tmp_path / "line" / "profile" / ("0" * 16)
    folder.mkdir(parents=True)
    (folder / "manifest.json").write_bytes(report().to_json())
    answer = CliRunner().invoke(app, ["plan", str(path), "--compare", "--nodes", "1,2", "--profile", str(folder)])
    assert answer.exit_code == 0, answer.output
    assert "2 x a2-highgpu-1g with 1 x NVIDIA_TESLA_A100" in answer.output
    assert "assumed: each doubling" in answer.output
    assert "unknown: the shards of the profile" in answer.output
    as_json = CliRunner().invoke(
        app, ["plan", str(path), "--compare", "--nodes", "1", "--machines", "g2-standard-12", "-o", "json"]
    )
    assert [entry["nodes"] for entry in json.loads(as_json.output)["candidates"]] == [1]


def test_a_report_without_its_shards_knows_how_many_they_are(tmp_path: Path) -> None:
    known = TrainingEstimate(samples=7, hours=1.0, epoch_samples=SAMPLES)
    folder = storage.normalise(tmp_path / "elsewhere")
    storage.publish(storage.join(folder, "manifest.json"), report(estimate=known).to_json())
    found = read_profile(folder)
    assert found.train_samples == SAMPLES
    # The epochs are those of the configuration, not those that the profile was taken under.
    plan = require_plan(config("train.epochs=10"), PlanInputs(profile=found))
    assert plan.time is not None and plan.time.hours == pytest.approx(0.5)


def test_a_choice_without_a_rate_gives_no_time() -> None:
    missing = report().points[0].model_copy(update={"samples_per_s": None, "outcome": "hung", "reason": "hung"})
    plan = outline(config(), PlanInputs(profile=profile(points=[missing])))
    assert plan.time is None and "has no rate for what it chose" in plan.time_unknown
    found = compare(config(), parse_machines("g2-standard-12"), [1], profile=profile(points=[missing]))
    assert found.candidates[0].samples_per_s is None
    assert any("no rate" in reason for reason in found.unknown)


def test_a_report_whose_choice_was_not_measured_is_refused() -> None:
    with pytest.raises(DataError, match="is none of its points"):
        outline(config(), PlanInputs(profile=profile(points=[])))


def test_more_ranks_than_were_measured_are_an_assumption() -> None:
    plan = outline(config("resources.nodes=1"), PlanInputs(profile=profile(ranks=4)))
    assert plan.time is not None
    assert "1 ranks of a machine are each as fast as the 4 that were measured" in plan.time.assumptions
    assert not any("between machines" in text for text in plan.time.assumptions)
    assert any(
        "between machines" in text for text in require_plan(config(), PlanInputs(profile=profile())).time.assumptions
    )  # type: ignore[union-attr]
