"""The model card: every figure is the manifest's, the verdict never claims more than ran, and text stays text."""

from __future__ import annotations

import getpass
import re
import socket
from html import unescape
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest

from contracts.artifacts import ExportManifest, Gate, Latency
from contracts.artifacts.export import PARITY
from tests.export_fields import L4, image_export, make_checkpoint, make_engine, make_gates, make_graph, make_manifest
from tests.trainer.export import colours
from trainer.export.card import render_card

PLAN = "triton/classifier/1/model.plan"
Row = dict[str, str]


def tensorrt(device: str = L4, builder: str = "tensorrt 11.2.1", **changes: Any) -> ExportManifest:
    """Return the manifest of a plan that ran on a GPU; an empty device: on none."""
    gates = make_gates(PLAN, device=device, ran=builder) if device else make_gates("model.fp16.onnx")
    engine = make_engine(name=PLAN, builder=builder)
    values = {"runtime": "tensorrt", "served": PLAN, "engine": engine, "gates": gates, **changes}
    return make_manifest(**values)


def tables_of(text: str) -> dict[str, list[Row]]:
    """Return the rows of the table of each section, by column."""
    tables: dict[str, list[Row]] = {}
    for section in re.split(r"^## ", text, flags=re.MULTILINE)[1:]:
        title, _, body = section.partition("\n")
        lines = [line for line in body.splitlines() if line.startswith("|")]
        if lines:
            header, _, *rows = [[unescape(cell.strip()) for cell in line.split("|")[1:-1]] for line in lines]
            tables[title] = [dict(zip(header, row, strict=True)) for row in rows]
    return tables


def test_figures_are_the_manifest_s() -> None:
    failed = {"precision": "int8", "outcome": "failed", "reason": "metric of model.int8.onnx"}
    latency = [
        Latency(ran=f"tensorrt 11.2.1 on {L4}", batch=batch, median_ms=1.25 * batch, calls=50) for batch in (1, 8)
    ]
    tried = [failed, {"precision": "fp16", "outcome": "kept", "kept_fp32": ["encoder.norm", "head"]}]
    document = tensorrt(tried=tried, asked_precision="int8", latency=latency, proof_samples=100, proof_seed=3)
    text = render_card(document)
    tables = tables_of(text)
    for row, gate in zip(tables["Gates"], document.gates, strict=True):
        assert (row["Gate"], row["File"], row["Result"]) == (gate.name, f"`{PLAN}`", "passed")
        assert row["Ran by"] == f"tensorrt 11.2.1, {L4}"
    metrics = {row.pop("Model"): {name: float(value) for name, value in row.items()} for row in tables["Metrics"]}
    assert metrics == document.metrics
    assert [(row["Batch"], row["Median ms"]) for row in tables["Latency"]] == [("1", "1.25"), ("8", "10")]
    assert [row["Modules kept in fp32"] for row in tables["What was tried"]] == ["-", "encoder.norm, head"]
    for value in (document.served_file.sha256, document.checkpoint_sha256, document.shards_fingerprint, "2.13.0"):
        assert value in text


def test_the_verdict_is_that_of_the_gates() -> None:
    # The card is a file of the export: the manifest is sealed after it.
    document = tensorrt().model_copy(update={"seal": ""})
    assert f"**Verdict: proven on {L4}** (at export time)" in render_card(document)
    assert "**Verdict: unproven: not run on a GPU**" in render_card(tensorrt(device=""))
    failed = Gate(name=PARITY, precision="fp16", file=PLAN, status="failed", ran="", device=L4, reason="differs")
    text = render_card(tensorrt(gates=[failed]))
    assert "**Verdict: unproven" in text and tables_of(text)["Gates"][0]["Reason"] == "differs"
    assert "## Latency\n\nNot measured.\n" in text
    assert "docker run" in text and "tritonserver:26.08-py3" in text


def test_a_text_cannot_leave_its_cell() -> None:
    reason = "first\n| line | of\n\n## another section <img src=x> [a](http://b)"
    text = render_card(make_manifest(tried=[{"precision": "fp16", "outcome": "kept", "reason": reason}]))
    assert [row["Reason"] for row in tables_of(text)["What was tried"]] == [" ".join(reason.split())]
    assert "<img" not in text and "[a](" not in text


def test_the_checkpoint_names_classes_and_nothing_of_this_machine(tmp_path: Path) -> None:
    names = ["plain", "a|b", "two\nlines", *map(str, range(97)), "one too many"]
    checkpoint = make_checkpoint(
        classes=names, model={"architecture": "resnet"}, data={"mean": colours.MEAN, "std": colours.STD}
    )
    text = render_card(tensorrt(), checkpoint)
    assert "101 classes, in the order of the scores (`labels.json`): `plain`, a&#124;b, `two lines`, `0`" in text
    assert "`96`, ..." in text and "one too many" not in text
    assert "`resnet`" in text and checkpoint.fingerprint in text and str(colours.MEAN) in text
    for name in (socket.gethostname(), str(tmp_path.parent), str(Path.home()), f"/{getpass.getuser()}/"):
        assert name not in text


def test_the_lines_for_an_own_task_run_its_graph(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    colours.write_graph(tmp_path / "model.fp32.onnx")
    monkeypatch.chdir(tmp_path)
    fields = image_export(colours.SIZE, len(colours.CLASSES)) | {"task": "tasks.py:Own"}
    document = make_manifest(
        precision="fp32", runtime="onnx", served="model.fp32.onnx", engine=None, graphs=[make_graph("fp32")], **fields
    )
    lines = [line.strip() for line in render_card(document).splitlines() if line.startswith("    ")]
    values: dict[str, Any] = {"numpy": np, "onnxruntime": onnxruntime}
    exec("\n".join(lines), values)
    assert values["outputs"][0].shape == (1, len(colours.CLASSES))
