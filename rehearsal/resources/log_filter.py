"""Cloud Logging's query language, as far as a reader of job logs uses it.

Comparisons (`resource.type="ml_job"`, `resource.labels.job_id=("1" OR "2")`, `severity>=ERROR`,
`timestamp>="2026-01-01T00:00:00Z"`, `textPayload:"part"`, `=~` for a regular expression), words, AND (also by standing
side by side), OR, NOT and -, brackets, remarks. What is not understood is refused, never ignored.

https://cloud.google.com/logging/docs/view/logging-query-language
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from google.cloud.logging_v2 import types

from rehearsal.doors.errors import invalid
from rehearsal.resources.filters import ORDER, Test, parse_filter

SEVERITIES = ("DEFAULT", "DEBUG", "INFO", "NOTICE", "WARNING", "ERROR", "CRITICAL", "ALERT", "EMERGENCY")


def make_test(text: str) -> Test:
    """Return the test of whether an entry (its JSON form) is asked for.

    Raises:
        ServiceError: INVALID_ARGUMENT: the filter is not understood, or names a field that no entry has.
    """
    return parse_filter(text, _compare, word=lambda word: lambda entry: word.lower() in str(dict(entry)).lower())


def _compare(field: str, operator: str, wanted: str) -> Test:
    path = _camel(field) if "labels." not in field.lower() else field
    known = [one.json_name for one in types.LogEntry.pb(types.LogEntry()).DESCRIPTOR.fields]
    if path.partition(".")[0] not in known:
        raise invalid("filter", f"{field!r} is no field of a log entry: {', '.join(known)} are, and fields below them")
    if operator in ("=~", "!~"):
        pattern = re.compile(wanted)
        return lambda entry: (pattern.search(str(_at(entry, path) or "")) is not None) == (operator == "=~")
    if operator in ORDER:
        bound = _order(path, wanted)
        return lambda entry: (value := _at(entry, path)) is not None and ORDER[operator](_order(path, value), bound)
    if operator == ":" and wanted == "*":
        return lambda entry: _at(entry, path) is not None
    if operator == ":":
        return lambda entry: wanted.lower() in _text(_at(entry, path))
    return lambda entry: (_text(_at(entry, path)) == wanted.lower()) == (operator == "=")


def _camel(name: str) -> str:
    return re.sub(r"_([a-z])", lambda m: m.group(1).upper(), name)


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
