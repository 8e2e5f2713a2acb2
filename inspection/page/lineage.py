"""The way from the raw listing to the engine: every document's hashes, and which of them is a hash of one before it."""

from __future__ import annotations

from inspection.page.links import link
from inspection.page.subject import NO_VALUE, Subject
from inspection.run.view import LineageView
from pages.markup import Html, element, join, section, shorten, table

TITLE = "Lineage"

OWN = " (its own)"
"""Marks a hash of something that a document holds, among those that it was made from."""


def lineage(subject: Subject) -> Html:
    """Return the section on hashes."""
    chain = subject.view.lineage
    if not chain:
        return section("lineage", TITLE, subject.absent("lineage", "shard", "The lineage"))
    rows = [_row(subject, entry, _known(chain[:place])) for place, entry in enumerate(chain)]
    head = ["Document", "Its hashes", "What it was made from"]
    said = (
        "From the source's listing to the engine: each document carries the hashes of what it was made from. ",
        element("span", "= …", class_="match"),
        " marks a hash that is one of a document before it.",
    )
    whole = table("Hashes from the raw listing to the engine", head, rows, id_="lineage-chain", words=3)
    return section("lineage", TITLE, element("p", *said), whole, *_link_count(chain))


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


def _link_count(chain: list[LineageView]) -> list[Html]:
    tied = sum(
        any(value in _known(chain[:place]) for value in entry.made_from.values())
        for place, entry in enumerate(chain)
        if place
    )
    words = f"{tied} of {len(chain) - 1} documents name a hash of one before them."
    return [element("p", words, class_="note", data_text="lineage.tied")] if len(chain) > 1 else []


def _row(subject: Subject, entry: LineageView, known: dict[str, str]) -> list[str]:
    name: list[str] = [element("strong", subject.name(entry.name))]
    name.append(element("small", f"stage {entry.stage}" if entry.stage else "", class_="block-line"))
    if entry.uri is not None:
        name.append(element("small", link(subject.href, entry.uri, "open"), class_="block-line"))
    own = [_pair("content (sha256)", entry.sha256, "")]
    if entry.fingerprint != entry.sha256:
        own.insert(0, _pair("fingerprint", entry.fingerprint, ""))
    own += [_pair(shorten(key, 60), value, "") for key, value in entry.made_from.items() if key.endswith(OWN)]
    made = [
        _pair(shorten(key, 60), value, known.get(value, ""))
        for key, value in list(entry.made_from.items())[: subject.limits.rows]
        if not key.endswith(OWN)
    ]
    return [join(name), join(own), join(made) if made else NO_VALUE]


def _pair(name: str, value: str, match: str) -> Html:
    if not value:
        shown = element("span", "not known", class_="missing")
    else:
        shown = element("code", shorten(value, 200), class_="hash")
    tied = element("span", f" = {match}", class_="match") if match else Html("")
    return element("span", element("small", name, " "), shown, tied, class_="block-line")
