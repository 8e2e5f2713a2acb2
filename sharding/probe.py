"""A look at some files of a source before its job is launched: what cannot be read, and what the rest is like.

Up to 1,000 files are drawn, one from each of as many equal stretches of the listing, always the same ones of a listing.
A process of its own reads and checks them as the job does, so that a file that ends its decoder, or never lets it end,
costs no more than `TIME_LIMIT_S`. Small sources are not probed where the job runs on this machine
(sharding.limits.is_worth_probing).
"""

from __future__ import annotations

import contextlib
import math
import multiprocessing
import random
import re
import time
import warnings
from collections import Counter as CountedWords
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection

from contracts import storage
from contracts.artifacts import Rejected
from contracts.config import ShardingSection
from contracts.errors import DataError, TryAgain
from contracts.process import end_with_parent
from records.decode import UndecodableImage
from records.statistics import Counter, Tally
from sharding.limits import MAX_NAMED, certain_to_fail, encode_name, encode_path, name_some
from sharding.sources import Reference, remote_uri
from sharding.sources.fields import Fields
from sharding.sources.reference import NO_CLASS
from sharding.write.check import Checks
from sharding.write.reading import read_samples
from sharding.write.sample import accept

MOST_FILES = 1_000
TIME_LIMIT_S = 10.0
# A sample proves nothing; with this chance the limit is taken to be passed although it is not.
ERROR_CHANCE = 1e-9
# Files that end the process are passed over, each at the cost of another process.
_MOST_ENDS = 3
_REQUESTS = 64
# A class of which so many files were drawn, and none can be read, is named.
_LEAST_OF_CLASS = 3


@dataclass(frozen=True)
class ProbeResult:
    """What was found in the files that were drawn."""

    total_files: int
    """Files of the source."""
    total_bytes: int
    """Their bytes, by the listing."""
    rejected: tuple[Rejected, ...]
    """The drawn files that cannot be used."""
    accepted: int
    """Number of those that can."""
    accepted_bytes: int
    """Bytes of these, by the listing."""
    stored_bytes: int
    """Bytes of these as the shards hold them, after changes."""
    tally: Tally
    """Formats, modes and sizes of these."""
    unreadable_classes: tuple[str, ...] = ()
    """Classes of which at least three files were drawn, none of them readable."""
    ended: tuple[str, ...] = ()
    """Files that ended the process that looked at them. The job tries them again, so they are not counted."""
    stopped: str = ""
    """Why not all drawn files were looked at; empty: all were."""
    kinds: dict[str, tuple[int, str]] = field(default_factory=dict)
    """Number and first path of each kind of rejected files, by reason; numbers in a reason are left out."""

    @property
    def probed(self) -> int:
        """Number of files that were looked at."""
        return len(self.rejected) + self.accepted


def probe(
    references: Iterable[Reference],
    count: int,
    source_uri: str,
    section: ShardingSection,
    classes: Sequence[bytes],
    *,
    time_limit_s: float = TIME_LIMIT_S,
) -> ProbeResult:
    """Look at some files of a listing.

    Args:
        references: The listing; it is read once, and need not fit into memory.
        count: Their number.
        source_uri: What their paths are relative to.
        section: The configuration.
        classes: Names of the classes.
        time_limit_s: Seconds after which no further file is looked at.

    Raises:
        DataError: A file may not be read, or the share of files that cannot be used is certain to pass
            `sharding.max_rejected_fraction` (`is_certain`).
        StorageError: The source cannot be read.
    """
    fields = Fields.of(section)
    sample, total_bytes = _draw(references, count)
    if fields is not None and fields.image is None:
        # Rows were checked when they were listed, and bytes may be any.
        return ProbeResult(count, total_bytes, (), 0, 0, 0, Tally())
    counter = Counter()
    rejected: list[Rejected] = []
    ended: list[str] = []
    by_class: CountedWords[int] = CountedWords()
    unreadable: CountedWords[int] = CountedWords()
    accepted = accepted_bytes = stored_bytes = 0
    stopped = ""
    for reference, found in _look_at(sample, source_uri, fields, Checks.of(section), time_limit_s):
        if reference is None:
            stopped = str(found)
            continue
        path = encode_path(reference.path)
        if found is None:
            ended.append(path)
            continue
        by_class[reference.label] += 1
        if isinstance(found, str):
            rejected.append(Rejected(path=path, reason=found))
            unreadable[reference.label] += 1
        else:
            image_format, mode, changes, width, height, num_bytes = found
            counter.add(image_format, mode, changes, width, height)
            accepted += 1
            accepted_bytes += reference.source_bytes
            stored_bytes += num_bytes
    gone = sorted(n for n, times in unreadable.items() if times == by_class[n] >= _LEAST_OF_CLASS and n != NO_CLASS)
    result = ProbeResult(
        total_files=count,
        total_bytes=total_bytes,
        rejected=tuple(rejected),
        accepted=accepted,
        accepted_bytes=accepted_bytes,
        stored_bytes=stored_bytes,
        tally=counter.total(),
        unreadable_classes=tuple(encode_name(classes[label]) for label in gone),
        ended=tuple(ended),
        stopped=stopped,
        kinds=_sort_by_kind(rejected),
    )
    _require_readable(result, section.max_rejected_fraction, f"sharding.source {storage.display(source_uri)}")
    return result


def is_certain(result: ProbeResult, limit: float) -> bool:
    """Whether the share of rejected files is certain to pass a limit.

    Either the files that were found are too many by themselves, or so many would be drawn with a chance below 10^-9 if
    the share in the whole source were the limit: the exact one-sided binomial (Clopper-Pearson) bound. It holds for
    draws from stretches whose shares differ as well: there large numbers are less likely (Hoeffding, 1956, "On the
    distribution of the number of successes in independent trials", theorem 4).
    """
    found = len(result.rejected)
    return certain_to_fail(found, result.total_files, limit) or tail(result.probed, found, limit) < ERROR_CHANCE


def tail(num: int, least: int, share: float) -> float:
    """Return the chance of at least `least` hits in `num` independent draws that hit with chance `share`."""
    if least <= 0 or share >= 1:
        return 1.0
    if share <= 0:
        return 0.0
    logs = (
        math.lgamma(num + 1)
        - math.lgamma(hits + 1)
        - math.lgamma(num - hits + 1)
        + hits * math.log(share)
        + (num - hits) * math.log1p(-share)
        for hits in range(least, num + 1)
    )
    return min(1.0, math.fsum(map(math.exp, logs)))


def describe_probe(result: ProbeResult) -> list[str]:
    """Return what was found, in lines of words."""
    lines = [f"{result.probed} of {result.total_files} files were looked at: {len(result.rejected)} cannot be used"]
    for reason, (count, path) in result.kinds.items():
        lines.append(f"  {count}: {reason} ({path}{', ...' if count > 1 else ''})")
    if result.accepted:
        for name, counts in (("formats", result.tally.formats), ("modes", result.tally.modes)):
            if counts:
                lines.append(f"  {name}: " + ", ".join(f"{word} {count}" for word, count in counts.items()))
        if result.tally.widths is not None and result.tally.heights is not None:
            (least_w, most_w), (least_h, most_h) = result.tally.widths, result.tally.heights
            lines.append(f"  {least_w} to {most_w} pixels wide, {least_h} to {most_h} high")
        lines.append(f"  {result.accepted_bytes // result.accepted} bytes a file on average")
    if result.unreadable_classes:
        lines.append(f"  warning: no readable file was drawn of class {name_some(result.unreadable_classes)}")
    if result.ended:
        lines.append(f"  warning: a decoder was ended by {name_some(result.ended)}; the job rejects what does so twice")
    if result.stopped:
        lines.append(f"  the others were not looked at: {result.stopped}")
    return lines


def _require_readable(result: ProbeResult, limit: float, shown: str) -> None:
    """Raise DataError when the share of rejected files is certain to pass the limit."""
    if not is_certain(result, limit):
        return
    found = len(result.rejected)
    named = "".join(f"\n    {entry.path}: {entry.reason}" for entry in result.rejected[:MAX_NAMED])
    more = f"\n    ... and {found - MAX_NAMED} more" if found > MAX_NAMED else ""
    sure = "" if certain_to_fail(found, result.total_files, limit) else "; chance of an error below 1e-9"
    raise DataError(
        f"{shown}: {found} of {result.probed} files that were looked at, of {result.total_files}, cannot be used as "
        f"images{sure}:{named}{more}",
        allowed=f"at most a share of {limit:g} (sharding.max_rejected_fraction)",
        todo="repair or remove such files, or raise sharding.max_rejected_fraction; nothing was launched",
    )


def _draw(references: Iterable[Reference], count: int) -> tuple[list[Reference], int]:
    """Return one reference of each of equal stretches of the listing, in an order by chance, and all bytes."""
    chance = random.Random(count)
    num = min(MOST_FILES, count)
    wanted = iter([chance.randrange(n * count // num, (n + 1) * count // num) for n in range(num)])
    sample, total_bytes = [], 0
    following = next(wanted, -1)
    for position, reference in enumerate(references):
        total_bytes += reference.source_bytes
        if position == following:
            sample.append(reference)
            following = next(wanted, -1)
    # Where the time ends before the files do, those that were looked at are spread over the listing too.
    chance.shuffle(sample)
    return sample, total_bytes


# What is known of an accepted file: format and mode of the source, changes, width, height, bytes as stored.
_Found = tuple[str, str, tuple[str, ...], int, int, int]


def _look_at(
    sample: Sequence[Reference], source_uri: str, fields: Fields | None, checks: Checks, time_limit_s: float
) -> Iterator[tuple[Reference | None, _Found | str | None]]:
    """Yield each file with what was found in it, its reason, or None where it ended the process; last why it stopped.

    Raises:
        Exception: What the process met, other than TryAgain: the job may well get over that.
    """
    deadline = time.monotonic() + time_limit_s
    position = 0
    for _ in range(_MOST_ENDS + 1):
        with _started(source_uri, sample[position:], fields, checks) as answers:
            try:
                while position < len(sample):
                    if not answers.poll(max(0.0, deadline - time.monotonic())):
                        yield None, f"it took more than {time_limit_s:g} s"
                        return
                    answer = answers.recv()
                    if isinstance(answer, TryAgain):
                        yield None, str(answer)
                        return
                    if isinstance(answer, Exception):
                        raise answer
                    yield sample[position], answer
                    position += 1
            except EOFError:
                yield sample[position], None
                position += 1
        if position == len(sample):
            return
    yield None, f"{_MOST_ENDS + 1} files ended the process"


@contextlib.contextmanager
def _started(
    source_uri: str, sample: Sequence[Reference], fields: Fields | None, checks: Checks
) -> Iterator[Connection]:
    """Yield the answers of a process that looks at files; it is gone afterwards."""
    # Not forked: this process may have threads, and a client of the bucket.
    context = multiprocessing.get_context("spawn")
    answers, sender = context.Pipe(duplex=False)
    process = context.Process(target=_work, args=(sender, source_uri, sample, fields, checks), daemon=True)
    process.start()
    sender.close()
    try:
        yield answers
    finally:
        process.kill()
        process.join()
        process.close()
        answers.close()


def _work(
    answers: Connection, source_uri: str, sample: Sequence[Reference], fields: Fields | None, checks: Checks
) -> None:
    """Send what is found in each file, in order; this is all of the process."""
    end_with_parent()
    # As the stage does.
    warnings.filterwarnings("ignore", category=UserWarning, module=r"PIL\.")
    try:
        for reference, contents in _read(source_uri, sample, fields):
            try:
                accepted = accept(reference, contents, fields, checks, with_pixels=False)
            except UndecodableImage as reason:
                answers.send(str(reason))
                continue
            image = accepted.image
            assert image is not None, "without a field of images nothing is looked at"
            beside = sum(len(content) for content, _ in accepted.files.values()) - len(image.content)
            answers.send(
                (
                    image.source_format,
                    image.source_mode,
                    image.changes,
                    image.width,
                    image.height,
                    len(image.content) + (beside + len(reference.cells) if fields is not None else 0),
                )
            )
    except Exception as error:  # noqa: BLE001 - the entry of a process is where everything ends
        answers.send(error)


def _read(
    source_uri: str, sample: Sequence[Reference], fields: Fields | None
) -> Iterator[tuple[Reference, list[tuple[str, bytes]]]]:
    """Yield the content of the files of each sample, read as the job reads them."""
    threads = _REQUESTS if any(remote_uri(source_uri, reference.path) for reference in sample) else 0
    with contextlib.closing(read_samples(source_uri, sample, fields, threads=threads)) as found:
        yield from found


def _sort_by_kind(rejected: Iterable[Rejected]) -> dict[str, tuple[int, str]]:
    """Return number and first path of each kind of reason, the most frequent first."""
    kinds: dict[str, tuple[int, str]] = {}
    for entry in sorted(rejected, key=lambda entry: entry.path):
        kind = re.sub(r"\d+", "N", entry.reason)
        count, first = kinds.get(kind, (0, entry.path))
        kinds[kind] = (count + 1, first)
    return dict(sorted(kinds.items(), key=lambda item: -item[1][0]))
