"""The proof of an export: what ships, how near it is to torch, how right, how fast, and which gates say so."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence

from contracts.artifacts import ExportManifest, Latency, Verification
from inspection.run.headline import Verdict, find_verdict
from inspection.stages.told import Told, known
from inspection.tasks import show_metric
from pages.markdown import Markdown, cell, code, whole
from pages.quantities import count as show_count
from pages.quantities import size
from pages.rendering import write
from pages.stage import MAX_ROWS, Block, First, Summary, first, listed


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
    return known(numbers)


def tell(exported: ExportManifest, verifications: Sequence[Verification] = ()) -> Told:
    """Return what is said of an export: its manifest, and what was verified since."""
    verdict = find_verdict(exported, verifications)
    hashes = {"checkpoint_sha256": exported.checkpoint_sha256}
    hashes |= {f"graph_{graph.precision}_sha256": graph.sha256 for graph in exported.graphs}
    hashes |= {"served_sha256": exported.served.sha256}
    hashes |= {f"engine_{engine.target}_sha256": engine.sha256 for engine in exported.engines}
    return Told(count(exported, verdict), lambda: write(_summary(exported, verdict)), hashes)


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


def _summary(exported: ExportManifest, verdict: Verdict) -> Summary:
    served, metric, asked = exported.served, exported.headline.metric, exported.asked_precision
    said = [Markdown(f"**Export: {cell(exported.precision)}, {verdict}.**")]
    said.append(whole(f"Serves {served.in_words()}. Not shown: {', '.join(served.unproven)}."))
    refused = [(entry.precision, entry.reason) for entry in exported.tried if entry.outcome == "failed"]
    of_asked = Block(
        text=[f"{asked} was asked for and failed its gates:"], head=("precision", "why"), words=2, rows=first(refused)
    )
    measured = exported.headline_values
    torch = ["torch"] if "torch" in measured else []
    names = list(dict.fromkeys([*torch, *(entry.precision for entry in exported.tried), *measured]))
    show = show_metric(exported.task, metric)
    # Each looks through gates and latencies: no more are looked at than are shown.
    precisions = First(tuple(_precision(exported, name, show) for name in names[:MAX_ROWS]), len(names))
    samples = show_count(exported.measured_samples)
    by_precision = Block(
        "By precision",
        head=("precision", metric, "relative error", "least cosine", "top-1 agreement", "fastest p50", "gates passed"),
        rows=precisions,
        notes=[f"Metrics are of {samples} test samples; parity is that of the ONNX graph with torch."],
    )
    gates = exported.gates
    if len(gates) > MAX_ROWS:
        # What did not pass is what a reader looks for.
        gates = sorted(gates, key=lambda gate: gate.status == "passed")
    of_gates = Block(
        "Gates",
        head=("gate", "precision", "status", "what ran", "why"),
        words=5,
        rows=first([(gate.name, gate.precision, gate.status, gate.ran, gate.reason) for gate in gates]),
    )
    blocks = [Block(text=said), *([of_asked] if asked != exported.precision else []), by_precision]
    return Summary([*blocks, _engines(exported), *_latency(exported), of_gates])


def _precision(exported: ExportManifest, name: str, show: Callable[[float], str]) -> Sequence[str]:
    parity = exported.parity.get("onnx", {}).get(name)
    ran = parity if parity is not None and parity.passed is not None else None
    error, cosine, top1 = (ran.relative_error, ran.min_cosine, ran.top1_agreement) if ran is not None else (None,) * 3
    own = [gate.status for gate in exported.gates if gate.precision == name]
    value = exported.headline_values.get(name)
    return (
        name,
        show(value) if value is not None else "-",
        f"{error:.1e}" if error is not None else "-",
        f"{cosine:.6f}" if cosine is not None else "-",
        f"{top1:.2%}" if top1 is not None else "-",
        _fastest(exported, name),
        f"{own.count('passed')} of {len(own)}" if own else "-",
    )


def _fastest(exported: ExportManifest, precision: str) -> str:
    found = [entry for entry in exported.latency if entry.precision == precision]
    if not found:
        return "not measured"
    best = min(found, key=lambda entry: entry.p50_ms / entry.batch)
    return f"{best.p50_ms:.3f} ms, batch {best.batch}, {best.runner}"


def _engines(exported: ExportManifest) -> Block:
    if not exported.engines:
        return Block("Engines", ["None: Triton builds what it runs."])
    ran = {gate.name.partition(" ")[2]: gate.status for gate in exported.gates if gate.name.startswith("engine ")}
    rows = [
        (
            one.target,
            ", ".join(one.gpus),
            ran.get(one.target, "not run"),
            code(one.sha256),
            size(one.bytes),
            f"{one.build_s:.1f} s",
        )
        for one in exported.engines
    ]
    return Block("Engines", head=("target", "GPUs", "ran on it", "sha256", "size", "build"), words=4, rows=first(rows))


def _latency(exported: ExportManifest) -> list[Block]:
    rows = [
        (
            one.runner,
            one.device,
            one.precision,
            str(one.batch),
            f"{one.p50_ms:.3f}",
            f"{one.p90_ms:.3f}",
            f"{one.p99_ms:.3f}" if one.p99_ms is not None else "-",
            f"{one.images_per_s:,.1f}",
        )
        for one in exported.latency
    ]
    # Metrics that stand for several measurements: of other devices, or other versions of the runner.
    shared = [(name, found) for name, found in _by_metric(exported).items() if len(found) > 1]
    left_out = [f"{runner} was left out: {reason}" for runner, reason in exported.latency_left_out.items()]
    return [
        Block(
            "Latency",
            [] if rows else [Markdown("Not measured: `export.bench` is off, or nothing here could run it.")],
            head=("runner", "device", "precision", "batch", "p50 ms", "p90 ms", "p99 ms", "samples/s") if rows else (),
            words=3,
            rows=first(rows),
        ),
        *listed("", [_shared(name, found) for name, found in shared]),
        *listed("", left_out),
    ]


def _shared(name: str, found: list[Latency]) -> Markdown:
    best = min(found, key=lambda entry: entry.p50_ms)
    where = cell(f"{best.runner} on {best.device}")
    return Markdown(
        f"Metric {code(name)} is the fastest of {len(found):,}: {where}. The others are in the table alone."
    )
