"""Order of class names: by number where every name is a whole number, else by their UTF-8 bytes.

One order for class folders and for every kind of list, so that converting a list moves no label.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

# More digits are identifiers, and int() refuses thousands of them.
_WHOLE_NUMBER = re.compile(rb"[+-]?[0-9]{1,18}")


def sort_classes(names: Iterable[bytes]) -> list[bytes]:
    """Return class names in order, each once; of equal numbers (7, 007) the bytes decide."""
    classes = sorted(set(names))
    if all(map(_WHOLE_NUMBER.fullmatch, classes)):
        classes.sort(key=int)
    return classes
