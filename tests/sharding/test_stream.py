"""Reading ahead: in order, within bounds, and ending when the writer does."""

import os
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sharding import stream
from sharding.sources import Reference
from sharding.write.stream import read_ahead


def make_references(sizes):
    return [Reference(b"%d" % number, 0, 0, size, 0) for number, size in enumerate(sizes)]


@given(st.lists(st.integers(0, 5000), max_size=80), st.integers(0, 5), st.integers(1, 20_000))
def test_everything_once_in_order(sizes, threads, bound):
    references = make_references(sizes)
    read = list(read_ahead(references, lambda one: one.path * 2, threads=threads, bytes_in_flight=bound))
    assert read == [(one, one.path * 2) for one in references]


@pytest.mark.parametrize("largest", [400, 5000])
def test_bytes_in_flight_are_bounded(monkeypatch, largest):
    monkeypatch.setattr(stream, "TASK_BYTES", 500)
    references = make_references([100, largest, 300, 200] * 50)
    taken, begun = 0, 0
    lock = threading.Lock()
    most = 0

    def read(one):
        nonlocal begun, most
        with lock:
            begun += one.size
            most = max(most, begun - taken)
        return b""

    for one, _ in read_ahead(references, read, threads=4, bytes_in_flight=2000):
        with lock:
            taken += one.size
    # What was handed over and what is about to be counted as taken: one task more.
    assert most <= max(2000, largest) + 500 + largest


def test_the_first_error_comes_in_its_place_and_ends_the_reading():
    references = make_references([1 << 20] * 200)
    read_paths = []

    def read(one):
        read_paths.append(one.path)
        if one.path == b"20":
            raise ValueError("twenty")
        return b""

    threads_before = threading.active_count()
    seen = []
    with pytest.raises(ValueError, match="twenty"):
        seen.extend(one.path for one, _ in read_ahead(references, read, threads=3))
    assert len(read_paths) < 100
    # Other tests' threads may end meanwhile: there must be no more than before.
    assert threading.active_count() <= threads_before


def test_a_writer_that_gives_up_ends_the_reading():
    before = threading.active_count()
    reading = read_ahead(make_references([1 << 20] * 200), lambda one: b"", threads=3)
    next(reading)
    reading.close()
    assert threading.active_count() == before


@pytest.mark.parametrize("step", [1, 1000, 1 << 30])
def test_bytes_written_behind_are_those_that_were_given(tmp_path, monkeypatch, step):
    monkeypatch.setattr(stream, "WRITE_BEHIND_BYTES", step)
    pieces = [bytes([number]) * (number * 37) for number in range(200)]
    with (tmp_path / "shard").open("wb", buffering=0) as file:
        behind = stream.WriteBehind(file)
        for at in range(0, len(pieces), 3):
            behind.writelines(pieces[at : at + 3])
        behind.close()
        assert (tmp_path / "shard").read_bytes() == b"".join(pieces)


def test_a_file_system_that_takes_only_a_part_gets_the_rest(tmp_path, monkeypatch):
    whole = os.writev
    monkeypatch.setattr(os, "writev", lambda descriptor, parts: whole(descriptor, [b"".join(parts)[:5]]))
    with (tmp_path / "shard").open("wb", buffering=0) as file:
        behind = stream.WriteBehind(file)
        behind.writelines([b"abc", b"defg", b"hi"])
        behind.writelines([b"jk"])
        behind.close()
    assert (tmp_path / "shard").read_bytes() == b"abcdefghijk"


def test_files_are_announced_before_they_are_read_and_not_all_at_once(monkeypatch):
    monkeypatch.setattr(stream, "ANNOUNCED_FILES", 3)
    events = []
    references = make_references([1] * 10)
    reading = read_ahead(
        references,
        lambda one: events.append(("read", one.path)) or b"",
        threads=0,
        announce=lambda one: events.append(("announce", one.path)),
    )
    assert [one.path for one, _ in reading] == [one.path for one in references]
    for number, reference in enumerate(references):
        before = events[: events.index(("read", reference.path))]
        assert ("announce", reference.path) in before
        assert sum(name == "announce" for name, _ in before) <= number + 4


def test_announcing_a_file_that_is_not_there_is_no_error(tmp_path):
    stream.announce_file(bytes(tmp_path / "missing"))
    os.mkfifo(tmp_path / "pipe")
    stream.announce_file(bytes(tmp_path / "pipe"))
