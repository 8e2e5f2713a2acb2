"""A look at some files before the job: what it finds, when it refuses, and what bounds it."""

import math
import os
from pathlib import Path

import pytest

from contracts import storage
from contracts.config import ShardingSection
from contracts.errors import DataError
from records.convert import Changes
from records.statistics import Tally
from rehearsal.gcs import BucketServer
from sharding import probe as probe_module
from sharding.limits import certain_to_fail, is_worth_probing
from sharding.probe import (
    MOST_FILES,
    ProbeResult,
    _draw,
    _look_at,
    describe_probe,
    is_certain,
    probe,
    tail,
)
from sharding.sources import Reference
from sharding.write.check import Checks

CLASSES = (b"ant", b"bee", b"cow")
pytestmark = pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")


def reference_of(path, number, label=0):
    status = path.stat()
    return Reference(os.fsencode(path), label, number % 3, status.st_size, status.st_mtime_ns)


def references_of(source):
    paths = sorted(source.glob("*/*"))
    return [reference_of(path, n, CLASSES.index(os.fsencode(path.parent.name))) for n, path in enumerate(paths)]


def look(source, **options):
    section = ShardingSection(source=str(source), **options)
    references = references_of(source)
    return probe(iter(references), len(references), storage.normalise(source), section, CLASSES)


def test_sound_files_are_described(source):
    found = look(source)
    assert (found.probed, found.accepted, found.rejected, found.stopped) == (60, 60, (), "")
    assert found.tally.formats == {"png": 30, "jpeg": 30} and found.tally.widths == (10, 10)
    assert (
        found.total_bytes
        == found.accepted_bytes
        == found.stored_bytes
        == sum(path.stat().st_size for path in source.glob("*/*"))
    )
    told = "\n".join(describe_probe(found))
    assert "60 of 60 files" in told and "formats: jpeg 30, png 30" in told and "10 to 10 pixels wide" in told


def test_what_changes_make_of_the_bytes_is_seen(source):
    found = look(source, resize=8)
    assert found.stored_bytes != found.accepted_bytes and found.tally.widths == (8, 8)


def test_too_many_unreadable_files_are_refused_by_name(source):
    for number in range(0, 60, 3):
        next(source.glob(f"ant/{number:02d}.*")).write_bytes(b"no image" if number % 2 else b"")
    with pytest.raises(DataError) as caught:
        look(source)
    assert "20 of 60 files that were looked at, of 60, cannot be used as images:" in caught.value.given
    assert "ant/00.png: the file is empty" in caught.value.given and "... and 10 more" in caught.value.given
    assert "1e-9" not in caught.value.given, "all were looked at: that is no estimate"
    assert "sharding.max_rejected_fraction" in caught.value.allowed
    found = look(source, max_rejected_fraction=0.5)
    assert len(found.rejected) == 20 and found.unreadable_classes == ("ant",)
    assert [count for count, _ in found.kinds.values()] == [10, 10]
    assert "no readable file was drawn of class ant" in "\n".join(describe_probe(found))


def test_a_file_that_never_ends_costs_no_more_than_the_time_limit(source):
    os.mkfifo(source / "ant" / "never.png")
    references = references_of(source)
    section = ShardingSection(source=str(source))
    found = probe(references, 61, storage.normalise(source), section, CLASSES, time_limit_s=4.0)
    assert found.stopped == "it took more than 4 s" and found.probed < 61
    assert "the others were not looked at" in describe_probe(found)[-1]


class EndsTheProcess(Changes):
    """Ends the process that looks at a second file."""

    def __bool__(self) -> bool:
        if vars(probe_module).setdefault("looked", 0):
            os.abort()
        vars(probe_module)["looked"] = 1
        return False


def test_a_file_that_ends_its_process_is_named_and_passed_over(source):
    references = references_of(source)[:5]
    checks = Checks("decode", EndsTheProcess())
    found = list(_look_at(references, storage.normalise(source), None, checks, 60.0))
    # Each process looks at one file, and ends at the next.
    assert [answer is None for _, answer in found] == [False, True, False, True, False]
    assert [one for one, _ in found] == references
    found = list(_look_at(references_of(source), storage.normalise(source), None, checks, 60.0))
    assert found[-1] == (None, "4 files ended the process") and len(found) == 9


def test_a_file_that_may_not_be_read_is_an_error(source):
    (source / "ant" / "00.png").unlink()
    references = references_of(source)
    gone = reference_of(source / "ant" / "06.png", 0)._replace(path=os.fsencode(source / "ant" / "00.png"))
    found = probe([gone, *references], 60, storage.normalise(source), ShardingSection(source=str(source)), CLASSES)
    assert "vanished" in found.stopped, "the job may get over that"
    (source / "ant" / "06.png").chmod(0)
    if os.geteuid() != 0:
        with pytest.raises(DataError, match="permission denied"):
            look(source)


def test_objects_of_a_bucket_are_read(bucket_server: BucketServer, source: Path) -> None:
    for path in source.glob("*/*"):
        storage.publish(f"gs://bucket-1/raw/{path.relative_to(source).as_posix()}", path.read_bytes())
    references = [
        Reference(info.name.encode(), 0, 0, info.size, info.generation or 0)
        for info in storage.list_objects("gs://bucket-1/raw")
    ]
    section = ShardingSection(source="gs://bucket-1/raw")
    found = probe(iter(references), 60, "gs://bucket-1/raw", section, CLASSES)
    assert (found.probed, found.accepted, found.stopped) == (60, 60, "")


def test_files_are_drawn_from_the_whole_listing_and_always_the_same():
    def listing(count):
        return (Reference(b"%d" % n, 0, 0, 1, 0) for n in range(count))

    sample, total_bytes = _draw(listing(50_000), 50_000)
    numbers = sorted(int(reference.path) for reference in sample)
    assert len(numbers) == MOST_FILES and total_bytes == 50_000
    assert all(50 * n <= number < 50 * n + 50 for n, number in enumerate(numbers))
    assert sample == _draw(listing(50_000), 50_000)[0]
    # In an order by chance, so that the first tenth of them comes from everywhere.
    assert len({int(reference.path) // 5_000 for reference in sample[:100]}) == 10
    assert len(_draw(listing(7), 7)[0]) == 7 and _draw(listing(0), 0) == ([], 0)


@pytest.mark.parametrize(("num", "least", "share"), [(20, 3, 0.1), (10, 10, 0.5), (50, 1, 0.02), (30, 0, 0.3)])
def test_the_tail_is_that_of_the_binomial_distribution(num, least, share):
    exact = sum(math.comb(num, hits) * share**hits * (1 - share) ** (num - hits) for hits in range(least, num + 1))
    assert tail(num, least, share) == pytest.approx(exact, rel=1e-9)


def test_only_what_is_certain_refuses():
    def result(rejected, probed, total):
        entries = (None,) * rejected
        return ProbeResult(total, total, entries, probed - rejected, 1, 1, Tally())

    assert not is_certain(result(10, 1000, 10**8), 0.01) and not is_certain(result(30, 1000, 10**8), 0.01)
    assert is_certain(result(45, 1000, 10**8), 0.01)
    # One of a million is certain where none may be.
    assert is_certain(result(1, 1000, 10**6), 0.0) and not is_certain(result(0, 1000, 10**6), 0.0)
    assert not is_certain(result(1000, 1000, 1000), 1.0)
    # Of a source that was looked at whole, the share is known.
    assert is_certain(result(11, 1000, 1000), 0.01) and not is_certain(result(10, 1000, 1000), 0.01)


def test_a_job_is_certain_to_fail_once_the_others_cannot_help():
    assert not certain_to_fail(0, 100, 0.0) and certain_to_fail(1, 100, 0.0)
    assert not certain_to_fail(10, 1000, 0.01) and certain_to_fail(11, 1000, 0.01)


def test_small_jobs_of_this_machine_are_not_probed():
    assert not is_worth_probing(1797, on_other_machines=False) and is_worth_probing(10**6, on_other_machines=False)
    assert is_worth_probing(1797, on_other_machines=True)
