"""Whether a run's model is in production, on the first screen of its page."""

from __future__ import annotations

from pathlib import Path

from contracts.promotions import decide, register_model
from inspection.page import render_report
from inspection.run.find import find_place
from inspection.run.read import read_run
from tests.inspection.lines import plant

FIRST, SECOND = "20261122-070000-0001", "20261122-080000-0002"


def test_the_first_screen_says_what_is_in_production(tmp_path: Path, small_shards: str) -> None:
    runs = [plant(tmp_path / "roses", small_shards, run_id=run_id) for run_id in (FIRST, SECOND)]
    line = find_place(str(runs[0].folder)).line

    def said(number: int) -> str:
        view = read_run(find_place(str(runs[number].folder)), pictures=False)
        assert not view.production or view.production in render_report(view).partition('<section id="data"')[0]
        return view.production

    assert said(0) == "", "no registry, no word"
    for run_id, proven in ((FIRST, False), (SECOND, True)):
        register_model(line, run=run_id, export=f"{line}/export/e", proven=proven)
    assert said(0) == (
        "version 1 of the line; no model of the line is in production; to put it there: "
        f"shardline promote {runs[0].folder} --allow-unproven"
    )
    made = decide(line, by="ann", action="promoted", run=SECOND, reasons=["it is better"])
    assert said(1) == f"version 2 of the line; promoted by ann at {made.at}; in production"
    assert said(0).startswith(f"version 1 of the line; in production is run {SECOND}; to put it there: ")
    # A decision that cannot be read is missing, and the page is drawn.
    (tmp_path / "roses" / "promotions" / "1.json").write_text("{")
    view = read_run(find_place(str(runs[1].folder)), pictures=False)
    assert view.production == "" and any(each.what == "the line's registry" for each in view.missing)
