"""How a run's record is shown: one table on the terminal, and report.md."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TextIO

import yaml

from contracts import storage
from contracts.artifacts import Finding, ProfilePoint, RunRecord
from contracts.artifacts.export import PARITY
from contracts.yaml_text import Dumper
from inspection.profile import describe_finding, describe_rate
from inspection.run.door import as_object
from inspection.run.headline import metric_title, task_of
from inspection.run.summary import find_record_headline
from inspection.tasks import show_metric

# Paths and parity lines fit; a table of a file or a pipe has no width of its own.
_PLAIN_WIDTH = 150


@dataclass(frozen=True)
class Row:
    """One line of the table."""

    name: str
    seconds: float | None
    text: str


def stage_rows(record: RunRecord) -> list[Row]:
    """Return a row for each stage: how long it took and what it made."""
    return [
        Row(stage.name, stage.wall_s if stage.state != "not started" else None, stage.made or stage.state)
        for stage in record.stages
    ]


def time_rows(record: RunRecord) -> list[Row]:
    """Return the whole time, and the parts of it that are nobody's work."""
    return [
        Row("whole run", record.wall_s, record.state),
        Row("process starts", record.process_start_s, "starts and imports, within the stages"),
    ]


def result_rows(record: RunRecord) -> list[Row]:
    """Return what came out, as far as the run got."""
    results = record.results
    rows = [
        Row("not read", None, f"what stage {stage} made: {why}") for stage, why in results.get("unread", {}).items()
    ]
    rows += [Row("warning", None, f"data: {text}") for text in results.get("data", {}).get("warnings", [])]
    rows += [Row("warning", None, f"training: {text}") for text in results.get("warnings", [])]
    rows += [
        Row(figure.title.lower(), None, figure.text + (f" ({figure.note})" if figure.note else ""))
        for figure in find_record_headline(record).figures
        if figure.text and figure.name not in ("state", "duration")
    ]
    if batch := results.get("batch"):
        rows.append(Row("global batch", None, describe_batch(batch)))
        rows.append(Row("num_workers", None, str(batch["num_workers"])))
    rows += profile_rows(results.get("profile", {}))
    exported = as_object(results.get("export"))
    if "runtime" in exported:
        served = exported["served"]
        size = f"{served['bytes'] / 1e6:.2f} MB"
        rows.append(Row("serves", None, f"{served['name']} ({size}, runtime {exported['runtime']})"))
    for latency in exported.get("latency", []):
        rows.append(Row("latency", None, f"batch {latency['batch']}: {latency['median_ms']:.3f} ms ({latency['ran']})"))
    if register := as_object(results.get("register")):
        rows.append(Row("production", None, describe_decision(register)))
    if gates := results.get("gates"):
        rows.append(Row("gates", None, describe_gates(gates)))
    if values := results.get("exported_values"):
        metric = str(results.get("exported_metric", "accuracy"))
        show = show_metric(task_of(record), metric)
        shown = ", ".join(f"{precision} {show(value)}" for precision, value in values.items())
        samples = results["exported_test_samples"]
        rows.append(Row(f"exported {metric_title(metric)}", None, f"{shown} ({samples} test samples)"))
    return rows


def profile_rows(profile: dict[str, Any]) -> list[Row]:
    """Return how fast the choice was when it was measured, and what is slow."""
    if not profile:
        return []
    rows = [Row("profiled", None, describe_rate(ProfilePoint.model_validate(profile["measured"])))]
    found = [Finding.model_validate(entry) for entry in profile["findings"]]
    return rows + [Row(f"finding {finding.rule}", None, describe_finding(finding)) for finding in found]


def describe_decision(register: Mapping[str, Any]) -> str:
    """Say on one line whether the export went into production, and why, from `results.register`."""
    verdict, reason = str(register.get("verdict", "")), str(register.get("reason", "")).split("\n")[0]
    resource = f" ({register['resourceName']})" if "resourceName" in register else ""
    return f"{'in production' if verdict == 'production' else verdict}: {reason}{resource}"


def describe_gates(gates: list[dict[str, Any]]) -> str:
    """Say how many gates passed, name the others, and give the error of what ships."""
    passed = sum(gate["status"] == "passed" for gate in gates)
    others = [f"{gate['precision']} {gate['name']} {gate['status']}" for gate in gates if gate["status"] != "passed"]
    errors = [
        f"{gate['precision']} relative error {gate['figures']['relative_error']:.1e} on {gate['device'] or 'the CPU'}"
        for gate in gates
        if gate["name"] == PARITY and "relative_error" in gate["figures"]
    ]
    return "; ".join([f"{passed} of {len(gates)} passed", *errors[-1:], *others])


def describe_batch(batch: dict[str, Any]) -> str:
    """Say how the global batch is cut."""
    total, slot, slots, ranks = (batch[key] for key in ("global_batch_size", "slot_size", "slots_per_rank", "ranks"))
    sign = "=" if slot * slots * ranks == total else "in at most"
    return f"{total} {sign} slot size {slot} x {slots} per rank x {ranks} ranks"


def print_table(record: RunRecord, stream: TextIO) -> None:
    """Print the one table of a run."""
    from rich.box import ROUNDED
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(title=f"run {record.id}: {record.state}", title_justify="left", box=ROUNDED)
    table.add_column("what", no_wrap=True)
    table.add_column("wall s", justify="right", no_wrap=True)
    table.add_column("result", overflow="fold")
    groups = [stage_rows(record), result_rows(record), time_rows(record)]
    for rows in filter(None, groups):
        for row in rows:
            # Text, not markup: a path may hold brackets.
            table.add_row(row.name, "" if row.seconds is None else f"{row.seconds:.1f}", Text(row.text))
        table.add_section()
    Console(file=stream, width=None if stream.isatty() else _PLAIN_WIDTH).print(table)


def to_markdown(record: RunRecord) -> str:
    """Return report.md: the same facts, and the configuration they belong to."""
    lines = [f"# Run {record.id}: {record.state}", "", f"Started {record.started_at} (UTC)."]
    if record.error:
        lines += ["", "```", record.error, "```"]
    lines += ["", "## Stages", "", "| stage | state | seconds | made | folder |", "|---|---|---:|---|---|"]
    for stage in record.stages:
        folder = f"`{storage.display(stage.uri)}`" if stage.uri else ""
        lines.append(f"| {stage.name} | {stage.state} | {stage.wall_s:.1f} | {_cell(stage.made)} | {_cell(folder)} |")
    if results := result_rows(record):
        lines += ["", "## Results", "", "| what | value |", "|---|---|"]
        lines += [f"| {_cell(row.name)} | {_cell(row.text)} |" for row in results]
    lines += ["", "## Time", "", "| what | seconds | |", "|---|---:|---|"]
    lines += [
        f"| {row.name} | {row.seconds:.1f} | {_cell(row.text)} |"
        for row in time_rows(record)
        if row.seconds is not None
    ]
    configuration = yaml.dump(record.config, Dumper=Dumper, sort_keys=False).rstrip()
    lines += ["", "## Configuration", "", "```yaml", configuration, "```", ""]
    return "\n".join(lines)


def _cell(text: str) -> str:
    """Keep text within its cell of a Markdown table."""
    return " ".join(text.split()).replace("|", "\\|")
