"""The split of a sample: by a hash of its path or group, or with exact shares within each class.

By hash, a sample's split depends on its relative path alone: a new seed or new samples never move one from test to
training. A group (the pictures of a patient, a burst, a video) is hashed as a whole, so that it stays in one split.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable

from contracts.config import SPLITS, ShardingSection, SplitFractions
from contracts.errors import ConfigError, DataError
from sharding.names import encode_path

# Distinguishes the hash of a group from that of an equal path.
_GROUP_PREFIX = b"group\0"


def split_point(path: bytes) -> float:
    """Return where the hash of a path falls in [0, 1)."""
    digest = hashlib.blake2b(path, digest_size=8, person=b"shardline split").digest()
    # 53 bits are exact in a float, and keep it below 1.
    return (int.from_bytes(digest, "little") >> 11) / 2**53


def split_exactly(paths: Iterable[bytes], fractions: SplitFractions) -> dict[bytes, int]:
    """Return the splits of the samples of one class, with exact shares.

    The paths are ordered by `split_point`; the first ones are for training, the next for validation, the last for the
    test. The numbers are the shares rounded down, plus one for those of the largest remainders (of equal ones: of the
    earlier split) until all samples are divided.
    """
    ranked = sorted(paths, key=lambda path: (split_point(path), path))
    shares = [getattr(fractions, name) for name in SPLITS]
    # Rounded, since 0.1 * 30 is slightly more than 3.
    quotas = [round(share / sum(shares) * len(ranked), 6) for share in shares]
    counts = [int(quota) for quota in quotas]
    by_remainder = sorted(range(len(SPLITS)), key=lambda split: (counts[split] - quotas[split], split))
    for split in by_remainder[: len(ranked) - sum(counts)]:
        counts[split] += 1
    splits = (split for split, count in enumerate(counts) for _ in range(count))
    return dict(zip(ranked, splits, strict=True))


def check_exact(section: ShardingSection, shown: str, *, splits_given: bool, multi_label: bool) -> None:
    """Raise ConfigError where `sharding.stratify=exact` cannot hold.

    Args:
        section: Of the configuration.
        shown: How the error names the source.
        splits_given: Whether the source gives the split of any sample.
        multi_label: Whether samples have lists of labels.
    """
    reason = ""
    if splits_given:
        reason = f"{shown} gives the splits"
    elif section.group_by:
        reason = "sharding.group_by keeps groups together"
    elif multi_label:
        reason = f"the samples of {shown} have lists of labels"
    if reason:
        raise ConfigError(
            f"sharding.stratify=exact, but {reason}",
            allowed="stratify=exact where each sample has one label, and the split of each is drawn on its own",
            todo="set sharding.stratify=none",
        )


def make_group_finder(pattern: str) -> Callable[[bytes], bytes]:
    """Return a function from a path to its group: the match of the pattern's one group in the path.

    Raises:
        ConfigError: The pattern is not a regular expression with exactly one group.
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
    """Chooses splits by hash, and keeps each group in one split.

    Args:
        fractions: Shares of the splits where none is given.
    """

    def __init__(self, fractions: SplitFractions) -> None:
        self._fractions = fractions
        self._group_splits: dict[bytes, tuple[int, str]] = {}

    def record_split(self, group: bytes | None, split: int, place: str) -> None:
        """Record the split that the source gives to a sample of a group; call it before `choose`.

        Raises:
            DataError: The source gives two splits to one group.
        """
        if group is None:
            return
        first, row = self._group_splits.setdefault(group, (split, place))
        if first != split:
            raise DataError(
                f"group {encode_path(group)} is in two splits: {SPLITS[first]} ({row}) and {SPLITS[split]} ({place})",
                allowed="one split for all files of a group (sharding.group_by)",
                todo="correct the splits in the source, or unset sharding.group_by",
            )

    def choose(self, path: bytes, group: bytes | None, source_split: int | None) -> int:
        """Return the split of a sample: that of the source, that of its group, or one by hash."""
        if source_split is not None:
            return source_split
        if group is None:
            return self._draw(path)
        if group in self._group_splits:
            return self._group_splits[group][0]
        return self._draw(_GROUP_PREFIX + group)

    def _draw(self, name: bytes) -> int:
        point, end, last = split_point(name), 0.0, 0
        for split, split_name in enumerate(SPLITS):
            if share := getattr(self._fractions, split_name):
                end, last = end + share, split
                if point < end:
                    return split
        # The fractions may sum to a little less than 1.
        return last
