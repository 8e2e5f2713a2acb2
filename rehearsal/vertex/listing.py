"""Lists of resources and log entries: filters, order, pages (https://google.aip.dev/160, /132, /158).

A filter has comparisons, AND, OR and parentheses; OR binds more tightly than AND:

    display_name="x"    create_time>="2026-01-01T00:00:00Z"    parent_contexts:"name"
    resource.labels.job_id=("1" OR "2")

Field names may be in snake_case or camelCase. Other syntax and unknown fields are refused.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from rehearsal.errors import ServiceError, invalid_argument
from rehearsal.servers.messages import to_dict

if TYPE_CHECKING:
    from rehearsal.vertex.state import CloudState

Test = Callable[[Mapping[str, Any]], bool]
"""Returns whether a filter selects a message, in its JSON form."""
_ORDERS = ("create_time desc", "create_time", "create_time asc")
_DEFAULT_PAGE, _MAX_PAGE = 100, 1000
_TOKEN = re.compile(r"""\s*(?:("(?:[^"\\]|\\.)*")|(>=|[=:()])|([^\s()=<>!:"~]+))""")


def list_page(cloud: CloudState, request: Any, kind: Any, collection: str) -> tuple[list[Any], str]:
    """Return a page of a collection below the request's parent, and the token of the next page.

    Raises:
        ServiceError: INVALID_ARGUMENT: invalid filter, order or page token.
    """
    parent = cloud.resolve_name(request.parent, f"aiplatform.{collection}.list")
    messages = cloud.store.list(f"{parent}/{collection}/", kind)
    selected = select(messages, kind, request.filter, getattr(request, "order_by", ""))
    return page(selected, request.page_size, request.page_token, lambda item: str(item.name))


def getter(kind: Any, collection: str) -> Callable[..., Any]:
    """Return the Get method of a collection's resources, of a proto-plus type."""

    def get(cloud: CloudState, request: Any, caller: Any) -> Any:
        return kind(cloud.find(request.name, f"aiplatform.{collection}.get"))

    return get


def lister(kind: Any, collection: str, response: Any, field: str) -> Callable[..., Any]:
    """Return the List method of a collection's resources: the newest first, in a field of the response."""

    def list_(cloud: CloudState, request: Any, caller: Any) -> Any:
        messages, token = list_page(cloud, request, kind, collection)
        return response(**{field: messages, "next_page_token": token})

    return list_


def select(messages: Iterable[Any], kind: Any, filter: str, order_by: str = "") -> list[Any]:
    """Return the messages that a filter selects, in the requested order; `messages` has the newest first."""
    test = parse_filter(filter, [field.json_name for field in kind.pb(kind()).DESCRIPTOR.fields])
    selected = [item for item in messages if not filter or test(to_dict(item))]
    if order_by not in ("", *_ORDERS):
        raise invalid_argument("order_by", f"{order_by!r} is none of {', '.join(_ORDERS)}")
    return selected[::-1] if order_by in _ORDERS[1:] else selected


def page(items: list[Any], size: int, token: str, name_of: Callable[[Any], str]) -> tuple[list[Any], str]:
    """Return a page, and the token of the next ("" after the last): the name of the page's last item.

    With names as tokens, items created between two requests are not skipped and do not shift others.
    """
    size = min(size or _DEFAULT_PAGE, _MAX_PAGE)
    names = [name_of(item) for item in items]
    if token and token not in names:
        raise invalid_argument("page_token", f"{token!r} names no item of this list: list from the start again")
    start = names.index(token) + 1 if token else 0
    end = start + size
    return items[start:end], names[end - 1] if end < len(items) else ""


def parse_filter(text: str, fields: Iterable[str]) -> Test:
    """Compile a filter over fields in camelCase; an empty one selects everything.

    Raises:
        ServiceError: INVALID_ARGUMENT: invalid syntax.
    """
    tokens: list[str] = []
    remaining = text.strip()
    while remaining:
        if (match := _TOKEN.match(remaining)) is None:
            raise invalid_argument("filter", f"{text!r} is not understood at {remaining!r}")
        tokens.append(match[0].strip())
        remaining = remaining[match.end() :].strip()
    return _Parser(text, tokens, list(fields)).parse() if tokens else lambda _values: True


class _Parser:
    """Recursive descent parser of a filter's tokens."""

    def __init__(self, text: str, tokens: list[str], fields: list[str]) -> None:
        self._text, self._tokens, self._fields = text, tokens, fields

    def parse(self) -> Test:
        test = self._all_of()
        if self._tokens:
            raise self._error()
        return test

    def _error(self) -> ServiceError:
        position = self._tokens[0] if self._tokens else "its end"
        return invalid_argument("filter", f"{self._text!r} is not understood at {position}")

    def _take(self, *allowed: str) -> str:
        """Remove and return the next token if it is one of these; "" otherwise."""
        return self._tokens.pop(0) if self._tokens and self._tokens[0] in allowed else ""

    def _value(self) -> str:
        """Remove and return the next token, which must be a name or a value."""
        if not self._tokens or self._tokens[0] in ("AND", "OR", "NOT", ">=", "=", ":", "(", ")"):
            raise self._error()
        token = self._tokens.pop(0)
        return re.sub(r"\\(.)", r"\1", token[1:-1]) if token.startswith('"') else token

    def _all_of(self) -> Test:
        tests = [self._any_of()]
        while self._take("AND"):
            tests.append(self._any_of())
        return lambda values: all(test(values) for test in tests)

    def _any_of(self) -> Test:
        tests = [self._comparison()]
        while self._take("OR"):
            tests.append(self._comparison())
        return lambda values: any(test(values) for test in tests)

    def _comparison(self) -> Test:
        if self._take("("):
            test = self._all_of()
        else:
            name = self._value()
            if not (operator := self._take("=", ":", ">=")):
                raise self._error()
            if not self._take("("):
                return self._compare(name, operator, [self._value()])
            expected = [self._value()]
            while self._take("OR"):
                expected.append(self._value())
            test = self._compare(name, operator, expected)
        if not self._take(")"):
            raise self._error()
        return test

    def _compare(self, name: str, operator: str, expected: list[str]) -> Test:
        """Return a test whether a field equals, contains, or is not before one of the values."""
        top, *keys = name.split(".")
        if _camel(top) not in self._fields:
            text = f"{name!r} is no field: {', '.join(self._fields)} are, and fields below them"
            raise invalid_argument("filter", text)
        path = [_camel(top), *keys]
        if operator == "=":
            return lambda values: str(_value_at(values, path) or "") in expected
        if operator == ":":
            return lambda values: any(text in (_value_at(values, path) or ()) for text in expected)
        moments = [_moment(text) for text in expected]
        return lambda values: bool(value := _value_at(values, path)) and _moment(value) >= min(moments)


def _moment(text: Any) -> datetime:
    try:
        moment = datetime.fromisoformat(str(text))
    except ValueError:
        raise invalid_argument("filter", f"{text!r} is no time in the form of RFC 3339") from None
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


def _value_at(values: Any, path: list[str]) -> Any:
    """Return the JSON value at a path; field names may be in snake_case or camelCase."""
    for name in path:
        values = values.get(name, values.get(_camel(name))) if isinstance(values, Mapping) else None
    return values


def _camel(name: str) -> str:
    return re.sub(r"_([a-z])", lambda match: match[1].upper(), name)
