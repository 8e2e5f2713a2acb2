"""The findings of a profiling run, each with its evidence, what to do, and the gain; and what would do better."""

from __future__ import annotations

from collections.abc import Sequence

from contracts.artifacts import Finding, Recommendation
from pages.markup import Html, element, figure, join, shorten
from pages.quantities import factor, percent

# A shape and a word beside the colour.
SIGNS = {"bad": "▲ bad", "warning": "◆ warning", "note": "● note"}


def finding_list(findings: Sequence[Finding], limit: int) -> Html:
    """Return an article a finding, in their order.

    Args:
        findings: What rules found.
        limit: Characters of a message at most.
    """
    if not findings:
        return element("p", "No rule of the diagnosis fired.", class_="calm", data_absent="findings")
    return join(finding_article(position, finding, limit) for position, finding in enumerate(findings))


def finding_article(position: int, finding: Finding, limit: int) -> Html:
    """Return a finding with its sign, evidence, change and gain; `position` names its figures."""
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


def recommendation_list(wanted: Sequence[Recommendation], limit: int) -> Html:
    """Return what is set in the configuration and would be faster otherwise; nothing where there is none.

    Args:
        wanted: Settings, each with what was measured.
        limit: Characters of a name or message at most.
    """
    if not wanted:
        return Html("")
    items = [
        element(
            "li",
            element("code", shorten(each.setting, limit)),
            " ",
            figure(f"recommendations.{position}.gain", each.gain, factor),
            f" the samples/s of steps alone ({percent(each.gain - 1)} more). " if each.gain >= 1 else " ",
            element("small", shorten(each.evidence, limit)),
        )
        for position, each in enumerate(wanted)
    ]
    return join(
        [
            element("h3", "Set in the configuration, faster otherwise"),
            element("ul", *items, class_="recommendations", id="recommendations"),
        ]
    )
