"""Lists of resources and of log entries: filters, order, pages (https://google.aip.dev/160, /132, /158).

A filter is comparisons with AND, OR, NOT and brackets; OR binds more tightly than AND. Both lists take

    display_name="x"    create_time>="2026-01-01T00:00:00Z"    labels.k:*    parent_contexts:"name"    severity>=ERROR
    resource.labels.job_id=("1" OR "2")    in_context("NAME")

Fields are named in either spelling. What is not understood, and a field that a message does not have, is refused.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from operator import ge, gt, le, lt
from typing import TYPE_CHECKING, Any

from rehearsal.errors import ServiceError, invalid_argument
from rehearsal.servers.messages import to_dict

if TYPE_CHECKING:
    from rehearsal.vertex.state import CloudState

Test = Callable[[Mapping[str, Any]], bool]
"""Whether a filter selects a message, which is given in its JSON form."""
SEVERITIES = ("DEFAULT", "DEBUG", "INFO", "NOTICE", "WARNING", "ERROR", "CRITICAL", "ALERT", "EMERGENCY")
_ORDER = {">": gt, "<": lt, ">=": ge, "<=": le}
_ORDERS = ("create_time desc", "create_time", "create_time asc")
_DEFAULT_PAGE, _MAX_PAGE = 100, 1000
_TOKEN = re.compile(r"""\s*(?:("(?:[^"\\]|\\.)*")|(!=|>=|<=|[=<>:()])|([^\s()=<>!:"~]+))""")
_WORDS = ("AND", "OR", "NOT")


def list_page(
    cloud: CloudState,
    request: Any,
    kind: Any,
    collection: str,
    *,
    contexts_of: Callable[[str], Iterable[str]] | None = None,
) -> tuple[list[Any], str]:
    """Return one page of the messages of a type and collection below the request's parent, and the next page's token.

    `contexts_of` returns the contexts of a message by its name, where in_context("NAME") is allowed.

    Raises:
        ServiceError: INVALID_ARGUMENT: filter, order or page token is not understood.
    """
    parent = cloud.resolve_name(request.parent, f"aiplatform.{collection}.list")
    messages = cloud.store.list(f"{parent}/{collection}/", kind)
    found = select(messages, kind, request.filter, getattr(request, "order_by", ""), contexts_of)
    return page(found, request.page_size, request.page_token, lambda item: str(item.name))


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


def select(
    messages: Iterable[Any],
    kind: Any,
    filter: str,
    order_by: str = "",
    contexts_of: Callable[[str], Iterable[str]] | None = None,
) -> list[Any]:
    """Return the messages that a filter selects; they come, and are left, with the newest first unless asked for."""
    fields = [field.json_name for field in kind.pb(kind()).DESCRIPTOR.fields]
    test = parse_filter(filter, fields, contexts_of)
    found = [item for item in messages if not filter or test(to_dict(item))]
    if order_by not in ("", *_ORDERS):
        raise invalid_argument("order_by", f"{order_by!r} is none of {', '.join(_ORDERS)}")
    return found[::-1] if order_by in _ORDERS[1:] else found


def page(items: list[Any], size: int, token: str, name_of: Callable[[Any], str]) -> tuple[list[Any], str]:
    """Return one page, and the token of the next ("" after the last): the name of the page's last item.

    So an item that is created between two pages is neither skipped nor moves others to the next page.
    """
    size = min(size or _DEFAULT_PAGE, _MAX_PAGE)
    start = 0
    if token:
        try:
            last = base64.urlsafe_b64decode(token).decode()
            start = 1 + next(number for number, item in enumerate(items) if name_of(item) == last)
        except (ValueError, StopIteration):
            raise invalid_argument(
                "page_token", f"{token!r} names no item of this list: list from the start again"
            ) from None
    if size < 0:
        raise invalid_argument("page_size", f"{size} is negative")
    chosen = items[start : start + size]
    has_more = start + size < len(items)
    return chosen, base64.urlsafe_b64encode(name_of(chosen[-1]).encode()).decode() if has_more else ""


def parse_filter(text: str, fields: Iterable[str], contexts_of: Callable[[str], Iterable[str]] | None = None) -> Test:
    """Return the test of a filter over fields in camelCase; an empty one selects everything.

    Raises:
        ServiceError: INVALID_ARGUMENT: it is not understood.
    """
    tokens: list[str] = []
    rest = text.strip()
    while rest:
        if (match := _TOKEN.match(rest)) is None:
            raise invalid_argument("filter", f"{text!r} is not understood at {rest!r}")
        tokens.append(match[0].strip())
        rest = rest[match.end() :].strip()
    parser = _Parser(text, tokens, list(fields), contexts_of)
    return parser.parse() if tokens else lambda _values: True


class _Parser:
    """Recursive descent over the tokens of a filter."""

    def __init__(
        self, text: str, tokens: list[str], fields: list[str], contexts_of: Callable[[str], Iterable[str]] | None
    ) -> None:
        self._text, self._tokens, self._fields, self._contexts_of = text, tokens, fields, contexts_of

    def parse(self) -> Test:
        test = self._all_of()
        if self._tokens:
            raise self._error()
        return test

    def _error(self) -> ServiceError:
        at = self._tokens[0] if self._tokens else "its end"
        return invalid_argument("filter", f"{self._text!r} is not understood at {at}")

    def _take(self, *allowed: str) -> str:
        """Remove and return the next token if it is one of these; "" otherwise."""
        return self._tokens.pop(0) if self._tokens and self._tokens[0] in allowed else ""

    def _expect(self, *allowed: str) -> str:
        """Remove and return the next token: one of these, or any value where none are given."""
        is_value = self._tokens and self._tokens[0] not in _WORDS and self._tokens[0][0] not in "()=<>!:"
        if not (self._tokens and (self._tokens[0] in allowed if allowed else is_value)):
            raise self._error()
        return self._tokens.pop(0)

    def _all_of(self) -> Test:
        tests = [self._any_of()]
        while self._take("AND"):
            tests.append(self._any_of())
        return lambda values: all(test(values) for test in tests)

    def _any_of(self) -> Test:
        tests = [self._one()]
        while self._take("OR"):
            tests.append(self._one())
        return lambda values: any(test(values) for test in tests)

    def _one(self) -> Test:
        if self._take("NOT"):
            test = self._one()
            return lambda values: not test(values)
        if self._take("("):
            test = self._all_of()
            self._expect(")")
            return test
        name = self._expect()
        if name == "in_context" and self._contexts_of is not None:
            self._expect("(")
            context, contexts_of = _unquoted(self._expect()), self._contexts_of
            self._expect(")")
            return lambda values: context in contexts_of(str(values["name"]))
        operator = self._expect("=", "!=", ":", *_ORDER)
        if not self._take("("):
            return self._compare(name, operator, _unquoted(self._expect()))
        tests = [self._compare(name, operator, _unquoted(self._expect()))]
        while self._take("OR"):
            tests.append(self._compare(name, operator, _unquoted(self._expect())))
        self._expect(")")
        return lambda values: any(test(values) for test in tests)

    def _compare(self, name: str, operator: str, wanted: str) -> Test:
        top, *keys = name.split(".")
        if _camel(top) not in self._fields:
            raise invalid_argument(
                "filter", f"{name!r} is no field: {', '.join(self._fields)} are, and fields below them"
            )
        path = [_camel(top), *keys]
        if operator in _ORDER:
            bound, order = _ordered(name, wanted), _ORDER[operator]
            return lambda values: (value := _at(values, path)) is not None and order(_ordered(name, value), bound)
        if operator == ":":
            return lambda values: _holds(_at(values, path), wanted)
        return lambda values: (str(_at(values, path) or "") == wanted) == (operator == "=")


def _holds(value: Any, wanted: str) -> bool:
    """Return whether a value is there (`*`), has an item or a key, or holds a text."""
    if value is None or wanted == "*":
        return value is not None
    return wanted in (value if isinstance(value, list | Mapping) else str(value))


def _ordered(name: str, value: Any) -> Any:
    """Return what a field's values are ordered by: severities, times, numbers."""
    if name == "severity":
        if value not in SEVERITIES:
            raise invalid_argument("filter", f"{value!r} is no severity: {', '.join(SEVERITIES)}")
        return SEVERITIES.index(value)
    try:
        if name.lower().endswith(("time", "timestamp")):
            moment = datetime.fromisoformat(str(value))
            return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
        return float(value)
    except ValueError:
        raise invalid_argument(
            "filter", f"{value!r} is neither a number nor, where a time is compared, RFC 3339"
        ) from None


def _at(values: Any, path: list[str]) -> Any:
    """Return what is at a path of JSON; keys of maps are taken as they are, names of fields in either spelling."""
    for name in path:
        values = values.get(name, values.get(_camel(name))) if isinstance(values, Mapping) else None
    return values


def _camel(name: str) -> str:
    return re.sub(r"_([a-z])", lambda match: match[1].upper(), name)


def _unquoted(text: str) -> str:
    return re.sub(r"\\(.)", r"\1", text[1:-1]) if text.startswith('"') else text
