"""The findings of a profiling run, each with its evidence, what to do, and the gain; and what would do better."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from contracts.artifacts import Finding, Recommendation
from pages.markup import shorten
from pages.parts import Cell, Figure, Listing, Notice, Pairs, Part, Text, Title, Words
from pages.quantities import percent

NONE_FIRED = "No rule of the diagnosis fired"
# A shape and a word beside the colour.
_SIGNS = {"bad": "▲ bad", "warning": "◆ warning", "note": "● note"}
_MOST_EVIDENCE = 12


def finding_list(findings: Sequence[Finding], limit: int, calm: str = f"{NONE_FIRED}.") -> Iterator[Part]:
    """Yield an article per finding, in their order.

    Args:
        findings: What rules found.
        limit: Characters of a message at most.
        calm: Text where there are none.
    """
    if not findings:
        yield Text(calm, "calm", data={"absent": "findings"})
    for place, finding in enumerate(findings):
        rows: list[tuple[str, Cell]] = [
            ("Evidence", tuple(shorten(line, limit) for line in finding.evidence[:_MOST_EVIDENCE]))
        ]
        rows += [("Why it matters", shorten(finding.why, limit))] if finding.why else []
        rows.append(("Change", shorten(finding.change, limit)))
        rows += [("Try it", Words(shorten(finding.command, limit), style="code"))] if finding.command else []
        why = shorten(finding.gain_from, limit)
        gain = Figure(f"findings.{place}.gain", finding.gain, "factor", "not predicted", why)
        yield Notice(
            finding.severity,
            [Words(finding.rule, style="rule"), shorten(finding.title, limit)],
            [Pairs([*rows, ("Predicted gain in samples/s", gain)])],
            _SIGNS[finding.severity],
            {"rule": finding.rule, "severity": finding.severity},
        )


def recommendation_list(wanted: Sequence[Recommendation], limit: int) -> list[Part]:
    """Return what is set in the configuration and would be faster otherwise; nothing where there is none.

    Args:
        wanted: Settings, each with what was measured.
        limit: Characters of a name or message at most.
    """
    lines: list[list[Cell]] = []
    for place, each in enumerate(wanted):
        more = f" the samples/s of steps alone ({percent(each.gain - 1)} more). " if each.gain >= 1 else " "
        gain = Figure(f"recommendations.{place}.gain", each.gain, "factor")
        evidence = Words(shorten(each.evidence, limit), style="small")
        lines.append([Words(shorten(each.setting, limit), style="code"), " ", gain, more, evidence])
    return [Title("Set in the configuration, faster otherwise"), Listing(lines, "recommendations")] if lines else []
