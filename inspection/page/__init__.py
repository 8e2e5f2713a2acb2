"""The page of a run and of each stage: RunView in, self-contained HTML out, a module a section.

Nothing here reads a file: inspection/run has read all that is shown. Every string of a run is text, never markup.
"""

from __future__ import annotations

from inspection.page.document import MAX_REPORT_BYTES, MAX_STAGE_BYTES, SECTIONS, render_report, render_stage

__all__ = ["MAX_REPORT_BYTES", "MAX_STAGE_BYTES", "SECTIONS", "render_report", "render_stage"]
