"""The proof of an export: what ships, how near it is to torch, how right, how fast, and which gates say so."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence

from contracts.artifacts import ExportManifest, Gate, Latency, Parity, Verification
from inspection.run.headline import Verdict, find_verdict
from inspection.stages.markdown import MAX_ROWS, cell, code, first, section, table
from inspection.stages.told import Told, finite
from inspection.tasks import show_metric
from pages.quantities import size

_NONE = "-"


def count(exported: ExportManifest, verdict: Verdict) -> dict[str, float]:
    """Return the metrics of an export.

    Args:
        exported: Its manifest.
        verdict: Whether it is proven, by the newest verification.
    """
    numbers: dict[str, float | None] = {
        **{f"export_{name}_{exported.headline.metric}": value for name, value in exported.headline_values.items()},
        "export_test_samples": exported.measured_samples,
        "export_gates": len(exported.gates),
        "export_gates_passed": sum(gate.status == "passed" for gate in exported.gates),
        "export_gates_failed": sum(gate.status == "failed" for gate in exported.gates),
        "export_proven": int(verdict == "proven"),
        "export_engines": len(exported.engines),
        "export_engine_bytes": sum(engine.bytes for engine in exported.engines),
        "export_precisions_tried": len(exported.tried),
    }
    values = exported.headline_values
    if (shipped := values.get(exported.precision)) is not None and "torch" in values:
        numbers[f"export_{exported.headline.metric}_change"] = shipped - values["torch"]
    for precision, parity in exported.parity.get("onnx", {}).items():
        if parity.relative_error is not None:
            numbers[f"export_{precision}_relative_error"] = parity.relative_error
    for name, found in _by_metric(exported).items():
        numbers[name] = min(entry.p50_ms for entry in found)
    return finite(numbers)


def tell(exported: ExportManifest, verifications: Sequence[Verification] = ()) -> Told:
    """Return what is said of an export: its manifest, and what was verified since."""
    verdict = find_verdict(exported, verifications)
    hashes = {"checkpoint_sha256": exported.checkpoint_sha256}
    hashes |= {f"graph_{graph.precision}_sha256": graph.sha256 for graph in exported.graphs}
    hashes |= {"served_sha256": exported.served.sha256} if exported.served is not None else {}
    hashes |= {f"engine_{engine.target}_sha256": engine.sha256 for engine in exported.engines}
    return Told(count(exported, verdict), lambda: _lines(exported, verdict), hashes)


def _lines(exported: ExportManifest, verdict: Verdict) -> list[str]:
    return [
        *_verdict(exported, verdict),
        *section("By precision", list(_precisions(exported))),
        *section("Engines", list(_engines(exported))),
        *section("Latency", list(_latency(exported))),
        *section("Gates", list(_gates(exported.gates))),
    ]


def _by_metric(exported: ExportManifest) -> dict[str, list[Latency]]:
    """Return the latencies by the name of their metric: devices and versions of a runner share one."""
    found: dict[str, list[Latency]] = {}
    for entry in exported.latency:
        if math.isfinite(entry.p50_ms):
            name = f"export_{entry.precision}_{_runner(entry)}_batch{entry.batch}_p50_ms"
            found.setdefault(name, []).append(entry)
    return found


def _runner(entry: Latency) -> str:
    """Return what ran it as a part of a name: its words up to the version, which would make a name no other run has."""
    words = re.split(r"\s\d", entry.runner.lower())[0]
    return "_".join(re.findall("[a-z0-9]+", words))[:40] or "unnamed"


def _verdict(exported: ExportManifest, verdict: Verdict) -> Iterator[str]:
    yield f"**Export: {cell(exported.precision)}, {verdict}.**"
    if exported.served is not None:
        yield f"Serves {cell(exported.served.in_words())}. Not shown: {cell(', '.join(exported.served.unproven))}."
    if exported.precision != exported.asked_precision:
        yield ""
        yield f"{cell(exported.asked_precision)} was asked for and failed its gates:"
        yield ""
        shown, note = first([entry for entry in exported.tried if entry.outcome == "failed"])
        yield from table(["precision", "why"], ((cell(e.precision), cell(e.reason)) for e in shown), words=2)
        yield from note


def _precisions(exported: ExportManifest) -> Iterator[str]:
    shown, note = first(_tried(exported))
    show = show_metric(exported.task, exported.headline.metric)
    rows = []
    for precision in shown:
        parity = exported.parity.get("onnx", {}).get(precision)
        value = exported.headline_values.get(precision)
        rows.append(
            (
                cell(precision),
                _NONE if value is None else show(value),
                *_figures(parity),
                _fastest(exported, precision),
                _count(exported.gates, precision),
            )
        )
    metric = cell(exported.headline.metric)
    head = ["precision", metric, "relative error", "least cosine", "top-1 agreement", "fastest p50", "gates passed"]
    yield from table(head, rows)
    yield from note
    yield ""
    yield f"Metrics are of {exported.measured_samples:,} test samples; parity is that of the ONNX graph with torch."


def _tried(exported: ExportManifest) -> list[str]:
    measured = exported.headline_values
    found = ["torch"] if "torch" in measured else []
    return list(dict.fromkeys([*found, *(e.precision for e in exported.tried), *measured]))


def _figures(parity: Parity | None) -> tuple[str, str, str]:
    if parity is None or parity.passed is None:
        return _NONE, _NONE, _NONE
    return (
        _NONE if parity.relative_error is None else f"{parity.relative_error:.1e}",
        _NONE if parity.min_cosine is None else f"{parity.min_cosine:.6f}",
        _NONE if parity.top1_agreement is None else f"{parity.top1_agreement:.2%}",
    )


def _fastest(exported: ExportManifest, precision: str) -> str:
    found = [entry for entry in exported.latency if entry.precision == precision]
    if not found:
        return "not measured"
    best = min(found, key=lambda entry: entry.p50_ms / entry.batch)
    return cell(f"{best.p50_ms:.3f} ms, batch {best.batch}, {best.runner}")


def _count(gates: list[Gate], precision: str) -> str:
    own = [gate for gate in gates if gate.precision == precision]
    return f"{sum(gate.status == 'passed' for gate in own)} of {len(own)}" if own else _NONE


def _engines(exported: ExportManifest) -> Iterator[str]:
    if not exported.engines:
        yield "None: Triton builds what it runs."
        return
    shown, note = first(exported.engines)
    ran = {gate.name.partition(" ")[2]: gate for gate in exported.gates if gate.name.startswith("engine ")}
    rows = (
        (
            cell(engine.target),
            cell(", ".join(engine.gpus)),
            cell(ran[engine.target].status if engine.target in ran else "not run"),
            code(engine.sha256),
            size(engine.bytes),
            f"{engine.build_s:.1f} s",
        )
        for engine in shown
    )
    yield from table(["target", "GPUs", "ran on it", "sha256", "size", "build"], rows, words=4)
    yield from note


def _latency(exported: ExportManifest) -> Iterator[str]:
    if exported.latency:
        shown, note = first(exported.latency)
        rows = (
            (
                cell(entry.runner),
                cell(entry.device),
                cell(entry.precision),
                str(entry.batch),
                f"{entry.p50_ms:.3f}",
                f"{entry.p90_ms:.3f}",
                "-" if entry.p99_ms is None else f"{entry.p99_ms:.3f}",
                f"{entry.images_per_s:,.1f}",
            )
            for entry in shown
        )
        head = ["runner", "device", "precision", "batch", "p50 ms", "p90 ms", "p99 ms", "samples/s"]
        yield from table(head, rows, words=3)
        yield from note
        yield from _shared_metrics(exported)
    else:
        yield "Not measured: `export.bench` is off, or nothing here could run it."
    without, note = first(list(exported.latency_left_out.items()))
    for runner, reason in without:
        yield ""
        yield f"{cell(runner)} was left out: {cell(reason)}"
    yield from note


def _shared_metrics(exported: ExportManifest) -> Iterator[str]:
    """Say which metrics stand for several measurements: of other devices, or other versions of the runner."""
    shared, note = first([(name, found) for name, found in _by_metric(exported).items() if len(found) > 1])
    for name, found in shared:
        best = min(found, key=lambda entry: entry.p50_ms)
        yield ""
        yield (
            f"Metric {code(name)} is the fastest of {len(found):,}: {cell(best.runner)} on {cell(best.device)}. The "
            "others are in the table alone."
        )
    yield from note


def _gates(gates: list[Gate]) -> Iterator[str]:
    if len(gates) > MAX_ROWS:
        # What did not pass is what a reader looks for.
        gates = sorted(gates, key=lambda gate: gate.status == "passed")
    shown, note = first(gates)
    rows = ((cell(g.name), cell(g.precision), cell(g.status), cell(g.ran), cell(g.reason)) for g in shown)
    yield from table(["gate", "precision", "status", "what ran", "why"], rows, words=5)
    yield from note
