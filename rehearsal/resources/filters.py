"""The grammar of filters: comparisons with AND, OR, NOT and brackets, read into one function.

    display_name="x" AND NOT state=FAILED     labels.k:*     resource.labels.id=("1" OR "2")     in_context("N")

OR binds more tightly than AND (https://google.aip.dev/160). How a comparison is made, the reader of a list
(`listing`) or of logs (`log_filter`) says. What is not understood is refused, never ignored.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from operator import ge, gt, le, lt
from typing import Any

from rehearsal.doors.errors import ServiceError, invalid

Test = Callable[[Any], bool]
Compare = Callable[[str, str, str], Test]
"""(field, operator, value) -> the test of one comparison."""
ORDER: dict[str, Callable[[Any, Any], bool]] = {">": gt, "<": lt, ">=": ge, "<=": le}

_QUOTED = r""""(?:[^"\\]|\\.)*"|'[^']*'"""
_SPACE = re.compile(r"(?:\s|--[^\n]*)*")
_FIELD = re.compile(rf"""(?!(?:AND|OR|NOT)\b)(?:{_QUOTED}|[^\s()=<>!:"'~](?:[^\s()=<>!:"'~]|{_QUOTED})*)""")
_OPERATOR = re.compile(r"=~|!~|!=|>=|<=|=|>|<|:")
_VALUE = re.compile(rf"""{_QUOTED}|(?!(?:AND|OR|NOT)\b)[^\s()"']+""")
_NOT = re.compile(r"NOT\b|-(?=[A-Za-z(\"])")


def parse_filter(
    text: str,
    compare: Compare,
    *,
    word: Callable[[str], Test] | None = None,
    functions: Mapping[str, Callable[[str], Test]] | None = None,
) -> Test:
    """Return the test that a filter is; an empty one takes everything.

    Args:
        text: The filter.
        compare: Makes the test of a comparison, and refuses a field or value that it does not know.
        word: Makes the test of a word that stands alone. Where it is given, tests that stand side by side must all
            hold; else both are refused.
        functions: Makers of tests by the names of functions of one quoted argument.

    Raises:
        ServiceError: INVALID_ARGUMENT for one that is not understood.
    """
    parser = _Parser(text, compare, word, functions or {})
    test: Test = (lambda _item: True) if parser.is_at_end() else parser.all_of()
    if not parser.is_at_end():
        raise parser.fault()
    return test


class _Parser:
    """Recursive descent over what is left of a text."""

    def __init__(
        self,
        text: str,
        compare: Compare,
        word: Callable[[str], Test] | None,
        functions: Mapping[str, Callable[[str], Test]],
    ) -> None:
        self._text, self._compare, self._word, self._functions = text, compare, word, functions
        self._at = 0

    def is_at_end(self) -> bool:
        """Whether nothing but space and remarks is left."""
        self._skip_space()
        return self._at == len(self._text)

    def fault(self) -> ServiceError:
        """Return the error for what is next."""
        return invalid("filter", f"{self._text!r} is not understood at {self._text[self._at :] or 'its end'!r}")

    def all_of(self) -> Test:
        """Read tests that must all hold."""
        tests = [self._any_of()]
        while not self.is_at_end() and self._text[self._at] != ")":
            if not self._take(r"AND\b") and self._word is None:
                raise self.fault()
            tests.append(self._any_of())
        return tests[0] if len(tests) == 1 else lambda item: all(test(item) for test in tests)

    def _any_of(self) -> Test:
        tests = [self._one()]
        while self._take(r"OR\b"):
            tests.append(self._one())
        return tests[0] if len(tests) == 1 else lambda item: any(test(item) for test in tests)

    def _one(self) -> Test:
        if self._take(_NOT):
            test = self._one()
            return lambda item: not test(item)
        if self._take(r"\("):
            test = self.all_of()
            self._expect(r"\)")
            return test
        field = self._expect(_FIELD)
        if field in self._functions and self._take(r"\("):
            argument = _unquoted(self._expect(_QUOTED))
            self._expect(r"\)")
            return self._functions[field](argument)
        operator = self._take(_OPERATOR)
        if not operator:
            if self._word is None:
                raise self.fault()
            return self._word(_unquoted(field))
        if self._take(r"\("):
            return self._values(field, operator)
        return self._compare(field, operator, _unquoted(self._expect(_VALUE)))

    def _values(self, field: str, operator: str) -> Test:
        """Read the rest of field=("a" OR "b")."""
        tests = [self._compare(field, operator, _unquoted(self._expect(_VALUE)))]
        joins = set()
        while not self._take(r"\)"):
            joins.add(self._expect(r"(?:OR|AND)\b"))
            tests.append(self._compare(field, operator, _unquoted(self._expect(_VALUE))))
        if len(joins) > 1:
            raise self.fault()
        joined = all if joins == {"AND"} else any
        return lambda item: joined(test(item) for test in tests)

    def _skip_space(self) -> None:
        if (match := _SPACE.match(self._text, self._at)) is not None:
            self._at = match.end()

    def _take(self, pattern: str | re.Pattern[str]) -> str:
        """Return what is next if it is this, and pass it; "" otherwise."""
        self._skip_space()
        match = re.compile(pattern).match(self._text, self._at)
        if match is None:
            return ""
        self._at = match.end()
        return match[0]

    def _expect(self, pattern: str | re.Pattern[str]) -> str:
        taken = self._take(pattern)
        if not taken:
            raise self.fault()
        return taken


def _unquoted(text: str) -> str:
    return re.sub(r"\\(.)", r"\1", text[1:-1]) if text[0] in "\"'" else text
