"""Templates of all pages: one typed view per template, rendered by Jinja2 with every value escaped.

A page is put together of views: dataclasses that name their template and hold what it shows. A field that is another
view's markup is `Html`, or `Markdown` in a `.md.j2` template; everything else is text, and is escaped for what the
template is. Templates are in pages/templates/, macros shared by them in macros.html.j2 and macros.md.j2 there.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import cache
from typing import Any, ClassVar

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from pages import markdown as marks
from pages import quantities, state
from pages.markdown import Markdown, cell
from pages.markup import UNPRINTABLE, Html, shorten

_FILTERS = (
    quantities.area,
    quantities.count,
    quantities.exact_percent,
    quantities.factor,
    quantities.flops,
    quantities.flops_per_s,
    quantities.found,
    quantities.hours,
    quantities.instant,
    quantities.metric_number,
    quantities.milliseconds,
    quantities.number,
    quantities.percent,
    quantities.rate,
    quantities.seconds,
    quantities.several,
    quantities.size,
    quantities.usd,
    shorten,
    state.colour,
    state.sign,
    marks.code,
    marks.whole,
)


@dataclass(frozen=True)
class View:
    """What one template shows."""

    template: ClassVar[str]
    """Name below pages/templates/; `.html.j2` escapes for HTML, `.md.j2` for Markdown."""


def render(view: View) -> Html:
    """Return a view's markup.

    Raises:
        UndefinedError: The template names what its view does not have: a defect of ours.
        TypeError: The template shows None, which has no text: a defect of ours.
    """
    assert view.template.endswith(".html.j2"), view.template
    values = {field.name: getattr(view, field.name) for field in fields(view)}
    return Html(_environment().get_template(view.template).render(values))


def write(view: View) -> Markdown:
    """Return a view's Markdown: its template ends in `.md.j2`.

    Raises: as `render`.
    """
    assert view.template.endswith(".md.j2"), view.template
    values = {field.name: getattr(view, field.name) for field in fields(view)}
    written = _environment(markdown=True).get_template(view.template).render(values)
    # Sections that are empty leave their empty lines.
    return Markdown(re.sub(r"\n{3,}", "\n\n", written).strip("\n"))


@cache
def _environment(*, markdown: bool = False) -> Environment:
    environment = Environment(
        loader=PackageLoader("pages"),
        # Of Markdown too: what `finalize` has escaped, or a macro has written, is then not escaped again.
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_as_markdown if markdown else _printable,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update({each.__name__: each for each in _FILTERS})
    environment.filters["shown_as"] = _shown_as
    environment.tests["finite"] = _is_finite
    return environment


def _shown_as(value: float, unit: str) -> str:
    """Return a number as the filter of this name shows it: of a table whose columns have units of their own."""
    filters: dict[str, Callable[[float], str]] = _environment().filters
    return filters[unit](value)


def _is_finite(value: float | None) -> bool:
    return value is not None and math.isfinite(value)


def _printable(value: Any) -> Any:
    """Return what may stand in a page: markup as it is, text without what no reader can see."""
    if value is None:
        raise TypeError("a template shows None")
    return value if hasattr(value, "__html__") else UNPRINTABLE.sub("\ufffd", str(value))


def _as_markdown(value: Any) -> Any:
    """Return what may stand in Markdown: text with nothing in it that means something, in one line."""
    if value is None:
        raise TypeError("a template shows None")
    # Markup of HTML is text here; markupsafe's is what a macro has written.
    return value if isinstance(value, Markdown | Markup) else cell(str(value))
