"""The way from the raw listing to the engine: every document's hashes, and which of them is a hash of one before it."""

from __future__ import annotations

from inspection.page.links import make_link
from inspection.page.subject import NO_VALUE, Subject
from inspection.run.view import LineageView
from pages.markup import Html, shorten
from pages.parts import Cell, Inline, Table, Text, Words, absent, section

TITLE = "Lineage"

OWN = " (its own)"
"""Marks a hash of something that a document holds, among those that it was made from."""


def lineage(subject: Subject) -> Html:
    """Return the section on hashes."""
    chain = subject.view.lineage
    if not chain:
        return section("lineage", TITLE, absent("lineage", subject.why_absent("shard", "The lineage")))
    known = [_known(chain[:place]) for place in range(len(chain))]
    tied = sum(
        any(value in names for value in entry.made_from.values()) for entry, names in zip(chain, known, strict=True)
    )
    about = "From the source's listing to the engine: each document carries the hashes of what it was made from. "
    rows = [_row(subject, entry, names) for entry, names in zip(chain, known, strict=True)]
    said = f"{tied} of {len(chain) - 1} documents name a hash of one before them."
    return section(
        "lineage",
        TITLE,
        Text([about, Words("= …", style="match"), " marks a hash that is one of a document before it."]),
        Table(
            "lineage-chain",
            "Hashes from the raw listing to the engine",
            ("Document", "Its hashes", "What it was made from"),
            rows,
            3,
        ),
        Text(said, "note", "lineage.tied") if len(chain) > 1 else None,
    )


def _known(before: list[LineageView]) -> dict[str, str]:
    """Return what each hash of the documents before is, by the hash."""
    found: dict[str, str] = {}
    for entry in before:
        if entry.fingerprint:
            found.setdefault(entry.fingerprint, f"fingerprint of {entry.name}")
        if entry.sha256:
            found.setdefault(entry.sha256, f"content of {entry.name}")
        for name, value in entry.made_from.items():
            if name.endswith(OWN):
                found.setdefault(value, f"{name.removesuffix(OWN)} of {entry.name}")
    return found


def _row(subject: Subject, entry: LineageView, known: dict[str, str]) -> tuple[Cell, ...]:
    own = [("fingerprint", entry.fingerprint)] if entry.fingerprint != entry.sha256 else []
    own += [("content (sha256)", entry.sha256), *(pair for pair in entry.made_from.items() if pair[0].endswith(OWN))]
    made = [pair for pair in list(entry.made_from.items())[: subject.limits.rows] if not pair[0].endswith(OWN)]
    document: list[Cell] = [Words(subject.name(entry.name), style="strong")]
    document += [Words(f"stage {entry.stage}", style="small")] if entry.stage else []
    document += [make_link(subject.href, entry.uri, "open")] if entry.uri is not None else []
    hashes = tuple(_hash(name, value) for name, value in own)
    return tuple(document), hashes, tuple(_hash(name, value, known.get(value, "")) for name, value in made) or NO_VALUE


def _hash(name: str, value: str, match: str = "") -> Inline:
    found = Words(shorten(value, 200), style="code hash") if value else Words("not known", style="missing")
    same: list[Cell] = [Words(f" = {match}", style="match")] if match else []
    return Inline([Words(f"{shorten(name, 60)} ", style="small"), found, *same])
