"""The page as a whole: one file that opens from a disk, uses no network, and stays below a size."""

from __future__ import annotations

from collections.abc import Sequence

from contracts.artifacts import ProfileReport
from contracts.artifacts.trace import TraceSummary
from pages.document import Document, policy_of
from pages.markup import Html, element, join, shorten
from pages.profile.choice import choice
from pages.profile.findings import findings
from pages.profile.kernels import kernels
from pages.profile.memory import memory
from pages.profile.operators import operators
from pages.profile.overview import overview
from pages.profile.style import SCRIPT
from pages.profile.style import STYLE as OWN_STYLE
from pages.profile.subject import Limits, Subject
from pages.profile.sweep_map import sweep_map
from pages.profile.timeline import timeline
from pages.rendering import render
from pages.style import STYLE

MAX_PAGE_BYTES = 1_000_000

PARTS = (
    ("findings", "Findings"),
    ("choice", "Choice"),
    ("sweep", "Sweep"),
    ("overview", "Overview"),
    ("timeline", "Timeline"),
    ("kernels", "Kernels"),
    ("memory", "Memory"),
    ("operators", "Operators"),
)


def render_page(report: ProfileReport, summaries: Sequence[TraceSummary]) -> str:
    """Return the page of a profiling run.

    Args:
        report: What was measured and chosen.
        summaries: What the traces say, a summary a rank; none where no trace was recorded.

    Returns:
        HTML, less than MAX_PAGE_BYTES in UTF-8. Of large inputs parts are left out, which the page says.
    """
    limits = Limits()
    while True:
        page = _render(Subject(report, summaries, limits))
        if len(page.encode()) < MAX_PAGE_BYTES or limits == limits.halved():
            return page
        limits = limits.halved()


def _render(subject: Subject) -> str:
    report = subject.report
    where = [f"{name}: {shorten(value, 120)}" for name, value in sorted(report.hardware.items())]
    machine = [f"{report.ranks} {'rank' if report.ranks == 1 else 'ranks'}", *where, f"torch {report.torch_version}"]
    body = [
        element("a", "Skip to the findings", href="#findings", class_="skip"),
        element(
            "header",
            element("h1", "Profiling run"),
            element("p", " · ".join(machine), class_="machine", data_text="machine"),
        ),
        element(
            "nav",
            element("ul", *(element("li", element("a", title, href=f"#{name}")) for name, title in PARTS)),
            aria_label="Parts of this page",
        ),
        element(
            "main",
            findings(subject),
            choice(subject),
            sweep_map(subject),
            overview(subject),
            timeline(subject),
            kernels(subject),
            memory(subject),
            operators(subject),
        ),
        element(
            "footer",
            f"Report {report.fingerprint}. Fractions are of the time of a step unless another whole is named. A value "
            "that could not be measured reads “not measured”, never 0.",
        ),
    ]
    return render(
        Document(
            "Profiling run",
            join(body),
            policy=policy_of(SCRIPT),
            style=Html(STYLE + OWN_STYLE),
            script=Html(SCRIPT),
        )
    )
