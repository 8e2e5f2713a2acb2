"""What the summaries say, and that text in them stays text."""

import math
import re
from collections.abc import Mapping

import pytest

from contracts.artifacts import (
    Attempt,
    CheckpointManifest,
    ExportManifest,
    Gate,
    InitialWeights,
    Latency,
    ProfileReport,
    Recommendation,
    ShardManifest,
)
from contracts.artifacts.classification import RocCurve
from contracts.artifacts.shards import FieldEntry
from contracts.config import STAGES
from inspection.run.headline import RunHeadline, make_headline
from inspection.run.view import MoneyView
from inspection.stages import export, profile, shard, train
from inspection.stages.told import Told
from pages.markdown import cell, code
from tests.inspection.stages.documents import GOODPUT, HOSTILE, hostile_shards, make_evaluation
from tests.inspection.test_summary import DOCUMENTS

MONEY = MoneyView(
    node_hours=0.05,
    machine="g2-standard-12",
    strategy="SPOT",
    cost_usd=0.3,
    on_demand_usd=0.6,
    source=HOSTILE,
    as_of="2026-11-01",
    assumptions=[],
)
CURVE = RocCurve(area=0.75, points=[(0.5, 1, 2), (0.0, 3, 3)])
EVALUATION = make_evaluation([HOSTILE, "plain"], [(0, 0, 2), (0, 1, 1), (1, 1, 3)], [CURVE, CURVE])


LATENCY = Latency(
    runner=HOSTILE,
    precision="fp16",
    device=HOSTILE,
    batch=8,
    p50_ms=2.0,
    p90_ms=2.5,
    p99_ms=3.0,
    images_per_s=4000.0,
    repeats=10,
)


def headline_of(*, reused: bool = False) -> RunHeadline:
    return make_headline(state="running", goodput=GOODPUT, money=MONEY, reused=reused)


def hostile_told() -> dict[str, Told]:
    swept, exported, trained = DOCUMENTS["profile"], DOCUMENTS["export"], DOCUMENTS["train"]
    assert isinstance(swept, ProfileReport) and isinstance(exported, ExportManifest)
    assert isinstance(trained, CheckpointManifest)
    finding = swept.findings[0].model_copy(update={"title": HOSTILE, "evidence": [HOSTILE], "change": HOSTILE})
    return {
        "shard": shard.tell(hostile_shards()),
        "profile": profile.tell(
            swept.model_copy(
                update={
                    "findings": [finding],
                    "warnings": [HOSTILE],
                    "recommendations": [Recommendation(setting=HOSTILE, gain=2.0, evidence=HOSTILE)],
                    "choice": swept.choice.model_copy(update={"reason": HOSTILE}),
                }
            )
        ),
        "train": train.tell(
            trained.model_copy(update={"environment": {HOSTILE: HOSTILE}, "warnings": [HOSTILE]}),
            train.Beside(EVALUATION, GOODPUT, MONEY, headline_of()),
        ),
        "export": export.tell(
            exported.model_copy(
                update={
                    "tried": [Attempt(precision="int8", outcome="failed", reason=HOSTILE)],
                    "gates": [Gate(name=HOSTILE, precision="fp16", status="failed", ran=HOSTILE, reason=HOSTILE)],
                    "latency": [LATENCY],
                    "latency_left_out": {HOSTILE: HOSTILE},
                }
            )
        ),
    }


@pytest.mark.parametrize("stage", STAGES)
def test_hostile_text_is_text_and_tables_are_whole(stage: str) -> None:
    lines = hostile_told()[stage].lines
    check_markdown(lines)
    text = "\n".join(lines)
    assert "&#60;img src=x" in text
    assert "<" not in text and "\u202e" not in text and "](" not in text and "http://" not in text


def check_markdown(lines: list[str]) -> None:
    """Assert that every table has as many cells in each row as in its head, and text stays in its line."""
    columns = 0
    for line in lines:
        assert "\n" not in line and not re.search("[\x00-\x1f\u202a-\u202e]", line)
        if not line.startswith("|"):
            columns = 0
            continue
        assert line.endswith("|")
        count = line.count("|") - 1
        assert columns in (0, count), line
        columns = count


@pytest.mark.parametrize("stage", STAGES)
def test_metrics_are_finite_numbers_with_the_stage_in_front(stage: str) -> None:
    numbers = hostile_told()[stage].numbers
    check_numbers(stage, numbers)


def check_numbers(stage: str, numbers: Mapping[str, object]) -> None:
    assert numbers
    for name, value in numbers.items():
        assert re.fullmatch(f"{stage}_[a-z0-9_]+", name), name
        assert isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value), name


def test_the_data_card() -> None:
    shards = DOCUMENTS["shard"]
    assert isinstance(shards, ShardManifest)
    told = shard.tell(shards)
    assert told.numbers["shard_samples"] == told.numbers["shard_train_samples"] == 7
    assert "| train | 7 | 0 | 70\u00a0B |" in told.lines
    assert told.lines.index("| 0 | 3 | 0 | 0 |") < told.lines.index("| 1 | 4 | 0 | 0 |")
    hostile = shard.tell(hostile_shards())
    assert (hostile.numbers["shard_rejected"], hostile.numbers["shard_copies"]) == (1, 2)
    assert "2 images with the bytes of another; 1 group of copies is in several splits." in hostile.lines
    assert "## Images" in told.lines
    rows = shards.model_copy(update={"fields": {"text": FieldEntry(kind="text")}, "warnings": []})
    assert not any("image" in line.lower() for line in shard.tell(rows).lines)


def test_of_very_many_classes_the_extremes_are_shown() -> None:
    shards = DOCUMENTS["shard"]
    assert isinstance(shards, ShardManifest)
    counts = list(range(100))
    train_split = shards.splits["train"].model_copy(update={"samples_by_class": counts, "samples": sum(counts)})
    many = shards.model_copy(
        update={
            "classes": [f"class {place}" for place in counts],
            "splits": {
                name: split.model_copy(update={"samples_by_class": [0] * 100}) for name, split in shards.splits.items()
            }
            | {"train": train_split},
        }
    )
    lines = shard.tell(many).lines
    assert "| class 99 | 99 | 0 | 0 |" in lines and "| class 0 | 0 | 0 | 0 |" in lines
    assert "| class 50 | 50 | 0 | 0 |" not in lines
    assert "The 15 largest and smallest of 100; the manifest has all." in lines


def test_a_training_says_what_preemptions_have_cost() -> None:
    told = hostile_told()["train"]
    expected = {
        "train_goodput_percent": 60.0,
        "train_preemptions": 2,
        "train_attempts": 3,
        "train_lost_steps": 17,
        "train_cost_usd": 0.3,
        "train_test_accuracy": 0.98765,
    }
    assert {name: told.numbers[name] for name in expected} == expected
    text = "\n".join(told.lines).replace("\xa0", " ")
    assert (
        "2 preemptions, 1 crash: 3 attempts, 4 starts of the ranks, 17 steps done in vain, 12 s between attempts"
        in text
    )
    assert "| productive steps | 60 s | 60.0 % |" in text
    assert "0.30 USD, an estimate" in text and "on demand: 0.60 USD" in text
    assert "| Cost | 0.30 USD | estimate for the training's spot machines; prices: 2026-11-01 |" in text
    assert "| plain | 3 | 1.0000 | 0.7500 | 0.7500 |" in text
    assert "| plain | 1 |" in text


def test_a_training_of_which_little_is_known_says_so() -> None:
    trained = DOCUMENTS["train"]
    assert isinstance(trained, CheckpointManifest)
    told = train.tell(trained, train.Beside("no evaluation was made", "no attempt has told", None))
    text = "\n".join(told.lines)
    assert "no evaluation was made" in text and "no attempt has told" in text
    assert "train_cost_usd" not in told.numbers and "train_goodput_percent" not in told.numbers
    assert told.hashes == {"parameters_sha256": "ab"}


def test_a_training_says_what_it_started_from_and_what_ended_it() -> None:
    trained = DOCUMENTS["train"]
    assert isinstance(trained, CheckpointManifest)
    start = InitialWeights(
        source=f"gs://models/{HOSTILE}",
        kind="file",
        sha256="s",
        matched_fraction=0.75,
        taken=3,
        missing=[f"layer.{number}" for number in range(7)],
        unexpected=[],
        other_shape=[],
        head=["head.weight"],
        classes_taken=["cat"],
    )
    for ended_by, field in (("max_hours", "resources.max_hours"), ("early_stopping", "train.early_stopping")):
        told = train.tell(
            trained.model_copy(update={"initial": start, "ended_by": ended_by}), train.Beside("none", "none", None)
        )
        text = "\n".join(told.lines)
        assert "It started with weights from" in text and "75 % of the elements" in text
        assert "layer.4 and 2 more" in text and f"Ended by `{field}`" in text
        check_markdown(told.lines)


def test_an_export_is_told_by_precision() -> None:
    exported = DOCUMENTS["export"]
    assert isinstance(exported, ExportManifest)
    told = export.tell(exported)
    assert told.numbers["export_fp32_accuracy"] == 0.25 and told.numbers["export_torch_accuracy"] == 0.5
    assert (told.numbers["export_gates"], told.numbers["export_gates_passed"], told.numbers["export_proven"]) == (
        2,
        1,
        0,
    )
    assert told.hashes["engine_sm80_sha256"] == "cd" * 32
    assert "| int8 | why |" in told.lines
    # Of whatever task.
    assert not any("images/s" in line for line in hostile_told()["export"].lines)
    assert "| fp32 | 25.00\u00a0% | 1.2e-06 | 1.000000 | 100.00% | not measured | 1 of 1 |" in told.lines


@pytest.mark.parametrize(
    ("runner", "name"),
    [
        ("torch eager 2.13.0", "torch_eager"),
        ("onnxruntime 1.31.1 CPUExecutionProvider", "onnxruntime"),
        ("\u202e", "unnamed"),
    ],
)
def test_a_latency_is_named_by_what_ran_it_and_not_by_its_version(runner: str, name: str) -> None:
    exported = DOCUMENTS["export"]
    assert isinstance(exported, ExportManifest)
    latency = LATENCY.model_copy(update={"runner": runner})
    told = export.tell(exported.model_copy(update={"latency": [latency]}))
    assert told.numbers[f"export_fp16_{name}_batch8_p50_ms"] == 2.0


def test_devices_that_share_a_metric_are_told_and_the_fastest_counts() -> None:
    exported = DOCUMENTS["export"]
    assert isinstance(exported, ExportManifest)
    found = [("TensorRT 11.1", "L4", 2.0), ("TensorRT 11.2", "A100", 1.0), ("TensorRT 11.2", "T4", 3.0)]
    latency = [
        LATENCY.model_copy(update={"runner": runner, "device": device, "p50_ms": p50}) for runner, device, p50 in found
    ]
    told = export.tell(exported.model_copy(update={"latency": latency}))
    assert told.numbers["export_fp16_tensorrt_batch8_p50_ms"] == 1.0
    said = "Metric `export_fp16_tensorrt_batch8_p50_ms` is the fastest of 3: TensorRT 11.2 on A100."
    assert any(said in line for line in told.lines)
    alone = export.tell(exported.model_copy(update={"latency": latency[:1]}))
    assert not any("is the fastest of" in line for line in alone.lines)


def test_a_metric_of_a_training_that_is_called_as_one_of_ours_stands_beside_it() -> None:
    trained = DOCUMENTS["train"]
    assert isinstance(trained, CheckpointManifest)
    metrics = {"wall_s": 1.5, "steps": 2.5, "test_accuracy": 0.5, "cost_usd": 7.0}
    named = trained.model_copy(update={"metrics": metrics})
    numbers = train.count(named, GOODPUT, headline_of())
    assert (numbers["train_wall_s"], numbers["train_metric_wall_s"]) == (GOODPUT.wall_s, 1.5)
    assert (numbers["train_steps"], numbers["train_metric_steps"]) == (trained.step, 2.5)
    assert (numbers["train_cost_usd"], numbers["train_metric_cost_usd"]) == (0.3, 7.0)
    assert numbers["train_test_accuracy"] == 0.5
    # The name does not depend on what is known.
    assert "train_wall_s" not in train.count(named, None, None)


@pytest.mark.parametrize("value", [math.nan, 10**400])
def test_what_no_float_is_near_to_is_no_metric(value: float) -> None:
    shards = DOCUMENTS["shard"]
    assert isinstance(shards, ShardManifest)
    numbers = shard.count(shards.model_copy(update={"num_rejected": value}))
    assert "shard_rejected" not in numbers and numbers["shard_samples"] == 7


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("", ""),
        ("a_b c", "a_b c"),
        ("_a_", "&#95;a&#95;"),
        ("a\n\tb", "a b"),
        ("x: http://a.b/c", "x: http&#58;//a.b/c"),
        ("a" * 400, "a" * 299 + "…"),
    ],
)
def test_text_of_a_cell(text: str, shown: str) -> None:
    assert cell(text) == shown


@pytest.mark.parametrize(
    ("text", "shown"), [("gs://a/b_c", "`gs://a/b_c`"), ("a`b", "a&#96;b"), ("a|b", "a&#124;b"), ("", "")]
)
def test_code(text: str, shown: str) -> None:
    assert code(text) == shown
