"""Conditions of dsl.If, written by kfp's compiler in CEL: comparisons of parameters with constants, and, or, not.

What cannot be read ends the run with an error: a gate that nobody could read must not look like one that said no. So
does a comparison of unlike types, of a text with a number. CEL is kinder in two places: there `==` of unlike types is
false (https://github.com/google/cel-spec/blob/master/doc/langdef.md#equality), and `||` and `&&` hide an error of one
side where the other decides. On like types both say the same: a test asks CEL itself.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping
from typing import Any

# The compiler escapes nothing in a text: one with a quote in it cannot be read, here as in CEL.
_TOKEN = re.compile(
    r"\s*(?:(?P<parameter>inputs\.parameter_values\['(?P<name>[^']*)'\])"
    r"|'(?P<text>[^'\\\n]*)'"
    r"|(?P<number>-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?)"
    r"|(?P<word>[A-Za-z_]+)"
    r"|(?P<sign>==|!=|<=|>=|&&|\|\||[<>!()]))"
)
# Of a text that becomes a number: a whole one, or any.
_NUMBER = {True: re.compile(r"-?\d+", re.ASCII), False: re.compile(r"-?\d+(\.\d*)?([eE][+-]?\d+)?", re.ASCII)}
_COMPARE: dict[str, Callable[[Any, Any], bool]] = {
    "==": operator.eq,
    "!=": operator.ne,
    "<=": operator.le,
    ">=": operator.ge,
    "<": operator.lt,
    ">": operator.gt,
}
_CONSTANTS = {"true": True, "false": False}


class UnreadableCondition(ValueError):
    """A condition, or a value in it, cannot be read."""


def evaluate(condition: str, parameters: Mapping[str, Any]) -> bool:
    """Return what a condition says.

    Args:
        condition: As the compiler writes it.
        parameters: The task's own inputs by name.

    Raises:
        UnreadableCondition: A value is missing or of an unlike type, or it is not what kfp's compiler writes.
    """
    reader = _Reader(condition, parameters)
    value = reader.either()
    reader.end()
    return reader.truth(value)


class _Reader:
    def __init__(self, condition: str, parameters: Mapping[str, Any]) -> None:
        self._condition, self._parameters = condition, parameters
        self._tokens: list[tuple[str, str]] = []
        position = 0
        while condition[position:].strip():
            match = _TOKEN.match(condition, position)
            if match is None:
                raise self._unreadable(f"{condition[position : position + 20]!r} is none of its words")
            kind = match.lastgroup or ""
            kind = "parameter" if kind == "name" else kind
            self._tokens.append((kind, match.group("name" if kind == "parameter" else kind)))
            position = match.end()

    def either(self) -> Any:
        value = self._both()
        while self._take("||"):
            # Both sides are read: what cannot be read is found whatever the other side says.
            left, right = self.truth(value), self.truth(self._both())
            value = left or right
        return value

    def end(self) -> None:
        if self._tokens:
            raise self._unreadable(f"{self._tokens[0][1]!r} was not expected")

    def truth(self, value: Any) -> bool:
        if not isinstance(value, bool):
            raise self._unreadable(f"{value!r} is neither true nor false")
        return value

    def _both(self) -> Any:
        value = self._comparison()
        while self._take("&&"):
            left, right = self.truth(value), self.truth(self._comparison())
            value = left and right
        return value

    def _comparison(self) -> Any:
        left = self._term()
        for sign, compare in _COMPARE.items():
            if self._take(sign):
                right = self._term()
                if _kind(left) is not _kind(right):
                    raise self._unreadable(f"{left!r} cannot be compared with {right!r}")
                return compare(left, right)
        return left

    def _term(self) -> Any:
        if self._take("!"):
            return not self.truth(self._term())
        if self._take("("):
            value = self.either()
            self._expect(")")
            return value
        if not self._tokens:
            raise self._unreadable("it ends too early")
        kind, text = self._tokens.pop(0)
        if kind == "parameter":
            return self._parameter(text)
        if kind == "text":
            return text
        if kind == "number":
            return int(text) if text.lstrip("-").isdecimal() else float(text)
        if kind == "word" and text in _CONSTANTS:
            return _CONSTANTS[text]
        if kind == "word" and text in ("int", "double"):
            self._expect("(")
            value = self.either()
            self._expect(")")
            return self._number(value, whole=text == "int")
        raise self._unreadable(f"{text!r} was not expected")

    def _parameter(self, name: str) -> Any:
        value = self._parameters.get(name)
        if value is None:
            raise self._unreadable(f"{name} has no value")
        return value

    def _number(self, value: Any, *, whole: bool) -> float:
        # Python reads more into a text than CEL does: blanks, underscores.
        readable = _NUMBER[whole].fullmatch(value) if isinstance(value, str) else _kind(value) is float
        if not readable:
            raise self._unreadable(f"{value!r} is no number")
        number = int(value) if whole else float(value)
        if abs(number) >= 2**63:
            raise self._unreadable(f"{value!r} is out of range")
        return number

    def _take(self, sign: str) -> bool:
        if self._tokens and self._tokens[0] == ("sign", sign):
            self._tokens.pop(0)
            return True
        return False

    def _expect(self, sign: str) -> None:
        if not self._take(sign):
            raise self._unreadable(f"{sign!r} is missing")

    def _unreadable(self, why: str) -> UnreadableCondition:
        return UnreadableCondition(f"the condition {self._condition!r} cannot be read: {why}")


def _kind(value: Any) -> type:
    if isinstance(value, bool):
        return bool
    return float if isinstance(value, (int, float)) else type(value)
