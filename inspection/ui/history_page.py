"""The page of a line's history."""

from __future__ import annotations

from contracts import storage
from inspection.run.history import COLUMNS, ColumnName, History, HistoryRow, make_history
from inspection.ui.addresses import NotFoundError, RunKey
from inspection.ui.run_list import draw_curve
from inspection.ui.shell import document
from inspection.ui.store import Listing
from pages.markup import shorten
from pages.parts import Cell, Chip, Inline, Link, Parts, Table, Words
from pages.rendering import render
from pages.ui.history import HistoryPage

_TEXT_LENGTH = 400


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
    table = Table(
        "history",
        "Runs and decisions, the newest last",
        list(COLUMNS.values()),
        [_row(name, history, row) for row in history.rows],
        len(COLUMNS),
        data=[{"state": row.line.state} if row.line is not None else {} for row in history.rows],
    )
    page = HistoryPage(
        name, storage.display(history.line), history.head(), bool(history.problem), render(Parts([table]))
    )
    return document(f"History of {shorten(name, 200)}", render(page))


def _row(name: str, history: History, row: HistoryRow) -> list[Cell]:
    texts = {column: shorten(text, _TEXT_LENGTH) for column, text in row.texts().items()}
    cells: dict[ColumnName, Cell] = {**texts, "when": texts["when"] or "unknown"}
    if row.data_said[1:]:
        cells["data"] = (texts["data"], *(Words(text, style="small") for text in row.data_said[1:]))
    if row.line is not None:
        run = Link(texts["run"], f"/run/{RunKey(name, row.run).path}")
        is_in_use = row.run == history.production
        cells["run"] = Inline([run, Words("", "in production")]) if is_in_use else run
        cells["state"] = Chip(row.line.state)
        if (curve := draw_curve(row.line)) is not None:
            cells["result"] = Inline([texts["result"], curve])
    return list(cells.values())
