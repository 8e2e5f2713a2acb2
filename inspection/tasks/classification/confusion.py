"""What is taken for what: the matrix of few classes, the pairs of many."""

from __future__ import annotations

from contracts.artifacts.classification import ClassificationDetails
from inspection.page.subject import NO_VALUE, Subject, left_out
from pages.heat_map import SHADES
from pages.markup import Html, element, figure, join, table
from pages.quantities import count, percent


def confusion(subject: Subject, found: ClassificationDetails) -> Html:
    """Return the confusion matrix; of many classes the pairs that are confused most."""
    if len(found.classes) <= subject.limits.confusion:
        return join([_matrix(subject, found), _note(found)])
    return join([_pairs(subject, found), _note(found)])


def _matrix(subject: Subject, found: ClassificationDetails) -> Html:
    cells = {(label, predicted): samples for label, predicted, samples in found.confusion}
    names = [subject.name(outcome.name) for outcome in found.classes]
    head = element(
        "tr",
        element("th", "label ↓ said →", scope="col", class_="corner"),
        *(element("th", element("span", name), scope="col", title=name) for name in names),
    )
    rows = []
    for label, outcome in enumerate(found.classes):
        drawn = []
        for predicted in range(len(names)):
            samples = cells.get((label, predicted), 0)
            share = samples / outcome.samples if outcome.samples else 0.0
            kind = f"h{round(min(share, 1.0) * (SHADES - 1))}" if samples else "none"
            if samples and label != predicted:
                kind += " off"
            shown = figure(f"confusion.{label}.{predicted}", samples, count) if samples else Html("·")
            drawn.append(
                element("td", shown, class_=kind, title=f"{names[label]} taken for {names[predicted]}: {samples}")
            )
        rows.append(element("tr", element("th", names[label], scope="row"), *drawn))
    caption = "Samples by label (rows) and by what the network said (columns); shaded by the share of the row"
    whole = element(
        "table",
        element("caption", caption),
        element("thead", head),
        element("tbody", *rows),
        id="confusion",
        # Names that are longer than a number stand upright.
        class_="heat matrix upright" if max(map(len, names), default=0) > 3 else "heat matrix",
    )
    return element("div", whole, class_="scroll", tabindex=0, role="region", aria_label=caption)


def _pairs(subject: Subject, found: ClassificationDetails) -> Html:
    off = sorted((cell for cell in found.confusion if cell[0] != cell[1]), key=lambda cell: -cell[2])
    shown = off[: subject.limits.rows]

    def name(place: int) -> str:
        return subject.name(found.classes[place].name) if 0 <= place < len(found.classes) else "?"

    rows = [
        [
            name(label),
            name(predicted),
            figure(f"confusion.{label}.{predicted}", samples, count),
            percent(samples / found.classes[label].samples)
            if 0 <= label < len(found.classes) and found.classes[label].samples
            else NO_VALUE,
        ]
        for label, predicted, samples in shown
    ]
    caption = f"Of {len(found.classes):,} classes, the pairs that are confused most"
    head = ["Label", "Taken for", "Samples", "Of the label's"]
    note = left_out(len(shown), len(off), "pairs")
    return table(caption, head, rows, id_="confusion", words=2, note=note)


def _note(found: ClassificationDetails) -> Html:
    if not found.confusion_left_out:
        return Html("")
    return element(
        "p",
        f"{found.confusion_left_out:,} samples in the smallest cells were left out by the evaluation.",
        class_="note",
    )
