"""Which split a file goes to when the source does not say: by a hash of its path, or of the group that it belongs to.

A group is what must stay together: one patient's pictures, one burst, one video. In two splits they would leak from
training into the test.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from contracts.config import SPLITS, SplitFractions
from contracts.errors import ConfigError, DataError
from sharding.limits import encode_path
from sharding.plan import find_split_ends, split_at, split_point

# A group and a path of the same bytes are different things: their hashes start differently.
_GROUP_PREFIX = b"group\0"


def make_group_finder(pattern: str) -> Callable[[bytes], bytes]:
    """Return a function from a path to its group: what the one group of a regular expression finds in it.

    Raises:
        ConfigError: The pattern is no regular expression with exactly one group.
    """
    allowed = "a regular expression with one group, searched in each path, e.g. (patient[0-9]+)"
    try:
        compiled = re.compile(pattern.encode())
    except re.error as error:
        raise ConfigError(
            f"sharding.group_by = {pattern!r} is no regular expression: {error}",
            allowed=allowed,
            todo="correct the pattern",
        ) from None
    if compiled.groups != 1:
        raise ConfigError(
            f"sharding.group_by = {pattern!r} has {compiled.groups} groups",
            allowed=allowed,
            todo="put parentheses around what names the group, and (?:...) around the rest",
        )

    def find(path: bytes) -> bytes:
        match = compiled.search(path)
        if match is None or not match[1]:
            raise DataError(
                f"sharding.group_by = {pattern!r} finds no group in {encode_path(path)}",
                allowed="a pattern that finds a group in every path",
                todo="widen the pattern, or move files without a group out of the source",
            )
        return match[1]

    return find


class Splitter:
    """Decides about splits, and sees to it that no group straddles one.

    Args:
        fractions: Shares of the splits where nothing is given.
    """

    def __init__(self, fractions: SplitFractions) -> None:
        self._ends = find_split_ends(fractions)
        self._given: dict[bytes, tuple[int, str]] = {}

    def learn(self, group: bytes | None, given: int, where: str) -> None:
        """Take in a split that the source gives, before any is chosen.

        Raises:
            DataError: Another file of the same group was given another split.
        """
        if group is None:
            return
        known, there = self._given.setdefault(group, (given, where))
        if known != given:
            raise DataError(
                f"group {encode_path(group)} is in two splits: {SPLITS[known]} ({there}) and {SPLITS[given]} ({where})",
                allowed="one split for all files of a group (sharding.group_by)",
                todo="correct the splits in the source, or unset sharding.group_by",
            )

    def choose(self, path: bytes, group: bytes | None, given: int | None) -> int:
        """Return the split of a file: the given one, its group's, or that of a hash."""
        if given is not None:
            return given
        if group is None:
            return split_at(split_point(path), self._ends)
        if group in self._given:
            return self._given[group][0]
        return split_at(split_point(_GROUP_PREFIX + group), self._ends)
