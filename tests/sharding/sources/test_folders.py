"""Folders of this machine: the same listing by one process and by several, and the hash that names finished work."""

import json
import os
import shutil

import pytest

from contracts.errors import DataError, TryAgain
from sharding.sources import folders

# Of the release before listings lay in files: finished shards are found by them.
FOLDERS_SHA256 = "c7f29ede46ad80d66af2fee04d9b69976d4c2cc1c7e60b889de3bfe17ccfbd69"
MANIFEST_SHA256 = "2c5eaeb25a0242e2b10bda8e307a8663e8b972ab64dbf4a31f74932668ed4afd"


@pytest.fixture
def forty(tmp_path, write_file):
    """Forty files in three classes, some in a folder within."""
    for number in range(40):
        name = (b"ant", b"a.b", b"caf\xe9")[number % 3]
        write_file(tmp_path / "raw", b"%b/%b%02d.png" % (name, (b"", b"deep/")[number % 2], number), b"x" * number)
    return tmp_path / "raw"


def test_hashes_are_those_that_named_finished_work(forty, listing_of):
    assert listing_of(forty).sha256 == FOLDERS_SHA256
    rows = [
        {
            "uri": f"raw/{('ant', 'a.b')[number % 3]}/{('', 'deep/')[number % 2]}{number:02d}.png",
            "label": [f"x{number % 4}", "y"],
            "split": ("train", "validation")[number % 7 == 0],
        }
        for number in range(40)
        if number % 3 != 2
    ]
    path = forty.parent / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert listing_of(path).sha256 == MANIFEST_SHA256


@pytest.mark.parametrize("processes", [1, 2])
def test_processes_give_what_one_gives(forty, listing_of, monkeypatch, write_file, processes):
    for path in (b"ant/.DS_Store", b"README", b"ant/deep/deeper/a.png", b"ant/deep.png", b"a.b/deep/.x/1.png"):
        write_file(forty, path, b"x")
    (forty / "only").mkdir()
    for number in range(12):
        write_file(forty, b"only/%d/%d.png" % (number % 4, number), b"x")
    one = listing_of(forty)
    monkeypatch.setattr(folders, "FEW_FILES", 10)
    several = listing_of(forty, processes=processes)
    assert list(several.references()) == list(one.references())
    paths = [reference.path for reference in several.references()]
    assert paths == sorted(paths) and len(paths) == 54
    for field in ("classes", "sha256", "counts", "split_bytes", "ignored", "num_ignored", "warnings", "num_files"):
        assert getattr(several, field) == getattr(one, field), field


def test_few_classes_are_cut_into_their_folders_only_where_no_file_lies_between(tmp_path, write_file):
    for path in (b"a/1/x.png", b"a/1.b/x.png", b"b/1/x.png", b"b/2.png", b"c/.hidden", b"c/1/x.png"):
        write_file(tmp_path, path, b"x")
    (tmp_path / "d").mkdir()
    root = os.fsencode(tmp_path)
    assert folders._cut(root, (b"a", b"b", b"c", b"d"), 8) == [b"a/1.b", b"a/1", b"b", b"c", b"d"]
    assert folders._cut(root, (b"a", b"b"), 2) == [b"a", b"b"]


def test_errors_come_back_from_other_processes(forty, listing_of, monkeypatch):
    monkeypatch.setattr(folders, "FEW_FILES", 1)
    (forty / "ant" / "deep" / "loop").symlink_to(forty / "ant")
    for processes in (1, 2):
        with pytest.raises(DataError, match="ant/deep/loop in the source is a link to a folder above it"):
            listing_of(forty, processes=processes)


def test_what_vanishes_while_it_is_listed_is_no_fault_of_the_source(forty, listing_of, monkeypatch):
    kind_of = folders._kind_of

    def delete_then_look(entry, root):
        kind = kind_of(entry, root)
        if kind == "folder" and entry.path.endswith(b"a.b/deep"):
            shutil.rmtree(entry.path)
        return kind

    with monkeypatch.context() as patch:
        patch.setattr(folders, "_kind_of", delete_then_look)
        with pytest.raises(TryAgain, match=r"a\.b/deep vanished while the source was listed; run again"):
            listing_of(forty)
    assert listing_of(forty).num_files < 40
