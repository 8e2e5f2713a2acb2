"""The model card: what an export is, what was measured of it, and what was not."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from contracts.artifacts import ExportManifest, Gate
from contracts.artifacts.export import Figure
from pages.markdown import Markdown
from pages.rendering import View


@dataclass(frozen=True)
class Fact:
    """A value with its title."""

    title: str
    value: str
    name: str = ""
    """Of an input, an output or a dimension; after the title."""
    is_code: bool = False
    """A hash or a name, which may be copied."""


@dataclass(frozen=True)
class Artifact:
    """What is served or lies beside it, and what ran it."""

    name: str
    runtime: str
    sha256: str
    ran: str
    unproven: str
    """What of it was not shown; empty: nothing."""
    is_served: bool = False
    note: str = ""


@dataclass(frozen=True)
class ExportCard(View):
    """The card as a whole."""

    template: ClassVar[str] = "export/card.md.j2"
    document: ExportManifest
    kind: Markdown
    """What the task calls the model."""
    artifacts: tuple[Artifact, ...]
    about: tuple[Markdown, ...]
    """Paragraphs of the task: what goes in and comes out first."""
    facts: tuple[Fact, ...]
    use: tuple[Markdown, ...]
    """Paragraphs of the task."""
    triton: str
    """Image of Triton that loads it; empty: none is known."""
    metrics: tuple[str, ...]
    measured: tuple[tuple[str, tuple[Figure, ...]], ...]
    """Name of a model, and its value of each metric."""
    speed: tuple[tuple[str, str, tuple[Figure, ...]], ...]
    """Runner and precision; smallest batch, p50 in ms, best batch, samples per second, seconds of a cold start."""
    lineage: tuple[Fact, ...]
    limits: tuple[Markdown, ...]
    """Of the task."""
    not_shown: tuple[Gate, ...]
    """Gates that did not pass."""
