"""The pages of a run, as HTML."""

from __future__ import annotations

from inspection.run.view import RunView


def render_report(view: RunView) -> str:
    """Return the page of a run."""
    raise NotImplementedError(f"there is no page of run {view.id} yet")


def render_stage(view: RunView, stage: str) -> str:
    """Return the page of one stage."""
    raise NotImplementedError(f"there is no page of stage {stage} of run {view.id} yet")
