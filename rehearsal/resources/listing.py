"""Lists: filters, order and pages (https://google.aip.dev/160, /132, /158) over messages of Vertex AI.

A comparison names a field of the message, in either spelling: `display_name="x"`, `labels.k=v`, `labels:k`,
`create_time>"2026-01-01T00:00:00Z"`, `display_name:"part"`, `end_time:*`, `metadata.f.number_value>0.5`; `*` is a
wildcard. A field that the message does not have is refused by its name. Vertex documents fewer fields for each list
than its message has (the docstrings of the client library's List requests); all of the message's are taken here.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Container, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from fnmatch import fnmatchcase
from functools import partial
from typing import TYPE_CHECKING, Any

from rehearsal.doors.errors import invalid
from rehearsal.resources.filters import ORDER, Test, parse_filter

if TYPE_CHECKING:
    from rehearsal.resources.cloud_state import CloudState

_DEFAULT_PAGE, _MAX_PAGE = 100, 1000
# How a filter names the kind of a value in a Struct (metadata.f.number_value).
_STRUCT_VALUES = ("number_value", "string_value", "bool_value")

Computed = Mapping[str, Callable[[Any], Any]]
"""Fields of a list that are none of its messages: name -> value of a message."""


def select(
    items: Iterable[Any],
    kind: Any,
    *,
    filter: str = "",
    order_by: str = "",
    computed: Computed | None = None,
    contexts_of: Callable[[Any], Container[str]] | None = None,
) -> list[Any]:
    """Return the messages that a filter takes, in an order ("create_time desc"); as they came where none is named.

    Args:
        items: To choose from.
        kind: Their proto-plus type.
        filter: Empty: all.
        order_by: Empty: as they came.
        computed: Fields beside the message's own.
        contexts_of: Names of the contexts that a message is in, where in_context("NAME") is understood.

    Raises:
        ServiceError: INVALID_ARGUMENT: a filter or an order that is not understood, or a field that is none.
    """

    def compare(name: str, operator: str, wanted: str) -> Test:
        return _compare(_find(kind, name, computed or {}, "filter"), operator, wanted)

    functions: dict[str, Callable[[str], Test]] = {}
    if contexts_of is not None:
        functions["in_context"] = lambda context: lambda item: context in contexts_of(item)
    test = parse_filter(filter, compare, functions=functions)
    found = [item for item in items if test(item)]
    # What is named first weighs most: the last is sorted by first.
    for term in reversed([part.split() for part in order_by.split(",") if part.strip()]):
        if len(term) > 2 or term[-1].lower() not in (term[0].lower(), "asc", "desc"):
            raise invalid("order_by", f"{' '.join(term)!r} is not FIELD, FIELD asc or FIELD desc")
        field = _find(kind, term[0], computed or {}, "order_by")
        found.sort(key=partial(_sort_key, field), reverse=term[-1].lower() == "desc")
    return found


def list_page(
    cloud: CloudState, request: Any, kind: Any, collection: str, *, computed: Computed | None = None
) -> tuple[list[Any], str]:
    """Return one page of the messages of a collection of the request's parent, and the token of the next.

    Args:
        cloud: Where they are kept.
        request: A list request of the client library.
        kind: The proto-plus type of the messages.
        collection: As in their names: schedules, customJobs, ...
        computed: Fields of the list beside the message's own.
    """
    parent = cloud.resolve_name(request.parent, f"aiplatform.{collection}.list")
    found = select(
        cloud.store.list(f"{parent}/{collection}/", kind),
        kind,
        filter=request.filter,
        order_by=getattr(request, "order_by", ""),
        computed=computed,
    )
    return page(found, request.page_size, request.page_token)


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


@dataclass(frozen=True)
class _Field:
    """A field of a message, or a key of a map or Struct in it."""

    of: Callable[[Any], Any]
    """Its value in a message; None where there is none."""
    is_time: bool = False
    is_map: bool = False
    """A map or Struct itself: `:` asks for a key."""
    is_key: bool = False
    """A key of one: it is there also with an empty value."""


def _find(kind: Any, path: str, computed: Computed, argument: str) -> _Field:
    """Return the field at a path ("a.b", `a."k:1"`), refused by its name where the type has none."""
    if _snake(path) in computed:
        return _Field(computed[_snake(path)])
    keys = [quoted or name for quoted, name in re.findall(r'"([^"]*)"|([^."]+)', path)]
    names: list[str] = []
    whole = descriptor = kind.pb(kind()).DESCRIPTOR
    while keys:
        names.append(_snake(keys.pop(0)))
        field = None if descriptor is None else descriptor.fields_by_name.get(names[-1])
        if field is None:
            known = ", ".join([*computed, *(one.name for one in whole.fields)])
            raise invalid(argument, f"{path!r} is no field of {kind.__name__}: {known} are, and fields below them")
        descriptor = field.message_type
        if descriptor and (descriptor.GetOptions().map_entry or descriptor.full_name == "google.protobuf.Struct"):
            # The rest are keys, as they are written.
            names += keys[:-1] if len(keys) > 1 and keys[-1] in _STRUCT_VALUES else keys
            return _Field(partial(_value, names), is_map=not keys, is_key=bool(keys))
    is_time = descriptor is not None and descriptor.full_name == "google.protobuf.Timestamp"
    return _Field(partial(_value, names), is_time)


def _compare(field: _Field, operator: str, wanted: str) -> Test:
    if operator not in (*ORDER, "=", "!=", ":"):
        raise invalid("filter", f"{operator} is no operator of a list: =, !=, :, >, <, >= and <= are")
    if operator == ":" and field.is_map:
        return lambda item: wanted == "*" or wanted in (field.of(item) or ())
    if operator == ":" and wanted == "*":
        return lambda item: field.of(item) is not None if field.is_key else bool(field.of(item))
    if operator in ORDER:
        bound = _moment(wanted) if field.is_time else wanted
        return lambda item: (value := field.of(item)) is not None and _is_ordered(operator, value, bound)

    def equals(item: Any) -> bool:
        value = field.of(item)
        if isinstance(value, bool):
            return str(value).lower() == wanted.lower()
        if isinstance(value, (int, float)) and not hasattr(value, "name"):
            return _number(wanted) == value
        if field.is_time and wanted:
            return value is not None and bool(value.timestamp() == _moment(wanted))
        text = "" if value is None else _text(value)
        return fnmatchcase(text, wanted) if "*" in wanted else text == wanted or (operator == ":" and wanted in text)

    return equals if operator != "!=" else lambda item: not equals(item)


def _is_ordered(operator: str, value: Any, bound: Any) -> bool:
    if hasattr(value, "timestamp"):
        return ORDER[operator](value.timestamp(), bound)
    if isinstance(value, (int, float)) and not hasattr(value, "name"):
        return ORDER[operator](value, _number(bound))
    return ORDER[operator](_text(value), bound)


def _moment(text: str) -> float:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise invalid("filter", f"{text!r} is no time in RFC 3339") from None
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise invalid("filter", f"{text!r} is no number") from None


def _value(names: list[str], item: Any) -> Any:
    value = item
    for name in names:
        if value is None:
            return None
        value = value.get(name) if hasattr(value, "get") else getattr(value, name, None)
    return value


def _snake(name: str) -> str:
    return re.sub(r"(?<=[a-z])([A-Z])", lambda m: "_" + m.group(1).lower(), name)


def _text(value: Any) -> str:
    """Return an enum by its name, anything else as text."""
    return str(getattr(value, "name", value))


def _sort_key(field: _Field, item: Any) -> Any:
    value = field.of(item)
    return value.timestamp() if hasattr(value, "timestamp") else "" if value is None else _text(value)
