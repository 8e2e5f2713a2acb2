"""Figures and words of each section of the report."""

from __future__ import annotations

import re
from typing import Any

from contracts.artifacts import Duplicates, EvaluationReport, FieldEntry, GoodputRecord, Rejected
from contracts.artifacts.classification import ClassificationDetails
from contracts.artifacts.multilabel import LabelOutcome, MultilabelDetails
from inspection.report.page import render_report
from inspection.report.training import find_gaps, repeated_steps
from inspection.view import Curve, Mark, Missing, Money, RunView, SampleLabel, WorstSample
from tests.export_fields import make_manifest, make_verification
from tests.inspection.documents import HOSTILE, make_evaluation
from tests.page_text import absent, figures, part, said, texts
from tests.trainer.profiling.reports import gpu_report, gpu_summary


def section(view: RunView, name: str, **changes: Any) -> str:
    return part(render_report(view.model_copy(update=changes)), name)


def marks(*kinds: tuple[str, int | None]) -> list[Mark]:
    values = [{"kind": kind, "time": place, "step": step, "text": ""} for place, (kind, step) in enumerate(kinds)]
    return [Mark.model_validate(value) for value in values]


def test_data_without_images_or_classes_speaks_of_neither(views: dict[str, RunView]) -> None:
    view = views["fresh"]
    assert view.shards is not None
    copies = {"duplicates": Duplicates(groups=1, copies=3, leaking_groups=1, listed=[])}
    page = section(view, "data", shards=view.shards.model_copy(update=copies))
    assert "Copies of images 3 1 group in several splits" in said(page.replace("<", " <"))
    assert figures(page)["data.samples"] == sum(split.samples for split in view.shards.splits.values())
    splits = {name: split.model_copy(update={"samples_by_class": []}) for name, split in view.shards.splits.items()}
    rows = {"fields": {"text": FieldEntry(kind="text")}, "splits": splits, "classes": [], "rejected": []}
    page = section(view, "data", shards=view.shards.model_copy(update=copies | rows))
    assert not re.search("image|picture|data.classes", page), page


def test_rejected_files_are_counted_by_reason(views: dict[str, RunView]) -> None:
    view = views["fresh"]
    assert view.shards is not None
    rejected = [Rejected(path=f"{n}.png", reason=f"row {n} of 'a b.png' is cut") for n in range(3)]
    page = section(view, "data", shards=view.shards.model_copy(update={"rejected": rejected, "num_rejected": 5}))
    assert figures(page)["data.rejected.0"] == 3 and "row N of … is cut" in said(page)
    assert "2 more files are not shown" in said(page)


def test_the_profile_shows_what_was_measured(views: dict[str, RunView]) -> None:
    report, summaries = gpu_report(), [gpu_summary(0), gpu_summary(1)]
    page = section(views["fresh"], "profile", profile=report, trace_summaries=summaries)
    values = figures(page)
    for point in report.points:
        assert values.get(f"map.{point.slot_size}.{point.num_workers}") == point.samples_per_s
    assert len(re.findall(r'class="[^"]*chosen"', page)) == 1 and "★ chosen" in page
    for name, value in report.indicators.model_dump().items():
        assert values.get(f"indicators.{name}") == value, name
    for name, spent in summaries[1].breakdown_s.items():
        assert values[f"breakdown.1.{name}"] == spent
    assert values["kernels.0.total_s"] == summaries[0].kernels[0].total_s
    assert re.findall(r'id="finding-\d+"><h3>(\w+)', page) == ["R1", "R5"] and values["findings.0.time_share"] == 0.31
    assert report.choice.reason in said(page) and report.warnings[0] in said(page)


def test_what_was_not_measured_is_named_once(views: dict[str, RunView]) -> None:
    report = gpu_report()
    indicators = report.indicators.model_copy(update={"mfu": None, "tensor_core_fraction": None})
    update = {"indicators": indicators, "findings": []}
    page = section(views["fresh"], "profile", profile=report.model_copy(update=update), trace_summaries=[])
    assert page.count("Not measured:") == 1
    assert absent(page)["indicators"] == (
        "Not measured: breakdown of a step (no trace); Model FLOPs utilisation; Kernels on tensor cores."
    )
    off = section(views["fresh"], "profile", profile=report.model_copy(update={"method": "off"}))
    assert "The profile is off" in absent(off)["profile"]


def test_curves_have_one_unit_each_and_the_events_of_the_training(views: dict[str, RunView]) -> None:
    view = views["resumed"]
    sizes = [Curve(name=f"memory/{n}", steps=[1, 2], times=[1.0, 2.0], values=[1e6, 506e6], rows=2) for n in
             ("resident_bytes", "resident_peak_bytes")]  # fmt: skip
    tokens = Curve(name="train/tokens_per_s", steps=[1, 2], times=[1.0, 2.0], values=[1.0, 5.0], rows=2)
    nan = view.curves[0].model_copy(update={"name": "x", "not_finite": 2, "first_not_finite": 7})
    page = section(view, "training", curves=[*view.curves, *sizes, tokens, nan])
    titles = re.findall(r"<figcaption><strong>([^<]*)</strong>", page)
    assert titles[:2] == ["Loss", "Accuracy"] and "Throughput, tokens/s" in titles
    memory = page.partition("<strong>RAM of the first rank<")[2].partition("</figure>")[0]
    assert "memory/resident_bytes 506 MB" in said(memory) and "600 MB" in said(memory) and "MiB" not in memory
    assert "x: 2 values not finite, the first at step 7" in said(page)
    loss = page.partition("<strong>Loss<")[2].partition("</figure>")[0]
    assert 'class="rule resume"' in loss and 'class="gap"' in loss, "repeated steps are shaded"
    assert page.count('data-mark="resume"') == sum(mark.kind == "resume" for mark in view.marks) > 0
    assert "Without a chart, by their last values: train/learning_rate 0.01" in said(page)


def test_repeated_steps_reach_from_the_checkpoint_to_the_stop() -> None:
    events = marks(
        ("start", 0), ("checkpoint", 50), ("preemption", 80), ("resume", 50), ("checkpoint", 100), ("end", 100)
    )
    assert repeated_steps(events) == [(50.0, 80.0)]
    assert repeated_steps(marks(("start", 0), ("preemption", 80), ("resume", 80), ("end", 100))) == []
    kinds = ("start", "preemption", "checkpoint", "start", "resume", "crash", "crash", "resume")
    assert find_gaps(marks(*((kind, None) for kind in kinds))) == [(1, 3), (5, 7)]


def test_the_account_has_every_part_and_no_number_that_is_none(views: dict[str, RunView]) -> None:
    view = views["fresh"]
    assert isinstance(view.goodput, GoodputRecord)
    money = Money(
        node_hours=2.72,
        machine="g2-standard-8",
        strategy="SPOT",
        cost_usd=22.0,
        on_demand_usd=30.0,
        source="the price table",
        as_of="2026-02-27",
        assumptions=[],
    )
    page = section(view, "training", money=money)
    assert figures(page)["time.productive_s"] == view.goodput.productive_s
    assert texts(page)["money.on_demand"] == "30.00 USD" and "8.00 USD more than with spot machines" in said(page)
    for value in (float("nan"), float("inf")):
        goodput = view.goodput.model_copy(update={"checkpoint_s": value, "wall_s": value, "between_attempts_s": value})
        page = section(view, "training", goodput=goodput)
        assert not re.search(r"\b(nan|inf)\b", page) and "cannot be shown" not in page
    missing = [Missing(what="cost", reason="no price of a3-megagpu-8g is known")]
    page = section(view, "training", money=None, missing=missing)
    assert absent(page)["money"] == "Cost: no price of a3-megagpu-8g is known"


def test_results_stand_beside_validation_and_baseline(views: dict[str, RunView]) -> None:
    view = views["fresh"]
    assert view.evaluation is not None
    baseline = {"baseline": {"description": 'always "cat"', "value": 0.25}}
    report = EvaluationReport.model_validate(view.evaluation.model_dump(mode="json") | baseline)
    page = section(view, "results", evaluation=report)
    table = said(page.partition('id="metrics"')[2].partition("</table>")[0].replace("<", " <"))
    assert "Metric Validation Test Baseline accuracy 95.00 % 93.75 % 25.00 % loss 0.2 0.25" in table
    details = ClassificationDetails.of(report)
    assert details is not None
    values = figures(page)
    assert all(values[f"confusion.{label}.{guess}"] == samples for label, guess, samples in details.confusion)
    # Wilson's interval of 4 of 5.
    assert "80.0 % (37.6 % to 96.4 %)" in texts(page)["class.0.recall"] + said(page) and values["class.0.f1"] == 0.8
    overview = said(section(view, "overview", evaluation=report, registration={"verdict": "refused", "reason": "no"}))
    assert "Productionnot considered: no" in overview
    assert 'baseline 25.00 % (always "cat")' in overview


LABELS = [("beach", 40, 50, 30, 0.8125), ("nobody", 0, 3, 0, None), ("unsaid", 5, 0, 0, 0.25), (HOSTILE, 1, 1, 1, 1.0)]


def make_labels(**changes: Any) -> EvaluationReport:
    """An evaluation of a task with several labels."""
    outcomes = [
        LabelOutcome(
            name=name,
            threshold=0.375,
            positives=positives,
            predicted=predicted,
            right=right,
            precision=right / predicted if predicted else None,
            recall=right / positives if positives else None,
            f1=2 * right / (positives + predicted),
            average_precision=precision,
        )
        for name, positives, predicted, right, precision in LABELS
    ]
    update: dict[str, Any] = {
        "task": "image_multilabel",
        "headline": {"metric": "average_precision", "direction": "max"},
        "metrics": {"average_precision": 0.6875, "f1_macro": 0.5},
        "details": MultilabelDetails(classes=outcomes, exact=37, worst=[]).model_dump(mode="json"),
    }
    values = make_evaluation(["a"], [(0, 0, 64)]).model_dump(mode="json")
    return EvaluationReport.model_validate(values | update | changes)


def test_several_labels_have_each_label_at_its_threshold(views: dict[str, RunView]) -> None:
    page = section(views["fresh"], "results", evaluation=make_labels())
    table = said(page.partition('id="label-outcomes"')[2].partition("</table>")[0].replace("<", " <"))
    for words in ("beach 40 81.2 % 0.375 60.0 % 75.0 % 66.7 %", "nobody 0 no sample", "never predicted"):
        assert words in table, table
    assert "37 of 64 samples" in said(page.replace("<", " <")) and "68.75 %" in said(page)
    assert "leave out 1 without a sample" in said(page)
    damaged = make_labels(details={"classes": [{}], "exact": 0, "worst": []})
    assert "cannot be shown" in said(section(views["fresh"], "results", evaluation=damaged))


def test_worst_samples_are_pictures_or_texts_with_their_files(views: dict[str, RunView]) -> None:
    view = views["fresh"]
    assert len(view.worst) > 3 and all(sample.picture is not None for sample in view.worst)
    label = SampleLabel(what="predicted", name=HOSTILE, kind="bad", probability=0.98)
    samples = [WorstSample(key="k", text=text, labels=[label], file="a/1.txt") for text in (HOSTILE, "", "x" * 400)]
    config = {"sharding": {"source": "gs://b/texts"}}
    page = section(view, "results", worst=[*samples, WorstSample(key="k", loss=3.5)], config=config)
    assert HOSTILE not in page and page.count("<q>") == 3
    words = said(page)
    assert "(empty)" in words and "not shown" in words and "loss 3.5" in words and "x" * 299 + "…" in words
    address = "https://console.cloud.google.com/storage/browser/_details/b/texts/a/1.txt"
    assert f'<a href="{address}">a/1.txt</a>' in page
    assert section(view, "results").count("data:image/jpeg") == len(view.worst)


def test_the_verdict_follows_the_proof(views: dict[str, RunView]) -> None:
    document = make_manifest()
    page = section(views["fresh"], "export", export=document)
    assert 'data-state="unproven"' in page and "unproven: not run on a GPU" in said(page)
    page = section(views["fresh"], "export", export=document, verification=make_verification(document))
    assert 'data-state="proven"' in page and "proven on NVIDIA L4 (sm89)" in said(page)


def test_a_precision_that_its_gates_refused_stands_out(views: dict[str, RunView]) -> None:
    view = views["int8 refused"]
    assert view.export is not None
    page = section(view, "export")
    rows = [said(row.replace("<", " <")) for row in re.findall(r"<tr>.*?</tr>", part(page, "precisions"), re.DOTALL)]
    assert any("int8 failed parity of model.int8.onnx" in row for row in rows)
    assert "export: int8 failed its gates; fp16 is exported" in said(section(view, "overview"))
    values = figures(page)
    assert values["latency.0.median_ms"] == 1.5
    for name, value in view.export.headline_values.items():
        assert values[f"export.accuracy.{name}"] == value


def test_hashes_lead_from_the_listing_to_the_served_file(views: dict[str, RunView]) -> None:
    view = views["fresh"]
    assert view.shards is not None and view.checkpoint is not None and view.export is not None
    table = said(part(render_report(view), "hashes").partition("</table>")[0])
    hashes = [view.shards.made_from["listing"], view.shards.fingerprint, view.checkpoint.parameters_sha256]
    for value in [*hashes, view.export.served_file.sha256, *view.manifest_sha256.values()]:
        assert value in table, value
    assert table.count(view.checkpoint.parameters_sha256) == 2, "the export names its checkpoint"


def test_a_run_names_the_commands_that_go_on_with_it(views: dict[str, RunView]) -> None:
    page = said(section(views["failed in train"], "overview", place="vertex"))
    assert "shardline submit CONFIG, with the same overrides" in page
    document = make_manifest()
    page = said(section(views["fresh"], "overview", export=document, folder="gs://bucket/a b/runs/2"))
    assert "shardline verify 'gs://bucket/a b/runs/2', on a GPU of" in page
    proven = {"export": document, "verification": make_verification(document)}
    assert "shardline promote" in said(section(views["fresh"], "overview", **proven))
