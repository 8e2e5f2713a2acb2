from __future__ import annotations

import getpass
import math
import re
import shutil
import socket
import sys
from html import unescape
from pathlib import Path
from typing import Any

import pytest

from contracts import storage
from contracts.artifacts import CheckpointManifest, ExportManifest
from contracts.artifacts.export import two_figures
from contracts.serving import LOADED_BY
from tests.trainer.export.handover import ORT, RTX, TENSORRT, make_export
from trainer.export import inputs
from trainer.export.bundle.card import render_card
from trainer.export.inputs import hash_code

Row = dict[str, str]


@pytest.fixture
def document(exported: Any, tmp_path: Path) -> ExportManifest:
    return make_export(tmp_path / "export", exported)


def tables_of(text: str) -> dict[str, list[Row]]:
    """Return the rows of the last table of each section, by column."""
    tables: dict[str, list[Row]] = {}
    for section in re.split(r"^## ", text, flags=re.MULTILINE)[1:]:
        title, _, body = section.partition("\n")
        for block in body.split("\n\n"):
            lines = [line for line in block.splitlines() if line.startswith("|")]
            stripped = [[unescape(cell.strip()) for cell in line.split("|")[1:-1]] for line in lines]
            if stripped:
                header, _, *rows = stripped
                assert all(len(row) == len(header) for row in rows), block
                tables[title] = [dict(zip(header, row, strict=True)) for row in rows]
    return tables


def number(cell: str) -> float | None:
    return None if cell == "-" else float(cell)


def test_figures_are_the_manifest_s(document: ExportManifest) -> None:
    tables = tables_of(render_card(document))
    found = {(row["What"], row["Which"]): row for row in tables["Parity with torch"]}
    expected = {(kind, name): parity for kind, by in document.parity.items() for name, parity in by.items()}
    assert set(found) == set(expected)
    for key, parity in expected.items():
        row = found[key]
        assert number(row["Samples"]) == parity.samples
        assert number(row["Relative error"]) == pytest.approx(parity.relative_error)
        assert number(row["Smallest cosine"]) == pytest.approx(parity.min_cosine, abs=1e-6)
        assert number(row["Top-1 agreement"]) == parity.top1_agreement
        assert number(row["Classes in torch's answers"]) == parity.reference_classes
        assert row["What ran"] == parity.ran
        assert row["Result"] == {None: "not run", True: "passed", False: "failed"}[parity.passed]

    rows = {row["Model"]: row for row in tables["Metrics"]}
    assert set(rows) == set(document.metrics)
    for name, values in document.metrics.items():
        assert {metric: number(rows[name][metric]) for metric in values} == pytest.approx(values, rel=1e-5)

    columns = {
        "Batch": "batch",
        "p50 ms": "p50_ms",
        "p90 ms": "p90_ms",
        "p99 ms": "p99_ms",
        "Samples/s": "images_per_s",
        "Repeats": "repeats",
    }
    for row, (small, best) in zip(tables["Speed"], two_figures(document.latency), strict=True):
        found = [number(row[name]) for name in ("Batch", "p50 ms", "Best batch", "Samples/s")]
        assert found == [small.batch, small.p50_ms, best.batch, best.images_per_s]
    assert len(tables["Latency"]) == len(document.latency)
    for row, latency in zip(tables["Latency"], document.latency, strict=True):
        assert {name: number(row[name]) for name in columns} == {
            name: getattr(latency, field) for name, field in columns.items()
        }
        assert (row["Runner"], row["Precision"], row["Device"]) == (latency.runner, latency.precision, latency.device)


def test_gates_and_attempts_are_the_manifest_s(document: ExportManifest) -> None:
    tables = tables_of(render_card(document))
    passed, not_run = tables["Gates"]
    assert passed["Figures"] == "relative_error 0.0003125, samples 24, refuses max_batch + 1 yes, worst -"
    assert passed["Limits"] == "relative_error 0.005"
    assert (passed["Precision"], passed["Gate"], passed["Result"]) == ("fp16", "parity", "passed")
    assert (not_run["Result"], not_run["What ran"]) == ("not run", "not run: no GPU")
    assert not_run["Reason"] == document.gates[1].reason
    failed, kept = tables["What was tried"]
    assert (failed["Precision"], failed["Outcome"], failed["Reason"]) == ("int8", "failed", document.tried[0].reason)
    assert (kept["Precision"], kept["Outcome"], kept["Kept in fp32"]) == ("fp16", "kept", "encoder.norm")
    assert "Asked for: int8. Ships: fp16." in render_card(document)


def test_lineage_is_the_manifest_s(document: ExportManifest) -> None:
    text = render_card(document)
    for entry in (*document.graphs, *document.engines):
        assert re.search(rf"`{re.escape(entry.name)}` .*\b{entry.bytes}\b.*{entry.sha256}", text)
    for value in (
        document.checkpoint_sha256,
        document.shards_fingerprint,
        document.fingerprint,
        *document.made_from.values(),
        *document.made_with.values(),
    ):
        assert f"`{value}`" in text


def test_what_is_no_number_reads_so(document: ExportManifest) -> None:
    figures = {"largest_value": "infinite", "relative_error": sys.float_info.max, "worst": "node_conv", "top": 65504.0}
    gate = document.gates[0].model_copy(update={"figures": figures})
    parity = {"onnx": {"fp16": document.parity["onnx"]["fp16"].model_copy(update={"relative_error": math.nan})}}
    tables = tables_of(render_card(document.model_copy(update={"gates": [gate], "parity": parity})))
    expected = "largest_value not finite, relative_error not finite, worst node_conv, top 65504"
    assert tables["Gates"][0]["Figures"] == expected
    assert tables["Parity with torch"][0]["Relative error"] == "not finite"


def test_it_says_what_did_not_run(document: ExportManifest) -> None:
    text = render_card(document)
    assert "**Verdict: unproven.**" in text
    assert "Not measured:\n\n- engine sm89: not run: no GPU\n" in text
    assert f"- Not shown, not run: fp16 engine sm89. {document.gates[1].reason}\n" in text
    assert "Not shown, passed" not in text
    assert "**Verdict: proven.**" in render_card(document.model_copy(update={"verdict": "proven"}))


@pytest.mark.parametrize("builder", [RTX, TENSORRT, ORT, "tensorrt 11.4.0.20"])
def test_it_says_what_is_served_and_what_ran(exported: Any, tmp_path: Path, builder: str) -> None:
    document = make_export(tmp_path / "export", exported, builder=builder)
    text = render_card(document)
    served = document.served
    assert served is not None
    introduction = text.partition("\n## ")[0]
    (line, *rest) = [line for line in introduction.splitlines() if line.startswith("| ")][2:]
    cells = (
        f"served: `{served.model}`",
        LOADED_BY[served.runtime],
        served.sha256,
        served.ran,
        ", ".join(served.unproven),
    )
    assert line == f"| {' | '.join(cells)} |"
    # Of RTX the engines are beside it; a plan is what is served.
    assert [document.engines[0].sha256 in line for line in rest] == ([True] if builder == RTX else [])
    assert ("no known Triton loads this" in text) == ("11.4" in builder)
    outside = document.model_copy(
        update={"engines": [entry.model_copy(update={"target": "sm80"}) for entry in document.engines]}
    )
    assert ("outside NVIDIA's published matrix" in render_card(outside)) == (builder == RTX)


def test_latency_that_was_not_measured_is_none(document: ExportManifest) -> None:
    text = render_card(document.model_copy(update={"latency": []}))
    assert "Not measured." in text
    assert "Latency" not in tables_of(text)
    assert " ms" not in text


def test_the_checkpoint_names_classes_and_network(document: ExportManifest, line: Any) -> None:
    checkpoint = CheckpointManifest.load(storage.normalise(line.folder / "train"))
    names = ["plain", "a|b", "two\nlines", *map(str, range(97)), "one too many"]
    text = render_card(document, checkpoint.model_copy(update={"classes": names}))
    assert "`plain`, a&#124;b, `two lines`, `0`" in text
    assert "`96` and 1 more (`labels.json`)" in text
    assert "101 classes, in the order of the scores" in text
    assert "| Network | `resnet` |" in text
    assert f"`{checkpoint.fingerprint}`" in text
    assert str(checkpoint.data["mean"]) in text


def test_nothing_of_this_machine_is_in_it(document: ExportManifest, line: Any, tmp_path: Path) -> None:
    text = render_card(document, CheckpointManifest.load(storage.normalise(line.folder / "train")))
    for name in (socket.gethostname(), str(tmp_path), str(Path.home()), f"/{getpass.getuser()}/"):
        assert name not in text


def test_a_text_cannot_leave_its_cell(document: ExportManifest) -> None:
    reason = "first\n| line | of\n\n## another section <img src=x> [a](http://b)"
    tried = [document.tried[0].model_copy(update={"reason": reason}), document.tried[1]]
    text = render_card(document.model_copy(update={"tried": tried}))
    tables = tables_of(text)
    assert tables["What was tried"][0]["Reason"] == "first | line | of ## another section <img src=x> [a](http://b)"
    assert "<img" not in text and "[a](" not in text
    assert len(tables["What was tried"]) == 2


def test_the_hash_of_the_code_is_that_of_its_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = hash_code()
    assert re.fullmatch("[0-9a-f]{64}", before)
    root = Path(inputs.__file__).parents[2]
    for package in ("contracts", "records", "trainer"):
        shutil.copytree(root / package, tmp_path / package, ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.setattr(inputs, "__file__", str(tmp_path / "trainer/export/inputs.py"))
    assert hash_code() == before  # the place does not count
    (tmp_path / "records/index.py").write_bytes((tmp_path / "records/index.py").read_bytes() + b"#")
    assert hash_code() != before
