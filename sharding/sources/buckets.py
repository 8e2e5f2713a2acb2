"""Class folders in a bucket: gs://BUCKET/PREFIX/CLASS/.../OBJECT, known from the listing without reading a byte.

A service gives a listing page by page, each from where the last one ended, so one process gets about 10,000 names a
second. Several share it by ranges of names: first of whole class folders, and when one of these is long, what is left
of it is halved wherever a process would else be idle. So one class of 10^8 objects is listed in parallel too.
"""

from __future__ import annotations

import uuid
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Executor, Future, wait
from dataclasses import dataclass, replace
from itertools import islice, pairwise
from pathlib import Path
from typing import Any

from contracts import storage
from contracts.config import ShardingSection
from contracts.errors import DataError, TryAgain
from contracts.stores import gcs
from sharding.limits import encode_name, name_some
from sharding.sources.layout import ALLOWED, Layout, Sorter, check_class_folders, find_layout, load_layout
from sharding.sources.names import is_ignored
from sharding.sources.parts import PART_REFERENCES, Stretch, StretchWriter

# Objects that are listed in this process, before others are started for the rest: eight pages.
FEW_OBJECTS = 8_000
# What most names are made of, in order.
_USUAL = "-./0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ_abcdefghijklmnopqrstuvwxyz"


@dataclass(frozen=True)
class NameRange:
    """Names below a folder from `start` on and before `end` (empty: to the last)."""

    start: str
    end: str
    is_after: bool = False
    """Whether `start` itself is left out."""

    def objects(self, uri: str, *, most: int = 0) -> Iterator[storage.ObjectInfo]:
        """Yield its objects, only the first `most` unless that is 0."""
        asked = most + self.is_after if most else 0
        found = gcs.list_objects(uri, recursive=True, start=self.start, end=self.end, most=asked)
        left = (entry for entry in found if not (self.is_after and entry.name == self.start))
        return islice(left, most or None)


@dataclass(frozen=True)
class Bucket:
    """What each task needs to know; the layout, which may be large, lies in a file."""

    uri: str
    section: ShardingSection
    folder: Path
    layout_path: Path


def list_few(uri: str) -> list[storage.ObjectInfo] | None:
    """Return all objects below a folder; None where there are so many that several processes are worth their start."""
    if not uri.startswith("gs://"):
        return list(storage.list_objects(uri))
    found = list(islice(storage.list_objects(uri), FEW_OBJECTS + 1))
    return found if len(found) <= FEW_OBJECTS else None


def names_at_top(entries: Iterable[storage.ObjectInfo]) -> list[str]:
    """Return the names directly in the folder that objects were listed in, folders with / at their end."""
    split = (entry.name.partition("/") for entry in entries)
    return list(dict.fromkeys(top + slash for top, slash, _ in split))


def list_bucket(
    section: ShardingSection,
    uri: str,
    folder: Path,
    entries: list[storage.ObjectInfo] | None,
    pool: Executor,
    processes: int,
) -> tuple[Layout, list[Stretch]]:
    """List the images below class folders of a bucket.

    Args:
        section: Decides about splits.
        uri: A gs:// folder.
        folder: Of this machine, for the stretches.
        entries: What `list_few` found.
        pool: Lists where that is None.
        processes: Number of its processes.

    Raises:
        ConfigError: `sharding.group_by` is no pattern.
        DataError: It is empty, or has fewer than two classes.
        StorageError: The bucket does not exist, or may not be listed.
        TryAgain: It changed while it was listed.
    """
    shown = f"sharding.source {uri}"
    if entries is not None:
        folders = _folders_of(entries)
        layout = find_layout(section, list(folders), folders.__getitem__, shown)
        stretches = [_sort_out(entries, layout, section, StretchWriter(folder, "stretch-0"))]
    else:
        layout = find_layout(
            section,
            _list_visible(uri),
            lambda name: _list_visible(storage.join(uri, name.decode())),
            shown,
        )
        bucket = Bucket(uri, section, folder, folder / f"layout-{uuid.uuid4().hex}")
        layout.save(bucket.layout_path)
        stretches = list_ranges(bucket, cut_by_folders(layout, 4 * processes), pool, processes)
        vanished = sorted(set(range(len(layout.classes))).difference(*(one.seen for one in stretches)))
        if vanished:
            names = name_some([encode_name(layout.classes[label]) for label in vanished])
            raise TryAgain(f"{uri}: class folders vanished while it was listed: {names}; run again when nobody writes")
    if not any(sum(one.split_files) + one.ignored.count for one in stretches):
        raise DataError(f"{shown} holds no object", allowed=ALLOWED, todo="check the bucket and the path")
    counted = {label for one in stretches for _, label in one.counts}
    check_class_folders([layout.classes[label] for label in sorted(counted)], shown)
    return layout, stretches


def hash_of(entry: storage.ObjectInfo) -> bytes:
    """Return what the listing knows of the content: md5 where there is one, since crc32c alone collides."""
    if entry.md5:
        return f"md5:{entry.md5}".encode()
    return f"crc32c:{entry.crc32c}".encode() if entry.crc32c else b""


def _list_visible(uri: str) -> list[bytes]:
    return [name.encode() for name in gcs.list_folders(uri) if _is_visible(name.encode())]


def _is_visible(name: bytes) -> bool:
    return name != b"" and not is_ignored(name)


def _folders_of(entries: list[storage.ObjectInfo]) -> dict[bytes, list[bytes]]:
    """Return the folders directly below the source, and those in each."""
    inner: dict[bytes, set[bytes]] = {}
    for entry in entries:
        top, *more = entry.name.encode().split(b"/")
        if more and _is_visible(top):
            inner.setdefault(top, set()).update(filter(_is_visible, more[:-1][:1]))
    return {name: list(names) for name, names in inner.items()}


def _sort_out(
    entries: Iterable[storage.ObjectInfo], layout: Layout, section: ShardingSection, writer: StretchWriter
) -> Stretch:
    sorter = Sorter(layout, section, writer.stretch)
    for entry in entries:
        _take(entry, sorter, writer)
    return writer.close()


def _take(entry: storage.ObjectInfo, sorter: Sorter, writer: StretchWriter) -> None:
    path = entry.name.encode()
    if path.endswith(b"/"):
        # A folder that some tool has made; it has no content.
        sorter.enter(path[:-1])
    elif chosen := sorter.sort_out(path):
        writer.add((path, *chosen, entry.size, entry.generation or 0, hash_of(entry), ()))


def cut_by_folders(layout: Layout, most: int) -> list[NameRange]:
    """Return ranges that together hold all names, each of about as many class folders."""
    step = max(1, -(-len(layout.folders) // most))
    cuts = ["", *(folder.decode() + "/" for folder in layout.folders[step::step]), ""]
    return [NameRange(start, end) for start, end in pairwise(cuts)]


def list_ranges(bucket: Bucket, ranges: Iterable[NameRange], pool: Executor, processes: int) -> list[Stretch]:
    """List ranges of names; return their stretches in the order of names."""
    waiting = deque(ranges)
    number = 0
    done: list[tuple[str, Stretch]] = []
    running: dict[Future[Any], NameRange] = {}
    while waiting or running:
        while waiting and len(running) < 2 * processes:
            one = waiting.popleft()
            running[pool.submit(list_range, bucket, one, number)] = one
            number += 1
        ended, _ = wait(running, return_when=FIRST_COMPLETED)
        for future in ended:
            own = running.pop(future)
            result = future.result()
            if isinstance(result, list):
                waiting.extend(result)
                continue
            stretch, rest = result
            done.append((own.start, stretch))
            if rest is None:
                continue
            if processes > 1 and len(waiting) + len(running) < processes:
                running[pool.submit(halve, bucket.uri, rest)] = rest
            else:
                waiting.append(rest)
    # Text compares as the service's UTF-8 does.
    return [stretch for _, stretch in sorted(done, key=lambda item: item[0])]


def list_range(bucket: Bucket, names: NameRange, number: int) -> tuple[Stretch, NameRange | None]:
    """List a range of names, but no more than a part; return the range that is left.

    Args:
        bucket: Where.
        names: Which.
        number: Of this call: it names the files.

    Raises:
        TryAgain: There is a class folder that was not there when those were listed.
    """
    writer = StretchWriter(bucket.folder, f"stretch-{number}")
    sorter = Sorter(load_layout(bucket.layout_path), bucket.section, writer.stretch)
    for listed, entry in enumerate(names.objects(bucket.uri), start=1):
        try:
            _take(entry, sorter, writer)
        except KeyError:
            raise TryAgain(
                f"{bucket.uri} changed while it was listed: {entry.name} is in a new class folder; run again when "
                "nobody writes"
            ) from None
        if listed == PART_REFERENCES:
            return writer.close(), NameRange(entry.name, names.end, is_after=True)
    return writer.close(), None


def halve(uri: str, names: NameRange) -> list[NameRange]:
    """Return the two ranges that a range is cut into, both with objects; the range itself where it cannot be cut.

    Asks for single names, about twelve: first for the longest start that all names of the range have in common, then
    for a letter behind it that has names on both sides.
    """
    first = list(names.objects(uri, most=2))
    if not first:
        return []
    low, end = first[0].name, names.end

    def any_from(start: str) -> bool:
        return (not end or start < end) and any(NameRange(start, end).objects(uri, most=1))

    common, most = 0, len(low)
    while common < most:
        middle = (common + most + 1) // 2
        if any_from(after(low[:middle])):
            most = middle - 1
        else:
            common = middle
    if common == len(low):
        # All names begin with the first one.
        return [names]
    start = low[:common]
    # There are names behind the first one's own letter.
    cut = after(low[: common + 1])
    letters = [letter for letter in _USUAL if start + letter > cut and (not end or start + letter < end)]
    while letters:
        place = len(letters) // 2
        if any_from(start + letters[place]):
            cut = start + letters[place]
            break
        end = start + letters[place]
        letters = letters[:place]
    return [replace(names, end=cut), NameRange(cut, end)]


def after(prefix: str) -> str:
    """Return the first name after all that begin with a prefix, which is not empty."""
    last = ord(prefix[-1])
    # The surrogates are no characters: UTF-8 goes from U+D7FF to U+E000.
    return prefix[:-1] + chr(0xE000 if last == 0xD7FF else min(last + 1, 0x10FFFF))
