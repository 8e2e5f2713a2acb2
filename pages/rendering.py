"""Templates of all pages: one typed view per template, rendered by Jinja2 with every value escaped.

A page is put together of views: dataclasses that name their template and hold what it shows. A field that is another
view's markup is `Html`, or `Markdown` in a `.md.j2` template; everything else is text, and is escaped for what the
template is. Templates are in pages/templates/, macros shared by those of HTML in macros.html.j2 there.
"""

from __future__ import annotations

import importlib.metadata
import math
import os
import re
import stat
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, fields
from functools import cache
from typing import Any, ClassVar

from jinja2 import Environment, FileSystemBytecodeCache, PackageLoader, StrictUndefined
from jinja2.bccache import Bucket
from markupsafe import Markup

from contracts.environment import user_cache
from pages import markdown as marks
from pages import quantities, state
from pages.markdown import Markdown, cell
from pages.markup import UNPRINTABLE, Html, shorten

_FILTERS = (
    quantities.area,
    quantities.count,
    quantities.exact_percent,
    quantities.flops,
    quantities.flops_per_s,
    quantities.hours,
    quantities.instant,
    quantities.metric_number,
    quantities.milliseconds,
    quantities.number,
    quantities.percent,
    quantities.seconds,
    quantities.several,
    quantities.size,
    quantities.usd,
    shorten,
    state.colour,
    state.sign,
    marks.code,
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
        bytecode_cache=_compiled(),
    )
    environment.filters.update({each.__name__: each for each in _FILTERS})
    environment.filters["shown_as"] = _shown_as
    environment.tests["finite"] = _is_finite
    return environment


class _Compiled(FileSystemBytecodeCache):
    """Compiled templates in files; where they cannot be written pages are drawn all the same."""

    def dump_bytecode(self, bucket: Bucket) -> None:
        with suppress(OSError):
            super().dump_bytecode(bucket)


def _compiled() -> _Compiled | None:
    """Return where compiled templates are kept between commands: compiling takes a third of drawing a report.

    They are code: a folder that others may write into is not used. A template that was edited is compiled again.
    """
    try:
        folder = user_cache("templates") / f"jinja2-{importlib.metadata.version('jinja2')}"
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        about = folder.lstat()
    except (OSError, RuntimeError):
        # RuntimeError: nobody knows the user's home.
        return None
    is_ours = stat.S_ISDIR(about.st_mode) and about.st_uid == os.getuid() and not about.st_mode & 0o022
    return _Compiled(str(folder)) if is_ours else None


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
