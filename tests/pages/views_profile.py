"""Views of the templates of a profiling run's page: of a run on GPUs, and of one without a trace."""

from __future__ import annotations

from pages.heat_map import Cell, HeatMap
from pages.profile.subject import Subject
from pages.profile.timeline import Box, Drawn, RankTimeline
from pages.rendering import View
from tests.trainer.profiling.reports import gpu_report, gpu_summary

FULL = Subject(gpu_report(), [gpu_summary(0), gpu_summary(1)])
EXAMPLES: dict[type[View], tuple[View, View]] = {
    RankTimeline: (
        RankTimeline(0, (Drawn("main", 20, (Box("copy", 0, 9, "copy", "a", 20, many=True),)),), ((1, 0.5, "1 s"),)),
        RankTimeline(0, (), ()),
    ),
    HeatMap: (
        HeatMap([0, 2], [[Cell(8, 0), Cell(8, 2, 2, FULL.report.points[0], chosen=True, own_samples_per_s=2.0)]], 3),
        HeatMap((), ()),
    ),
}
