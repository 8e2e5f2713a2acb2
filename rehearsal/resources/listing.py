"""Lists: filters, order and pages (https://google.aip.dev/160, /132, /158), as far as clients of Vertex ask for them.

A filter is comparisons joined by AND: `display_name="x"`, `state!="PIPELINE_STATE_FAILED"`, `labels.k=v`,
`create_time>"2026-01-01T00:00:00Z"`, `display_name:"part"`, `*` as a wildcard. In brackets they may be joined by OR,
and metadata knows `in_context("NAME")`. What is not understood is refused.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Container, Iterable
from datetime import UTC, datetime
from fnmatch import fnmatchcase
from typing import Any

from rehearsal.doors.errors import ServiceError, invalid

_CONDITION = re.compile(r"""\s*([A-Za-z_][\w.\-]*)\s*(!=|>=|<=|=|>|<|:)\s*("(?:[^"\\]|\\.)*"|'[^']*'|[^\s"')(]+)\s*""")
_DEFAULT_PAGE, _MAX_PAGE = 100, 1000


Condition = tuple[str, str, str]
_IN_CONTEXT = re.compile(r"""\s*in_context\(\s*"([^"]*)"\s*\)\s*""")


def select(
    items: Iterable[Any],
    *,
    filter: str = "",
    order_by: str = "",
    contexts_of: Callable[[Any], Container[str]] | None = None,
) -> list[Any]:
    """Return the messages that a filter takes, in an order ("create_time desc"); as they came where none is named.

    Args:
        items: To choose from.
        filter: Empty: all.
        order_by: Empty: as they came.
        contexts_of: Names of the contexts that a message is in, where in_context is understood.
    """
    clauses = parse_filter(filter, contexts=contexts_of is not None)

    def holds(item: Any, condition: Condition) -> bool:
        if condition[0] == "in_context" and contexts_of is not None:
            return condition[2] in contexts_of(item)
        return _holds(item, *condition)

    found = [item for item in items if all(any(holds(item, one) for one in clause) for clause in clauses)]
    # What is named first weighs most: the last is sorted by first.
    for term in reversed([part.split() for part in order_by.split(",") if part.strip()]):
        found.sort(key=lambda item: _comparable(_value(item, term[0])), reverse=term[-1].lower() == "desc")
    return found


def page(items: list[Any], page_size: int, page_token: str) -> tuple[list[Any], str]:
    """Return one page, and the token of the next ("" behind the last)."""
    size = min(page_size or _DEFAULT_PAGE, _MAX_PAGE)
    if size < 0:
        raise invalid("page_size", f"{page_size} is negative")
    try:
        start = int(base64.urlsafe_b64decode(page_token)) if page_token else 0
    except ValueError:
        raise invalid("page_token", f"{page_token!r} came from no list of this service") from None
    rest = start + size
    return items[start:rest], base64.urlsafe_b64encode(str(rest).encode()).decode() if rest < len(items) else ""


def parse_filter(text: str, *, contexts: bool = False) -> list[list[Condition]]:
    """Return a filter as clauses that must all hold, each of comparisons (field, operator, value) of which one must.

    Args:
        text: The filter.
        contexts: Whether in_context("NAME") is understood: ("in_context", ":", NAME).

    Raises:
        ServiceError: INVALID_ARGUMENT for one that is not understood.
    """
    found: list[list[Condition]] = []
    rest = text.strip()
    while rest:
        if contexts and (match := _IN_CONTEXT.match(rest)) is not None:
            found.append([("in_context", ":", match[1])])
            rest = rest[match.end() :]
        elif rest.startswith("("):
            clause, rest = _read_group(rest, text)
            found.append(clause)
        else:
            condition, rest = _read_condition(rest, text)
            found.append([condition])
        if rest:
            rest = _skip(r"AND\s+", rest, text)
    return found


def _read_group(rest: str, text: str) -> tuple[list[Condition], str]:
    condition, rest = _read_condition(rest[1:], text)
    clause = [condition]
    while not rest.startswith(")"):
        condition, rest = _read_condition(_skip(r"OR\s+", rest, text), text)
        clause.append(condition)
    return clause, rest[1:].lstrip()


def _read_condition(rest: str, text: str) -> tuple[Condition, str]:
    match = _CONDITION.match(rest)
    if match is None:
        raise _not_understood(rest, text)
    field, operator, value = match.groups()
    plain = re.sub(r"\\(.)", r"\1", value[1:-1]) if value[0] in "\"'" else value
    return (field, operator, plain), rest[match.end() :]


def _skip(pattern: str, rest: str, text: str) -> str:
    match = re.match(pattern, rest)
    if match is None:
        raise _not_understood(rest, text)
    return rest[match.end() :]


def _not_understood(rest: str, text: str) -> ServiceError:
    return invalid("filter", f"{text!r} is not understood at {rest!r}: comparisons joined by AND are")


def _holds(item: Any, field: str, operator: str, wanted: str) -> bool:
    value = _value(item, field)
    if operator == ":" and value is None:
        return False
    if operator in ("=", "!=", ":"):
        if operator == ":" and not isinstance(value, str):
            equal = _contains(value, wanted)
        elif isinstance(value, bool):
            equal = str(value).lower() == wanted.lower()
        else:
            text = "" if value is None else _text(value)
            equal = fnmatchcase(text, wanted) if "*" in wanted else text == wanted
            equal = equal or (operator == ":" and wanted in text)
        return equal != (operator == "!=")
    compare: dict[str, Callable[[Any, Any], bool]] = {
        ">": lambda a, b: a > b,
        "<": lambda a, b: a < b,
        ">=": lambda a, b: a >= b,
        "<=": lambda a, b: a <= b,
    }
    if value is None:
        return False
    if hasattr(value, "timestamp"):
        try:
            moment = datetime.fromisoformat(wanted)
        except ValueError:
            raise invalid("filter", f"{wanted!r} is no time in RFC 3339") from None
        return compare[operator](
            value.timestamp(), (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
        )
    return compare[operator](_text(value), wanted)


def _value(item: Any, path: str) -> Any:
    """Return what is at a path of a proto-plus message; None where there is nothing."""
    value = item
    for name in re.sub(r"(?<=[a-z])([A-Z])", lambda m: "_" + m.group(1).lower(), path).split("."):
        if value is None:
            return None
        value = value.get(name) if hasattr(value, "get") else getattr(value, name, None)
    return value


def _contains(value: Any, wanted: str) -> bool:
    try:
        return wanted == "*" or wanted in value
    except TypeError:
        return _text(value) == wanted


def _text(value: Any) -> str:
    """Return an enum by its name, anything else as text."""
    return str(getattr(value, "name", value))


def _comparable(value: Any) -> Any:
    return value.timestamp() if hasattr(value, "timestamp") else "" if value is None else _text(value)
