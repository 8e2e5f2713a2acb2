"""The page as a whole: one file that opens from a disk, uses no network, and stays below a size."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from contracts.artifacts import ProfileReport
from contracts.artifacts.trace import TraceSummary
from pages.document import Document, policy_of
from pages.markup import Html, shorten
from pages.profile.choice import choice
from pages.profile.findings import findings
from pages.profile.kernels import kernels
from pages.profile.memory import memory
from pages.profile.operators import operators
from pages.profile.overview import overview
from pages.profile.style import SCRIPT
from pages.profile.style import STYLE as OWN_STYLE
from pages.profile.subject import Limits, Subject
from pages.profile.sweep import sweep
from pages.profile.timeline import timeline
from pages.rendering import render
from pages.run.frame import Body, Header, Navigation
from pages.style import STYLE

MAX_PAGE_BYTES = 1_000_000
POLICY = policy_of(SCRIPT)

SECTIONS: dict[str, tuple[str, Callable[[Subject], Html]]] = {
    "findings": ("Findings", findings),
    "choice": ("Choice", choice),
    "sweep": ("Sweep", sweep),
    "overview": ("Overview", overview),
    "timeline": ("Timeline", timeline),
    "kernels": ("Kernels", kernels),
    "memory": ("Memory", memory),
    "operators": ("Operators", operators),
}


def render_page(report: ProfileReport, summaries: Sequence[TraceSummary], unread: str = "") -> str:
    """Return the page of a profiling run.

    Args:
        report: What was measured and chosen.
        summaries: What the traces say, a summary per rank; none where no trace was recorded.
        unread: Why those that were recorded cannot be read.

    Returns:
        HTML, less than MAX_PAGE_BYTES in UTF-8. Of large inputs parts are left out, which the page says.
    """
    limits = Limits()
    while True:
        page = _render(Subject(report, summaries, limits, unread))
        if len(page.encode()) < MAX_PAGE_BYTES or limits == limits.halved():
            return page
        limits = limits.halved()


def _render(subject: Subject) -> str:
    report = subject.report
    where = [f"{name}: {shorten(value, 120)}" for name, value in sorted(report.hardware.items())]
    machine = [f"{report.ranks} {'rank' if report.ranks == 1 else 'ranks'}", *where, f"torch {report.torch_version}"]
    navigation = Navigation(tuple((name, title) for name, (title, _) in SECTIONS.items()))
    body = Body(
        render(Header("Profiling run", tuple(machine))),
        tuple(make(subject) for _, make in SECTIONS.values()),
        f"Report {report.fingerprint}. Fractions are of the time of a step unless another whole is named. A value that "
        "could not be measured reads “not measured”, never 0.",
        "findings",
        render(navigation),
    )
    return render(
        Document(
            "Profiling run",
            render(body),
            policy=POLICY,
            style=Html(STYLE + OWN_STYLE),
            script=Html(SCRIPT),
        )
    )
