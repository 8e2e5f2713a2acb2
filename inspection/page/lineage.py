"""The way from the raw listing to the engine: every document's hashes, and which of them is a hash of one before it."""

from __future__ import annotations

from inspection.page.links import make_link
from inspection.page.subject import Subject
from inspection.run.view import LineageView
from pages.markup import Html, shorten
from pages.rendering import render
from pages.run.absent import AbsentSection
from pages.run.lineage import Entry, Hash, LineageSection

TITLE = "Lineage"

OWN = " (its own)"
"""Marks a hash of something that a document holds, among those that it was made from."""


def lineage(subject: Subject) -> Html:
    """Return the section on hashes."""
    chain = subject.view.lineage
    if not chain:
        return render(AbsentSection("lineage", TITLE, subject.why_absent("shard", "The lineage")))
    known = [_known(chain[:place]) for place in range(len(chain))]
    entries = tuple(_entry(subject, entry, names) for entry, names in zip(chain, known, strict=True))
    tied = sum(
        any(value in names for value in entry.made_from.values()) for entry, names in zip(chain, known, strict=True)
    )
    return render(LineageSection(TITLE, entries, tied))


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


def _entry(subject: Subject, entry: LineageView, known: dict[str, str]) -> Entry:
    given = [_hash(name, value) for name, value in entry.made_from.items() if name.endswith(OWN)]
    own = [_hash("fingerprint", entry.fingerprint)] if entry.fingerprint != entry.sha256 else []
    made = list(entry.made_from.items())[: subject.limits.rows]
    return Entry(
        name=subject.name(entry.name),
        stage=entry.stage,
        link=make_link(subject.href, entry.uri, "open") if entry.uri is not None else None,
        own=(*own, _hash("content (sha256)", entry.sha256), *given),
        made_from=tuple(_hash(name, value, known.get(value, "")) for name, value in made if not name.endswith(OWN)),
    )


def _hash(name: str, value: str, match: str = "") -> Hash:
    return Hash(shorten(name, 60), shorten(value, 200), match)
