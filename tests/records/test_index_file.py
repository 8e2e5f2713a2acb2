"""An index read record by record, while others do to its file what they like."""

import os
import pickle
from pathlib import Path

import numpy as np
import pytest

from contracts.errors import DataError
from records.index import RECORD, Index, open_index, write_index
from records.index_file import IndexFile

COUNT = 300


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return written(tmp_path / "index.bin")


def written(path: Path, seed: int = 0) -> Path:
    random = np.random.default_rng(seed)
    write_index(path, np.frombuffer(random.bytes(COUNT * RECORD.itemsize), RECORD))
    return path


def test_it_reads_what_a_map_shows(path: Path) -> None:
    index, mapped = IndexFile(path), open_index(path)
    assert len(index) == COUNT
    assert all(index[place] == mapped[place] for place in (0, 7, 7, COUNT - 1))
    assert np.array_equal(index[10:50], mapped[10:50]) and len(index[50:10]) == 0
    assert index.labels(10, 40).tolist() == mapped[10:50]["label"].tolist()
    for read in (lambda: index[COUNT], lambda: index[-1], lambda: index[::2]):
        with pytest.raises(IndexError):
            read()


def test_it_may_be_deleted_while_it_is_open(path: Path) -> None:
    index, expected = IndexFile(path), np.array(open_index(path))
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
    expected: Index = np.array(open_index(path))
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
