"""Views of a run's page, with all that they can show and with nothing."""

from __future__ import annotations

from pages.rendering import View
from pages.run.absent import AbsentSection
from pages.run.missing import MissingSection

EXAMPLES: dict[type[View], tuple[View, View]] = {
    AbsentSection: (AbsentSection("missing", "Completeness", "all was read", calm=True), AbsentSection("", "", "")),
    MissingSection: (MissingSection("Completeness", (("shards", "gone"),), "2 more"), MissingSection("", ())),
}
