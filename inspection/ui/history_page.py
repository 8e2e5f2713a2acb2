"""The page of a line's history."""

from __future__ import annotations

from contracts import storage
from inspection.run.history import COLUMNS, History, make_history
from inspection.ui.addresses import NotFoundError, RunKey
from inspection.ui.run_list import draw_curve
from inspection.ui.shell import document
from inspection.ui.store import Listing
from pages.markup import shorten
from pages.rendering import render
from pages.ui.history import HistoryPage, HistoryRow


def find_history(name: str, listing: Listing) -> History:
    """Return the history of a line by its name in addresses.

    Raises:
        NotFoundError: There is none.
    """
    runs = [line for key, line in zip(listing.keys, listing.lines, strict=True) if key.line == name]
    if not runs:
        raise NotFoundError(f"there is no line {name} with a run")
    return make_history(runs[0].line, runs)


def history_page(name: str, history: History) -> str:
    """Return the page.

    Args:
        name: Of the line in addresses.
        history: Its history.
    """
    rows = tuple(
        HistoryRow(
            row.run,
            f"/run/{RunKey(name, row.run).path}" if row.line is not None else "",
            row.line.state if row.line is not None else "",
            row.data,
            tuple(row.data_said),
            row.line is not None and row.run == history.production,
            {str(name): text for name, text in row.texts().items()},
            draw_curve(row.line) if row.line is not None else None,
        )
        for row in history.rows
    )
    page = HistoryPage(
        name,
        storage.display(history.line),
        history.head(),
        bool(history.problem),
        {str(name): title for name, title in COLUMNS.items()},
        rows,
    )
    return document(f"History of {shorten(name, 200)}", render(page))
