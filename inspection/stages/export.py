"""The proof of an export: what ships, how near it is to torch, how right, how fast, and which gates say so."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

from contracts.artifacts import ExportManifest, Gate, Latency, Verification
from inspection.run.headline import Verdict, find_verdict
from inspection.stages.told import Told, known
from inspection.tasks import is_share
from pages.rendering import write
from pages.stage import MAX_ROWS, First, first
from pages.stage.export import ExportSummary, Precision, SharedMetric


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
    hashes |= {"served_sha256": exported.served.sha256} if exported.served is not None else {}
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


def _summary(exported: ExportManifest, verdict: Verdict) -> ExportSummary:
    served, metric = exported.served, exported.headline.metric
    ran = {gate.name.partition(" ")[2]: gate.status for gate in exported.gates if gate.name.startswith("engine ")}
    shared = [(name, found) for name, found in _by_metric(exported).items() if len(found) > 1]
    return ExportSummary(
        precision=exported.precision,
        verdict=verdict,
        served="" if served is None else served.in_words(),
        unproven="" if served is None else ", ".join(served.unproven),
        asked_precision=exported.asked_precision,
        failed=first([(entry.precision, entry.reason) for entry in exported.tried if entry.outcome == "failed"]),
        metric=metric,
        unit="exact_percent" if is_share(exported.task, metric) else "metric_number",
        precisions=_precisions(exported),
        samples=exported.measured_samples,
        engines=first([(one, ", ".join(one.gpus), ran.get(one.target, "not run")) for one in exported.engines]),
        latency=first(exported.latency),
        shared=first([_shared(name, found) for name, found in shared]),
        left_out=first(list(exported.latency_left_out.items())),
        gates=_gates(exported.gates),
    )


def _shared(name: str, found: list[Latency]) -> SharedMetric:
    """Return a metric that stands for several measurements: of other devices, or other versions of the runner."""
    best = min(found, key=lambda entry: entry.p50_ms)
    return SharedMetric(name, len(found), best.runner, best.device)


def _precisions(exported: ExportManifest) -> First[Precision]:
    measured = exported.headline_values
    found = ["torch"] if "torch" in measured else []
    names = list(dict.fromkeys([*found, *(entry.precision for entry in exported.tried), *measured]))
    # Each looks through gates and latencies: no more are looked at than are shown.
    return First(tuple(_precision(exported, name) for name in names[:MAX_ROWS]), len(names))


def _precision(exported: ExportManifest, name: str) -> Precision:
    parity = exported.parity.get("onnx", {}).get(name)
    ran = parity if parity is not None and parity.passed is not None else None
    own = [gate.status for gate in exported.gates if gate.precision == name]
    return Precision(
        name,
        exported.headline_values.get(name),
        ran.relative_error if ran is not None else None,
        ran.min_cosine if ran is not None else None,
        ran.top1_agreement if ran is not None else None,
        _fastest(exported, name),
        (own.count("passed"), len(own)),
    )


def _fastest(exported: ExportManifest, precision: str) -> str:
    found = [entry for entry in exported.latency if entry.precision == precision]
    if not found:
        return ""
    best = min(found, key=lambda entry: entry.p50_ms / entry.batch)
    return f"{best.p50_ms:.3f} ms, batch {best.batch}, {best.runner}"


def _gates(gates: list[Gate]) -> First[Gate]:
    if len(gates) > MAX_ROWS:
        # What did not pass is what a reader looks for.
        gates = sorted(gates, key=lambda gate: gate.status == "passed")
    return first(gates)
