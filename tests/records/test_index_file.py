"""An index read record by record, while others do to its file what they like."""

import os
import pickle
from pathlib import Path

import numpy as np
import pytest

from contracts.errors import DataError
from records.index import HEADER_BYTES, RECORD, Index, write_index
from records.index_file import IndexFile

COUNT = 300


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return written(tmp_path / "index.bin")


def written(path: Path, seed: int = 0) -> Path:
    random = np.random.default_rng(seed)
    write_index(path, np.frombuffer(random.bytes(COUNT * RECORD.itemsize), RECORD))
    return path


def records_of(path: Path) -> Index:
    return np.fromfile(path, RECORD, offset=HEADER_BYTES)


def test_it_reads_what_was_written(path: Path) -> None:
    index, written = IndexFile(path), records_of(path)
    assert len(index) == COUNT
    assert all(index[place] == written[place] for place in (0, 7, 7, COUNT - 1))
    assert np.array_equal(index[10:50], written[10:50]) and len(index[50:10]) == 0
    assert index.labels(10, 40).tolist() == written[10:50]["label"].tolist()
    for read in (lambda: index[COUNT], lambda: index[-1], lambda: index[::2]):
        with pytest.raises(IndexError):
            read()


def test_it_may_be_deleted_while_it_is_open(path: Path) -> None:
    index, expected = IndexFile(path), records_of(path)
    path.unlink()
    assert np.array_equal(index[0:COUNT], expected)


@pytest.mark.parametrize("left", [0, 70, 64 + 5 * RECORD.itemsize])
def test_a_file_that_is_cut_short_meanwhile_is_an_error(path: Path, left: int) -> None:
    index = IndexFile(path)
    os.truncate(path, left)
    with pytest.raises(DataError, match=r"index\.bin was cut short while it was read: it ends before record 8"):
        index[7]
    with pytest.raises(DataError, match="cut short"):
        index[100:150]


def test_a_file_that_is_cut_short_is_taken_anew_where_that_can_be(path: Path, tmp_path: Path) -> None:
    expected = records_of(path)
    renewed: list[Path] = []

    def renew() -> Path:
        renewed.append(written(tmp_path / f"{len(renewed)}.bin"))
        return renewed[-1]

    index = IndexFile(path, renew)
    os.truncate(path, 0)
    assert index[7] == expected[7] and index[8] == expected[8]
    assert len(renewed) == 1
    # Deleted before it is opened, too.
    renewed[0].unlink()
    path.unlink()
    assert IndexFile(path, renew)[9] == expected[9]


def test_it_is_opened_again_in_another_process(path: Path) -> None:
    index = IndexFile(path)
    content = pickle.dumps(index)
    # Its name travels, not its bytes.
    assert len(content) < 1000
    assert pickle.loads(content)[3] == index[3]


@pytest.mark.parametrize("cut", [0, 10, 63, 64, 100, 64 + COUNT * RECORD.itemsize - 1])
def test_a_wrong_length_is_seen_when_it_is_opened(path: Path, cut: int) -> None:
    os.truncate(path, cut)
    with pytest.raises(DataError, match=r"index\.bin"):
        IndexFile(path)
    path.unlink()
    with pytest.raises(DataError, match="cannot be read"):
        IndexFile(path)


@pytest.mark.parametrize(("at", "message"), [(0, "is no index"), (8, "has version")])
def test_another_file_and_another_version_are_refused(path: Path, at: int, message: str) -> None:
    content = bytearray(path.read_bytes())
    content[at] ^= 0x40
    path.write_bytes(content)
    with pytest.raises(DataError, match=message):
        IndexFile(path)
