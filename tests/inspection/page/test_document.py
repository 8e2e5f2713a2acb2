"""The pages of a run as a whole."""

from __future__ import annotations

import pytest

from inspection.page import SECTIONS, render_body, render_report, render_stage
from inspection.run.view import RunView, StageView


def bare_view() -> RunView:
    return RunView(
        id="20260101-000000-0001", name="digits", line="file:///runs/digits", folder="file:///runs/digits/runs/1",
        place="local", state="running", seen_at=1_800_000_000.0, config={},
        stages=[StageView(name="shard", state="running"), StageView(name="profile", state="waiting")],
    )  # fmt: skip


def test_a_run_of_which_nothing_is_known_yet_has_every_section() -> None:
    page, body = render_report(bare_view()), render_body(bare_view())
    for name, _ in SECTIONS:
        assert f'data-section="{name}"' in page
        assert f'id="{name}"' in body
    assert "not yet: stage shard is running" in page


@pytest.mark.parametrize("stage", ["shard", "profile", "train", "export"])
def test_a_stage_has_a_page_without_script(stage: str) -> None:
    page = render_stage(bare_view(), stage)
    assert "<script" not in page
    assert "default-src &#x27;none&#x27;" in page
