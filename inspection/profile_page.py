"""The page of a profiling run, rendered from the report and the summaries of its traces: stages write JSON only.

Pages are never read back: whoever shows one renders it, so that a report of any release is shown as this release does.
"""

from __future__ import annotations

import sys

from contracts import storage
from contracts.artifacts import ProfileReport, RunRecord
from contracts.artifacts.profile import PAGE_NAME
from contracts.artifacts.trace import SUMMARY_NAME, TraceSummary, summaries_type
from inspection.run.door import HARM, Door, first_line, parse_json
from pages.document import plain_page
from pages.markup import shorten
from pages.profile import render_page

# Of the summaries of all ranks at most; one has some 300 kB.
_MOST_BYTES = 32 << 20
_MOST_SAID = 300


def make_profile_page(report: ProfileReport, uri: str) -> str:
    """Return the page of a profiling run as HTML; of traces that cannot be read it says why, as of all that is missing.

    Args:
        report: What was measured and chosen.
        uri: Folder of the report.
    """
    summaries: list[TraceSummary] = []
    unread = ""
    try:
        if any(entry.name == SUMMARY_NAME for entry in report.files):
            content = Door(uri).read(storage.join(uri, SUMMARY_NAME), _MOST_BYTES)
            summaries = summaries_type().validate_python(parse_json(content))
    except HARM as error:
        unread = _said(error)
    try:
        return render_page(report, summaries, unread)
    except HARM as error:
        # What passed the schema may hold numbers that cannot be drawn.
        return plain_page("Profiling run", f"This page cannot be shown: {_said(error)}")


def write_profile_page(uri: str, folder: str) -> str | None:
    """Write the page as PAGE_NAME into a folder; return its URI. None: it could not be written, and a warning says so.

    Args:
        uri: Folder of the report.
        folder: URI of the folder to write into: that of a run, or of an attempt.
    """
    target = storage.join(folder, PAGE_NAME)
    try:
        storage.replace(target, make_profile_page(ProfileReport.load(uri), uri).encode())
    except HARM as error:
        sys.stderr.write(f"profile: warning: {storage.display(target)} could not be written: {_said(error)}\n")
        return None
    return target


def leave_profile_page(record: RunRecord, folder: str) -> RunRecord:
    """Write the page of a run's profile into the run's folder; return the record with the page's URI in its results."""
    uri = next((stage.uri for stage in record.stages if stage.name == "profile"), None)
    if uri is None or "profile" not in record.results:
        return record
    page = write_profile_page(uri, folder)
    results = {**record.results, "profile": {**record.results["profile"], "page": page}}
    return record.model_copy(update={"results": results})


def _said(error: Exception) -> str:
    return shorten(first_line(error), _MOST_SAID)
