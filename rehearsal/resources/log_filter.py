"""Cloud Logging's query language, as far as a reader of job logs uses it.

Comparisons (`resource.type="ml_job"`, `resource.labels.job_id=("1" OR "2")`, `severity>=ERROR`,
`timestamp>="2026-01-01T00:00:00Z"`, `textPayload:"part"`, `=~` for a regular expression), AND (also by standing side by
side), OR, NOT and -, parentheses. What is not understood is refused, never ignored.

https://cloud.google.com/logging/docs/view/logging-query-language
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any

from rehearsal.doors.errors import invalid

Entry = Mapping[str, Any]
Test = Callable[[Entry], bool]

_TOKEN = re.compile(
    r"""\s*(?:(--[^\n]*\n?)|(\(|\)|!=|>=|<=|=~|!~|=|>|<|:|-(?=[A-Za-z("]))|("(?:[^"\\]|\\.)*")|([^\s()=<>!:"](?:[^\s()=<>!:"]|"(?:[^"\\]|\\.)*")*))"""
)
SEVERITIES = ("DEFAULT", "DEBUG", "INFO", "NOTICE", "WARNING", "ERROR", "CRITICAL", "ALERT", "EMERGENCY")
_OPERATORS = {"=", "!=", ">=", "<=", ">", "<", ":", "=~", "!~"}


def make_test(text: str) -> Test:
    """Return what says whether an entry (its JSON form) is asked for.

    Raises:
        ServiceError: INVALID_ARGUMENT: the filter is not understood.
    """
    parser = _Parser(text)
    if not parser.left:
        return lambda entry: True
    test = parser.every()
    if parser.left:
        raise parser.fault()
    return test


class _Parser:
    """Recursive descent over the tokens that are left."""

    def __init__(self, text: str) -> None:
        self._text = text
        self.left: list[str] = []
        position = 0
        while text[position:].strip():
            match = _TOKEN.match(text, position)
            if match is None:
                raise invalid("filter", f"{text!r} is not understood at {text[position:]!r}")
            position = match.end()
            if match.group(1) is None:
                self.left.append(match.group(0).strip())

    def fault(self) -> Exception:
        """Return the error for what is next."""
        return invalid("filter", f"{self._text!r} is not understood at {' '.join(self.left[:3]) or 'its end'!r}")

    def every(self) -> Test:
        """Read a whole expression: OR binds more tightly than AND here."""
        tests = [self._any()]
        while self.left and self.left[0] != ")":
            self._take("AND")
            tests.append(self._any())
        return tests[0] if len(tests) == 1 else lambda entry: all(test(entry) for test in tests)

    def _any(self) -> Test:
        tests = [self._one()]
        while self._take("OR"):
            tests.append(self._one())
        return tests[0] if len(tests) == 1 else lambda entry: any(test(entry) for test in tests)

    def _one(self) -> Test:
        if self._take("NOT") or self._take("-"):
            test = self._one()
            return lambda entry: not test(entry)
        if self._take("("):
            test = self.every()
            if not self._take(")"):
                raise self.fault()
            return test
        if not self.left or self.left[0] in ("AND", "OR", ")") or self.left[0] in _OPERATORS:
            raise self.fault()
        word = _value(self.left.pop(0))
        if not self.left or self.left[0] not in _OPERATORS:
            return lambda entry: word.lower() in str(dict(entry)).lower()
        operator = self.left.pop(0)
        if self._take("("):
            return self._values(word, operator)
        if not self.left:
            raise self.fault()
        return _comparison(word, operator, _value(self.left.pop(0)))

    def _values(self, field: str, operator: str) -> Test:
        """The rest of field=("a" OR "b")."""
        tests: list[Test] = []
        joined = ""
        while not self._take(")"):
            if tests:
                word = self.left.pop(0) if self.left else ""
                if word not in ("OR", "AND") or joined not in ("", word):
                    raise self.fault()
                joined = word
            if not self.left:
                raise self.fault()
            tests.append(_comparison(field, operator, _value(self.left.pop(0))))
        every = joined == "AND"
        return lambda entry: all(t(entry) for t in tests) if every else any(t(entry) for t in tests)

    def _take(self, token: str) -> bool:
        if self.left and self.left[0] == token:
            self.left.pop(0)
            return True
        return False


def _value(token: str) -> str:
    return re.sub(r"\\(.)", r"\1", token[1:-1]) if token.startswith('"') else token


def _comparison(field: str, operator: str, wanted: str) -> Test:
    path = re.sub(r"_([a-z])", lambda m: m.group(1).upper(), field) if "labels." not in field.lower() else field
    if operator in ("=~", "!~"):
        pattern = re.compile(wanted)
        return lambda entry: (pattern.search(str(_at(entry, path) or "")) is not None) == (operator == "=~")
    if operator in (">", "<", ">=", "<="):
        bound = _order(path, wanted)
        compare: dict[str, Callable[[Any, Any], bool]] = {
            ">": lambda a, b: a > b,
            "<": lambda a, b: a < b,
            ">=": lambda a, b: a >= b,
            "<=": lambda a, b: a <= b,
        }
        return lambda entry: (value := _at(entry, path)) is not None and compare[operator](_order(path, value), bound)
    if operator == ":":
        return lambda entry: (
            wanted.lower() in str(_at(entry, path) or "").lower() if wanted != "*" else (_at(entry, path) is not None)
        )
    return lambda entry: (_text(_at(entry, path)) == wanted.lower()) == (operator == "=")


def _order(path: str, value: Any) -> Any:
    if path == "severity":
        if str(value).upper() not in SEVERITIES:
            raise invalid("filter", f"{value!r} is no severity: {', '.join(SEVERITIES)}")
        return SEVERITIES.index(str(value).upper())
    if path.lower().endswith("timestamp"):
        try:
            return datetime.fromisoformat(str(value))
        except ValueError:
            raise invalid("filter", f"{value!r} is no time in RFC 3339") from None
    try:
        return float(value)
    except ValueError:
        raise invalid("filter", f"{value!r} has no order") from None


def _text(value: Any) -> str:
    return "" if value is None else str(value).lower()


def _at(entry: Any, path: str) -> Any:
    """Return what is at a path; a label's key may hold dots and is quoted then."""
    value, rest = entry, path
    while rest:
        if isinstance(value, Mapping) and (key := rest.strip('"')) in value:
            return value[key]
        name, _, rest = rest.partition(".")
        value = value.get(name.strip('"')) if isinstance(value, Mapping) else None
    return value
