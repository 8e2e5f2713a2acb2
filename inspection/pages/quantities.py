"""Formatting of numbers with units, and shortening of text for display."""

from __future__ import annotations

import math
import re
from datetime import UTC, datetime

NBSP = "\u00a0"
NOT_MEASURED = "not measured"
# Control characters, lone surrogates (invalid in UTF-8), and marks that change the text direction.
UNPRINTABLE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff\u200e\u200f\u202a-\u202e\u2066-\u2069\ufffe\uffff]")


def shorten(value: str, limit: int) -> str:
    """Return a string cut to a number of characters, with an ellipsis if it was cut."""
    return value if len(value) <= limit else value[: limit - 1] + "…"


def number(value: float) -> str:
    """Return a number with three significant digits, and thousands in groups."""
    if value == 0:
        return "0"
    if abs(value) >= 100:
        return f"{value:,.0f}"
    if abs(value) < 0.001:
        return f"{value:.2e}"
    digits = 2 if abs(value) < 10 else 1
    shown = f"{value:.{digits}f}" if abs(value) >= 1 else f"{value:.3g}"
    return shown.rstrip("0").rstrip(".") if "." in shown else shown


def metric_number(value: float) -> str:
    """Return a metric with four significant digits: two runs are compared by them."""
    if value == 0:
        return "0"
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.3e}" if abs(value) < 0.001 else f"{value:.4g}"


def count(value: float) -> str:
    """Return a count; a mean of counts keeps its decimals."""
    return f"{value:,.0f}" if float(value).is_integer() else number(value)


def percent(value: float) -> str:
    """Return a fraction in percent."""
    shown = value * 100
    if 0 < abs(shown) < 0.1:
        return f"<{NBSP}0.1{NBSP}%"
    return f"{shown:.0f}{NBSP}%" if abs(shown) >= 99.95 or shown == 0 else f"{shown:.1f}{NBSP}%"


def exact_percent(value: float) -> str:
    """Return a fraction in percent with two decimals: for accuracies, where one image in thousands matters."""
    return f"{value * 100:.2f}{NBSP}%"


def seconds(value: float) -> str:
    """Return seconds in a suitable unit."""
    # Rounded before splitting: 179.7 is 3 min 0 s, not 2 min 60 s.
    whole = round(value) if math.isfinite(value) else value
    if whole >= 7200:
        return f"{number(value / 3600)}{NBSP}h"
    if whole >= 120:
        return f"{whole // 60}{NBSP}min {whole % 60}{NBSP}s"
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if value >= size:
            return f"{number(value / size)}{NBSP}{unit}"
    return f"{number(value / 1e-9)}{NBSP}ns" if value else f"0{NBSP}s"


def milliseconds(value: float) -> str:
    """Return seconds in milliseconds, for a column in which they are compared."""
    return f"{value * 1e3:,.3f}" if 0 < value < 1e-4 else f"{value * 1e3:,.2f}"


def size(value: float) -> str:
    """Return bytes in a suitable unit, in powers of ten."""
    for unit, least in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if abs(value) >= least:
            return f"{number(value / least)}{NBSP}{unit}"
    return f"{number(value)}{NBSP}B"


def usd(value: float) -> str:
    """Return US dollars."""
    return f"{value:,.2f}{NBSP}USD" if value >= 0.01 or value == 0 else f"{value:.2g}{NBSP}USD"


def flops(value: float) -> str:
    """Return floating point operations in a suitable unit."""
    for unit, power in (("TFLOP", 12), ("GFLOP", 9), ("MFLOP", 6)):
        if value >= 10**power:
            return f"{number(value / 10**power)}{NBSP}{unit}"
    return f"{number(value)}{NBSP}FLOP"


def several(number_of: int, thing: str, things: str = "") -> str:
    """Return a number of things: 1 worker, 2 workers, 2 classes."""
    return f"{number_of:,} {thing}" if number_of == 1 else f"{number_of:,} {things or thing + 's'}"


def instant(value: float) -> str:
    """Return a time, in seconds since the epoch, as date and time in UTC; out-of-range values as numbers."""
    try:
        return f"{datetime.fromtimestamp(value, UTC):%Y-%m-%d %H:%M:%S}{NBSP}UTC"
    except (ValueError, OverflowError, OSError):
        return repr(value)
