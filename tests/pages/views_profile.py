"""Views of the templates of a profiling run's page: of a run on GPUs, and of one without a trace."""

from __future__ import annotations

from contracts.artifacts import ProfileChoice
from pages.findings import FindingList, RecommendationList
from pages.heat_map import Cell, HeatMap
from pages.profile.choice import choice
from pages.profile.document import ProfilePage
from pages.profile.findings import findings
from pages.profile.kernels import kernels
from pages.profile.memory import memory
from pages.profile.operators import operators
from pages.profile.overview import overview
from pages.profile.scatter import scatter
from pages.profile.subject import Subject
from pages.profile.sweep import sweep
from pages.profile.timeline import timeline
from pages.rendering import View, render
from tests.trainer.profiling.reports import cpu_report, gpu_report, gpu_summary

FULL = Subject(gpu_report(), [gpu_summary(0), gpu_summary(1)])
_CHOICE = ProfileChoice(slot_size=1, num_workers=0, reason="", measured=False)
_NOTHING = {"points": [], "loader": [], "compute": [], "memory": [], "warnings": [], "estimate": None, "hardware": {}}
EMPTY = Subject(cpu_report().model_copy(update={**_NOTHING, "choice": _CHOICE, "method": "off", "wall_s": None}), [])
_SECTIONS = (findings, choice, sweep, overview, timeline, kernels, memory, operators, scatter)

EXAMPLES: dict[type[View], tuple[View, View]] = {
    **{type(full): (full, make(EMPTY)) for make in _SECTIONS if (full := make(FULL))},
    FindingList: (FindingList(FULL.report.findings, 80, ""), FindingList((), 80, "None was found.")),
    RecommendationList: (RecommendationList(FULL.report.recommendations, 80), RecommendationList((), 80)),
    HeatMap: (
        HeatMap([0, 2], [[Cell(8, 0), Cell(8, 2, 2, FULL.report.points[0], chosen=True, own_samples_per_s=2.0)]], 3),
        HeatMap((), ()),
    ),
    ProfilePage: (
        ProfilePage("one rank", "0123", (("choice", "Choice", render(choice(FULL))),)),
        ProfilePage("", ""),
    ),
}
