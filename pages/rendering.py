"""Templates of all pages: one typed view per template, rendered by Jinja2 with every value escaped.

A page is put together of views: dataclasses that name their template and hold what it shows. A field that is another
view's markup is `Html`; everything else is text, and is escaped. Templates are in pages/templates/, macros shared by
them in pages/templates/macros.html.j2.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import cache
from typing import Any, ClassVar

from jinja2 import Environment, PackageLoader, StrictUndefined

from pages import quantities, state
from pages.markup import UNPRINTABLE, Html, shorten

_FILTERS = (
    quantities.area,
    quantities.count,
    quantities.exact_percent,
    quantities.factor,
    quantities.flops,
    quantities.flops_per_s,
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
)


@dataclass(frozen=True)
class View:
    """What one template shows."""

    template: ClassVar[str]
    """Name below pages/templates/; `.html.j2` escapes for HTML, `.md.j2` is Markdown and writes text as it is."""


def render(view: View) -> Html:
    """Return a view's markup.

    Raises:
        UndefinedError: The template names what its view does not have: a defect of ours.
        TypeError: The template shows None, which has no text: a defect of ours.
    """
    values = {field.name: getattr(view, field.name) for field in fields(view)}
    return Html(_environment().get_template(view.template).render(values))


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("pages"),
        autoescape=lambda name: name is not None and name.endswith(".html.j2"),
        undefined=StrictUndefined,
        finalize=_printable,
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
