"""States by colour, word and shape: of a run, a stage, a gate."""

from __future__ import annotations

# By state: the class of its colour, and its shape in a square of 16.
_CHECK = "M4.5 8.3l2.4 2.4 4.6-5"
_CROSS = "M5 5l6 6M11 5l-6 6"
SHAPES: dict[str, tuple[str, str]] = {
    "succeeded": ("good", _CHECK),
    "done": ("good", _CHECK),
    "passed": ("good", _CHECK),
    "proven": ("good", _CHECK),
    "kept": ("good", _CHECK),
    "reused": ("good", "M11.2 6.2A3.7 3.7 0 1 0 11.7 8.6M11.6 3.6V6.4H8.8"),
    "running": ("live", "M6.2 4.8v6.4L11.4 8z"),
    "waiting": ("idle", "M8 4.4V8l2.4 1.6"),
    "silent": ("warning", "M5 8h.01M8 8h.01M11 8h.01"),
    "unknown": ("warning", "M6 6.2a2 2 0 1 1 2.6 1.9v1M8 11.4h.01"),
    "unreadable": ("warning", "M8 4.2v4.6M8 11.4h.01"),
    "stopped": ("warning", "M5.6 5.6h4.8v4.8H5.6z"),
    "interrupted": ("warning", "M6.2 5v6M9.8 5v6"),
    "unproven": ("warning", "M8 4.2v4.6M8 11.4h.01"),
    "not run": ("idle", "M5 8h6"),
    "not started": ("idle", "M5 8h6"),
    "failed": ("bad", _CROSS),
}
_UNKNOWN = ("idle", "M5 8h6")


def colour(state: str) -> str:
    """Return the class of a state's colour: good, warning, bad, live or idle."""
    return SHAPES.get(state, _UNKNOWN)[0]


def sign(state: str) -> str:
    """Return the path of a state's sign."""
    return SHAPES.get(state, _UNKNOWN)[1]
