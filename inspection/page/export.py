"""What ships, and why one may trust it: precisions tried, parity, metrics, gates, engines, latency, verifications."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from contracts.artifacts import ExportManifest, Gate, Latency, Parity
from contracts.artifacts.export import Attempt
from contracts.proof import find_unproven
from inspection.page.results import title, unit_of
from inspection.page.subject import NO_VALUE, Subject, left_out
from inspection.run.headline import find_verdict
from inspection.tasks import is_share, show_metric
from pages.markup import Html, shorten
from pages.parts import (
    Cell,
    Chip,
    Figure,
    Inline,
    Listing,
    Pairs,
    Part,
    Table,
    Text,
    Tile,
    Tiles,
    Title,
    Words,
    absent,
    section,
)
from pages.quantities import count, several

TITLE = "Export"
_ORDER = {"failed": 0, "not decidable": 1, "not run": 2, "passed": 3}


def export(subject: Subject) -> Html:
    """Return the section on the export."""
    found = subject.view.export
    if found is None:
        return section("export", TITLE, absent("export", subject.why_absent("export", "The export")))
    unproven = find_unproven(found, subject.view.verifications)
    return section("export", TITLE, *_parts(subject, found, unproven))


def _parts(subject: Subject, found: ExportManifest, unproven: Sequence[str]) -> Iterator[Part]:
    rows = subject.limits.rows
    yield _verdict(subject, found, unproven)
    yield _tiles(found)
    if found.tried:
        yield Title("What was tried")
        tried = [_tried(subject, each, each is found.tried[-1]) for each in found.tried][-rows:]
        yield Table(
            "tried", "Precisions in the order in which they were tried", ("Precision", "Outcome", "Why"), tried, 3
        )
    yield Title("Parity and metrics by precision")
    yield _parity(subject, found)
    yield _metrics(subject, found)
    yield Title("Gates")
    yield _gates(subject, found.gates, "gates", "What an export must meet, and what was found")
    yield Title("Latency")
    latency = _latency(subject, found.latency, "latency", "How long a batch takes")
    no_latency = "Not measured: export.bench was not set, or no runner was there."
    yield latency or absent("latency", no_latency)
    if found.latency_left_out:
        yield Text("Not measured, and why:", "note")
        reasons = list(found.latency_left_out.items())[:rows]
        lines: list[list[Cell]] = [
            [Words(subject.name(name), style="strong"), f": {subject.name(why)}"] for name, why in reasons
        ]
        yield Listing(lines, "latency-left-out")
    if found.engines:
        yield Title("Engines")
        yield _engines(subject, found, unproven)
    if subject.view.verifications:
        yield Title("Verified on GPUs since")
    for place, each in enumerate(subject.view.verifications[:12]):
        where, key = f"{each.target} on {subject.name(each.device)}", f"verification-{place}"
        yield _gates(subject, each.gates, key, f"Gates of {where}")
        if speeds := _latency(subject, each.latency, f"{key}-latency", f"Latency of {where}"):
            yield speeds
    if registration := subject.view.registration:
        yield Title("Production")
        known = list(registration.items())[:12]
        words = [(shorten(str(name), 60), subject.name(_in_words(value)) or NO_VALUE) for name, value in known]
        yield Pairs(words, "registration")


def _verdict(subject: Subject, found: ExportManifest, unproven: Sequence[str]) -> Text:
    engines = [name for name in unproven if name in {entry.target for entry in found.engines}]
    served = [name for name in unproven if name in found.served.lacks]
    said = [f"Serves {subject.name(found.served.in_words())}."]
    if len(engines) + len(served) < len(unproven):
        said.append(f"Nothing proves it: {subject.name('; '.join(unproven))}.")
    elif not served and not engines:
        said.append("All of it ran and passed its gates.")
    said += [f"Not shown of what is served: {', '.join(served)}."] if served else []
    verdict = find_verdict(found, subject.view.verifications)
    cells: list[Cell] = [Chip(verdict), f" {' '.join(said)}"]
    if engines:
        cells += [
            f" No GPU has run these engines yet: {', '.join(engines)}. What ran is named in the tables below. ",
            Words("shardline verify", style="code"),
            " on a GPU of each runs it.",
        ]
    return Text(cells, "reason", data={"verdict": verdict})


def _tiles(found: ExportManifest) -> Tiles:
    metric, values = found.headline.metric, found.headline_values
    unit, states = unit_of(found.task, metric), Counter(gate.status for gate in found.gates)
    torch = "not measured" if (value := values.get("torch")) is None else show_metric(found.task, metric)(value)
    others = ", ".join(f"{number} {status}" for status, number in states.items() if status != "passed")
    builders = ", ".join(sorted({shorten(entry.builder, 60) for entry in found.engines}))
    asked = f"{found.asked_precision} was asked for" if found.precision != found.asked_precision else "as asked for"
    passed = Inline([Figure("export.gates_passed", states["passed"], "count"), f" of {len(found.gates)}"])
    return Tiles(
        [
            Tile("Model", Words(found.precision, name="export.precision"), asked),
            Tile(
                title(metric),
                Figure(f"export.{metric}", values.get(found.precision), unit),
                f"torch {torch}; {count(found.measured_samples)} test samples",
            ),
            Tile("Gates passed", passed, others or "all of them"),
            Tile(
                "Engines",
                Figure("export.engines", len(found.engines), "count"),
                builders or "none: Triton builds",
            ),
        ],
        "wide",
    )


def _tried(subject: Subject, attempt: Attempt, is_last: bool) -> tuple[Cell, ...]:
    """Return what became of a precision: one that its gates refused stands out, with the reason."""
    word = "refused by its gates" if attempt.outcome == "failed" else "ships" if is_last else "kept"
    why: list[Cell] = [subject.reason(attempt.reason)] if attempt.reason else []
    if attempt.kept_fp32:
        kept = ", ".join(subject.name(name) for name in attempt.kept_fp32[:20])
        why.append(Words(f"{several(len(attempt.kept_fp32), 'node')} kept in fp32: {kept}", style="small"))
    return attempt.precision, Chip(attempt.outcome, word), tuple(why)


def _parity(subject: Subject, found: ExportManifest) -> Table:
    rows = [(ran, name, each) for ran, by_precision in found.parity.items() for name, each in by_precision.items()]
    shown = rows[: subject.limits.rows]

    def row(ran: str, name: str, parity: Parity) -> tuple[Cell, ...]:
        key, error, cosine = f"parity.{ran}.{name}", parity.relative_error, parity.min_cosine
        few = "too few answers to say" if parity.has_few_answers else ""
        return (
            f"{ran} {subject.name(name)}",
            Chip("not run" if parity.passed is None else "passed" if parity.passed else "failed"),
            Words(subject.name(parity.ran), style="small"),
            Figure(f"{key}.relative_error", error, missing=NO_VALUE, shown="" if error is None else f"{error:.1e}"),
            Figure(f"{key}.min_cosine", cosine, missing=NO_VALUE, shown="" if cosine is None else f"{cosine:.7f}"),
            Figure(f"{key}.top1", parity.top1_agreement, "exact_percent", NO_VALUE, few),
            Figure(f"{key}.samples", parity.samples or None, "count", NO_VALUE),
        )

    about = "Against torch on the same inputs: the largest difference over the range of the outputs."
    return Table(
        "parity",
        "How far exported graphs are from torch",
        (
            "Graph or engine",
            "Outcome",
            "What ran it",
            "Relative error",
            "Cosine, smallest",
            "Top-1 agreement",
            "Samples",
        ),
        [row(*each) for each in shown],
        3,
        f"{about} {left_out(len(shown), len(rows), 'rows')}",
    )


def _metrics(subject: Subject, found: ExportManifest) -> Table:
    metric, values, reference = found.headline.metric, found.headline_values, found.headline_values.get("torch")
    is_percent, unit = is_share(found.task, metric), unit_of(found.task, metric)
    scale = (100 if is_percent else 1) * (1 if found.headline.direction == "max" else -1)

    def row(name: str) -> tuple[Cell, ...]:
        # From torch; positive is worse.
        drop = None if reference is None or name == "torch" else scale * (reference - values[name])
        shown = "0" if not drop else f"{drop:+.2g}" if abs(drop) < 0.01 else f"{drop:+.2f}"
        key = f"{metric}.{subject.name(name)}"
        return (
            subject.name(name),
            Figure(key, values[name], unit),
            NO_VALUE if drop is None else Figure(f"{key}.drop", drop, missing=NO_VALUE, shown=shown),
        )

    return Table(
        "export-metrics",
        f"{title(metric)} on {count(found.measured_samples)} test samples",
        ("Precision", title(metric), f"Drop from torch{' (points)' if is_percent else ''}"),
        [row(name) for name in list(values)[: subject.limits.rows]],
    )


def _gates(subject: Subject, gates: list[Gate], id_: str, caption: str) -> Table:
    listed = sorted(gates, key=lambda gate: _ORDER[gate.status])
    shown = listed[: subject.limits.rows * 2]
    head = ("Gate", "Status", "Measured, and its limit", "What ran it, and why")
    rows = [_gate(subject, gate) for gate in shown]
    return Table(id_, caption, head, rows, 4, left_out(len(shown), len(listed), "gates"))


def _gate(subject: Subject, gate: Gate) -> tuple[Cell, ...]:
    figures = list(gate.figures.items())[:24]
    words = {name: subject.name(f"{name.replace('_', ' ')} {_figure(value)}") for name, value in figures}
    limits = {name: limit for name, limit in gate.limits.items() if limit is not None}
    found: list[Cell] = [
        Words(said, f"limit {_figure(limits[name])}") for name, said in words.items() if name in limits
    ]
    if others := [said for name, said in words.items() if name not in limits]:
        found.append(Words(", ".join(others), style="small"))
    return (
        f"{subject.name(gate.name)} {shorten(gate.precision, 20)}",
        Chip(gate.status),
        tuple(found) or NO_VALUE,
        (Words(subject.name(gate.ran), style="small"), subject.reason(gate.reason)),
    )


def _figure(value: float | int | str | bool | None) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.1e}" if value and abs(value) < 1e-3 else f"{value:.7g}"
    return NO_VALUE if value is None else f"{value:,}" if isinstance(value, int) else value


def _latency(subject: Subject, found: list[Latency], id_: str, caption: str) -> Table | None:
    def milliseconds(key: str, value: float | None) -> Figure:
        shown = "" if value is None else f"{value:,.3f}" if value < 10 else f"{value:,.1f}"
        return Figure(key, value, shown=shown)

    def row(place: int, each: Latency) -> tuple[Cell, ...]:
        key = f"{id_}.{place}"
        return (
            subject.name(each.runner),
            each.precision,
            subject.name(each.device),
            Figure(f"{key}.batch", each.batch, "count"),
            milliseconds(f"{key}.p50_ms", each.p50_ms),
            milliseconds(f"{key}.p90_ms", each.p90_ms),
            milliseconds(f"{key}.p99_ms", each.p99_ms),
            Figure(f"{key}.images_per_s", each.images_per_s, "number"),
        )

    shown = found[: subject.limits.rows]
    head = ("Runner", "Precision", "Device", "Batch", "p50 (ms)", "p90 (ms)", "p99 (ms)", "Samples/s")
    rows = [row(place, each) for place, each in enumerate(shown)]
    return Table(id_, caption, head, rows, 3, left_out(len(shown), len(found), "rows")) if rows else None


def _engines(subject: Subject, found: ExportManifest, unproven: Sequence[str]) -> Table:
    whole = bool(set(unproven) - {entry.target for entry in found.engines})
    shown = found.engines[: subject.limits.rows]
    rows: list[tuple[Cell, ...]] = [
        (
            entry.target,
            Chip("unproven" if whole or entry.target in unproven else "proven"),
            Words(subject.name(", ".join(entry.gpus)) or NO_VALUE, style="small"),
            Words(subject.name(entry.builder), style="small"),
            Figure(f"engines.{entry.target}.bytes", entry.bytes, "size"),
            f"{entry.min_batch} / {entry.opt_batch} / {entry.max_batch}",
            Figure(f"engines.{entry.target}.build_s", entry.build_s, "seconds"),
        )
        for entry in shown
    ]
    return Table(
        "engines",
        f"Engines of {found.precision}, one per compute capability",
        ("Target", "Proof", "GPUs", "Builder", "Size", "Batch min / opt / max", "Build"),
        rows,
        4,
        left_out(len(shown), len(found.engines), "engines"),
    )


def _in_words(value: object) -> str:
    return ", ".join(str(each) for each in value) if isinstance(value, list) else str(value)
