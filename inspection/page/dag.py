"""The stages of a run as a graph: what fed what, where each is, how long it took, and where its log is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from inspection.page.links import console
from inspection.page.subject import Subject
from inspection.run.view import RunView, StageState, StageView
from pages.markup import Html, element, join, shorten
from pages.quantities import percent, seconds
from pages.state import colour, shape

WIDTH, BOX_H, GAP = 1046, 126, 40
WIDEST = 240
NARROW = 276
"""Width of a box where they stand one below the other: fits a phone."""
CHARACTER = 6.9
"""Width of a character of the small text, on average."""
# Besides each stage's own neighbour: the split of the shards that training and the proof read.
FURTHER = (("shard", "train"), ("shard", "export"))


@dataclass(frozen=True)
class _Layout:
    """Where the boxes are: side by side, or one below the other."""

    across: bool
    number: int

    @property
    def lane(self) -> int:
        """Room for the arrows that pass stages."""
        return 44

    @property
    def box_w(self) -> int:
        return min(WIDEST, (WIDTH + GAP) // self.number - GAP) if self.across else NARROW

    @property
    def size(self) -> tuple[int, int]:
        along = self.number * (self.box_w if self.across else BOX_H) + (self.number - 1) * GAP
        return (along + 4, BOX_H + self.lane + 4) if self.across else (NARROW + self.lane + 4, along + 4)

    def corner(self, place: int) -> tuple[int, int]:
        along = 2 + place * ((self.box_w if self.across else BOX_H) + GAP)
        return (along, self.lane + 2) if self.across else (self.lane + 2, along)


def dag(subject: Subject) -> Html:
    """Return the graph twice: side by side for wide windows, one below the other for narrow ones."""
    stages = [*subject.view.stages, *_register(subject.view)]
    if not subject.view.stages:
        return element("p", "Nothing is known of this run's stages.", class_="missing block", data_absent="dag")
    return join(
        [
            element("div", _drawing(subject, stages, across=True), class_="dag wide-only"),
            element("div", _drawing(subject, stages, across=False), class_="dag narrow-only"),
        ]
    )


def _register(view: RunView) -> list[StageView]:
    """Return the model registry's task as one more box, where the run has it: a pipeline's last, and no stage."""
    found, vertex = view.registration, view.config.get("vertex")
    model = vertex.get("model") if isinstance(vertex, dict) else None
    asked = view.place == "vertex" and isinstance(model, dict) and model.get("upload") is True
    if view.stage("register") is not None or not (found or asked):
        return []
    open_ = view.state in ("running", "silent")
    if not found:
        return [StageView(name="register", state="waiting" if open_ else "not started")]
    if found.get("verdict") == "refuse":
        why = found.get("unproven")
        words = ", ".join(map(str, why)) if isinstance(why, list) else ""
        return [StageView(name="register", state="done", made=f"refused, unproven: {words}".rstrip(": "))]
    if found.get("upload"):
        return [StageView(name="register", state="done", made="uploaded to the model registry")]
    ended: StageState = view.state if view.state in ("failed", "interrupted", "stopped") else "not started"
    state: StageState = "running" if open_ else ended
    return [StageView(name="register", state=state, made="admitted; no upload is known")]


def _drawing(subject: Subject, stages: Sequence[StageView], *, across: bool) -> Html:
    layout = _Layout(across, len(stages))
    places = {stage.name: place for place, stage in enumerate(stages)}
    arrows = [_arrow(layout, place) for place in range(len(stages) - 1)]
    arrows += [
        _passing(layout, places[start], places[end], level)
        for level, (start, end) in enumerate(FURTHER)
        if start in places and end in places and places[end] - places[start] > 1
    ]
    boxes = [_box(subject, layout, place, stage) for place, stage in enumerate(stages)]
    width, height = layout.size
    return element(
        "svg",
        *arrows,
        *boxes,
        viewBox=f"0 0 {width} {height}",
        style=f"max-width:{width}px",
        role="group",
        aria_label="Stages of the run: " + ", then ".join(f"{stage.name} {stage.state}" for stage in stages),
    )


def _arrow(layout: _Layout, place: int) -> Html:
    x, y = layout.corner(place)
    if layout.across:
        start, middle = x + layout.box_w, y + BOX_H // 2
        return element("path", d=f"M{start} {middle}h{GAP - 3}m-6 -5l6 5l-6 5", class_="arrow")
    start, middle = y + BOX_H, x + layout.box_w // 2
    return element("path", d=f"M{middle} {start}v{GAP - 3}m-5 -6l5 6l5 -6", class_="arrow")


def _passing(layout: _Layout, start: int, end: int, level: int) -> Html:
    """Return an arrow past the stages between two: above them, or at their left."""
    off = 14 + 14 * level
    if layout.across:
        x1, y = layout.corner(start)
        x2, _ = layout.corner(end)
        x1, x2 = x1 + layout.box_w // 2 + 30 + 16 * level, x2 + layout.box_w // 2 - 12 * level
        rise = layout.lane - off
        d = f"M{x1} {y}v-{y - rise - 8}q0 -8 8 -8H{x2 - 8}q8 0 8 8V{y - 3}m-5 -6l5 6l5 -6"
    else:
        x, y1 = layout.corner(start)
        _, y2 = layout.corner(end)
        y1, y2 = y1 + BOX_H // 2 + 12 * level, y2 + BOX_H // 2 - 12 * level
        rise = layout.lane - off
        d = f"M{x} {y1}h-{x - rise - 8}q-8 0 -8 8V{y2 - 8}q0 8 8 8H{x - 3}m-6 -5l6 5l-6 5"
    return element("path", d=d, class_="arrow far")


def _box(subject: Subject, layout: _Layout, place: int, stage: StageView) -> Html:
    x, y = layout.corner(place)
    width = layout.box_w
    took = (
        f" · {seconds(stage.wall_s)}" if stage.wall_s is not None and stage.state not in ("reused", "running") else ""
    )
    lines = _wrap(stage.made or _words(stage), int((width - 28) / CHARACTER), 3)
    parts = [
        element("title", f"{stage.name}: {stage.state}{took}. {subject.reason(stage.made)}"),
        element("rect", x=x, y=y, width=width, height=BOX_H, rx=8, class_=f"box {colour(stage.state)}"),
        element("text", stage.name, x=x + 14, y=y + 25, class_="stage"),
        shape(stage.state, x=x + 12, y=y + 34),
        element(
            "text", element("tspan", stage.state, class_="word"), took, x=x + 34, y=y + 47, class_=colour(stage.state)
        ),
        *(element("text", line, x=x + 14, y=y + 67 + 15 * row) for row, line in enumerate(lines)),
        *_progress(stage, x, y, width),
        _links(subject, stage, x, y),
    ]
    return element("g", *parts, data_stage=stage.name, data_state=stage.state)


def _words(stage: StageView) -> str:
    if stage.progress is not None:
        return stage.progress.message
    if stage.state == "failed" and stage.error:
        return stage.error.splitlines()[0]
    return ""


def _progress(stage: StageView, x: int, y: int, width: int) -> list[Html]:
    if stage.state != "running" or stage.progress is None or not stage.progress.total > 0:
        return []
    share = min(max(stage.progress.done / stage.progress.total, 0.0), 1.0)
    return [
        element("rect", x=x + 14, y=y + BOX_H - 6, width=width - 28, height=3, rx=1.5, class_="track"),
        element("rect", x=x + 14, y=y + BOX_H - 6, width=round((width - 28) * share), height=3, rx=1.5, class_="made"),
        element("text", percent(share), x=x + width - 14, y=y + 25, text_anchor="end"),
    ]


def _links(subject: Subject, stage: StageView, x: int, y: int) -> Html:
    logs = [attempt.log for attempt in stage.attempts if attempt.log is not None]
    address = subject.href(logs[-1]) if logs else None
    if address is not None:
        words = "log of the last attempt" if len(stage.attempts) > 1 else "log"
        return element("a", element("text", words, x=x + 14, y=y + BOX_H - 14, class_="link"), href=address)
    folder = stage.uri and console(f"{stage.uri.rstrip('/')}/")
    if folder:
        return element("a", element("text", "in the bucket", x=x + 14, y=y + BOX_H - 14, class_="link"), href=folder)
    return Html("")


def _wrap(words: str, width: int, most: int) -> list[str]:
    """Return text in lines of at most `width` characters; the last of at most `most` lines is cut."""
    lines = [""]
    for word in words.replace("\u00a0", " ").split():
        if len(lines[-1]) + len(word) < width or not lines[-1]:
            lines[-1] = f"{lines[-1]} {word}".strip()
        else:
            lines.append(word)
    if len(lines) > most:
        lines = [*lines[: most - 1], " ".join(lines[most - 1 :])]
    return [shorten(line, width) for line in lines if line]
