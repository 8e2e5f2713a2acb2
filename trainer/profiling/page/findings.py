"""What is slow: the findings of the diagnosis, worst first, each with its evidence, what to do, and the gain."""

from __future__ import annotations

from contracts.artifacts import Finding
from pages.markup import Html, element, figure, join, section, shorten
from pages.quantities import factor, percent
from trainer.profiling.page.subject import Subject

# A shape and a word beside the colour.
SIGNS = {"bad": "▲ bad", "warning": "◆ warning", "note": "● note"}
MOST_FINDINGS = 30


def findings(subject: Subject) -> Html:
    """Return the findings, or that there are none."""
    found = subject.report.findings
    parts = [_finding(subject, number, each) for number, each in enumerate(found[:MOST_FINDINGS])]
    if not found:
        parts = [element("p", _why_none(subject), class_="calm", data_absent="findings")]
    if len(found) > MOST_FINDINGS:
        parts.append(element("p", f"{len(found) - MOST_FINDINGS} more in the report.", class_="note"))
    return section("findings", "Findings", *parts, _recommendations(subject))


def _why_none(subject: Subject) -> str:
    if subject.summaries:
        return "No rule of the diagnosis fired on the chosen configuration."
    return "No rule of the diagnosis fired. No trace was recorded: rules that need one had nothing to look at."


def _finding(subject: Subject, position: int, finding: Finding) -> Html:
    limit = subject.limits.reason
    evidence = element("ul", *(element("li", shorten(line, limit)) for line in finding.evidence[:12]))
    gain = figure(
        f"findings.{position}.gain", finding.gain, factor, "not predicted", note=shorten(finding.gain_from, limit)
    )
    return element(
        "article",
        element(
            "h3",
            element("span", SIGNS[finding.severity], class_=f"sign {finding.severity}"),
            element("span", finding.rule, class_="rule"),
            shorten(finding.title, limit),
        ),
        element(
            "dl",
            element("dt", "Evidence"),
            element("dd", evidence),
            element("dt", "Change"),
            element("dd", shorten(finding.change, limit), class_="change"),
            element("dt", "Predicted gain in samples/s"),
            element("dd", gain),
        ),
        class_=f"finding {finding.severity}",
        data_rule=finding.rule,
        data_severity=finding.severity,
    )


def _recommendations(subject: Subject) -> Html:
    wanted = subject.report.recommendations
    if not wanted:
        return Html("")
    items = [
        element(
            "li",
            element("code", shorten(each.setting, subject.limits.name)),
            " ",
            figure(f"recommendations.{position}.gain", each.gain, factor),
            f" the samples/s of steps alone ({percent(each.gain - 1)} more). " if each.gain >= 1 else " ",
            element("small", shorten(each.evidence, subject.limits.reason)),
        )
        for position, each in enumerate(wanted[:MOST_FINDINGS])
    ]
    return join(
        [
            element("h3", "Set in the configuration, faster otherwise"),
            element("ul", *items, class_="recommendations", id="recommendations"),
        ]
    )
