"""References on disk: cut into equal parts, published and placed."""

import json

import pytest

from contracts import storage
from contracts.errors import StorageError
from sharding.plan import make_plan
from sharding.sources import parts
from sharding.sources.parts import (
    Changes,
    Names,
    Piece,
    StretchWriter,
    cut_into_parts,
    publish_parts,
    read_file,
    read_part,
    repack,
)
from sharding.sources.reference import Reference


def make_references(num, start=0):
    return [Reference(b"cat/%06d.jpg" % n, n % 3, n % 2, n, 10**15 + n, b"md5:%032x" % n) for n in range(start, num)]


def test_a_stretch_holds_what_was_added_and_counts_it(tmp_path, monkeypatch):
    monkeypatch.setattr(parts, "PART_REFERENCES", 40)
    writer = StretchWriter(tmp_path, "one")
    made = [*make_references(99), Reference(b"dog", 1, 2, 5, 1, b"", (2, 4))]
    for reference in made:
        writer.add(tuple(reference))
    stretch = writer.close()
    assert [count for _, count in stretch.files] == [40, 40, 20]
    assert [one for path, _ in stretch.files for one in read_file(path)] == made
    assert stretch.counts[2, 1] == stretch.counts[2, 2] == stretch.counts[2, 4] == 1
    assert stretch.split_files == [50, 49, 1]
    assert stretch.split_bytes == [sum(range(0, 99, 2)), sum(range(1, 99, 2)), 5]


def test_parts_do_not_hang_on_where_stretches_end(tmp_path, monkeypatch):
    monkeypatch.setattr(parts, "PART_REFERENCES", 40)
    made = make_references(130)

    def write(name, ends):
        files, start = [], 0
        for number, end in enumerate(ends):
            path = tmp_path / f"{name}-{number}"
            path.write_bytes(parts.pack(made[start:end]))
            files.append((path, end - start))
            start = end
        pieces = cut_into_parts(files)
        return [repack(tmp_path / f"{name}-part-{n}", own, None).read_bytes() for n, own in enumerate(pieces)]

    whole = write("whole", [40, 80, 120, 130])
    assert len(whole) == 4
    assert write("other", [1, 1, 39, 100, 130]) == write("one", [130]) == whole


def test_changes_reach_only_what_they_name(tmp_path):
    made = make_references(9)
    (tmp_path / "a").write_bytes(parts.pack(made))
    Changes([2, 0, 1], {made[4].path: 2}).save(tmp_path / "changes")
    path = repack(tmp_path / "part", [Piece(tmp_path / "a", 0, 9, True)], tmp_path / "changes")
    expected = [
        one._replace(label=[2, 0, 1][one.label], split=2 if n == 4 else one.split) for n, one in enumerate(made)
    ]
    assert read_file(path) == expected


def test_the_first_names_are_kept_and_all_counted():
    names = Names(3)
    for number in (5, 9, 1, 7, 3, 8, 2, 6, 4):
        names.add(b"%d" % number)
    assert (names.sorted(), names.count) == ([b"1", b"2", b"3"], 9)


def test_published_parts_are_placed_as_the_plan_says(listing_of, source, tmp_path):
    listing = listing_of(source)
    plan = make_plan(listing, seed=1, target_shard_bytes=4096)
    uri = storage.normalise(tmp_path / "work")
    publish_parts(listing.parts, uri)
    found = read_part(uri, 0)
    assert found == list(listing.references()) and len(listing.parts) == 1
    placed = plan.place_many([one.path for one in found], [one.split for one in found]).tolist()
    assert placed == [plan.place(one.path, one.split) for one in found]
    assert set(placed) == set(range(plan.total_shards))


def test_what_cannot_be_published_is_raised(listing_of, source, tmp_path):
    listing = listing_of(source)
    (tmp_path / "work").write_bytes(b"a file")
    with pytest.raises((StorageError, OSError)):
        publish_parts(listing.parts, storage.normalise(tmp_path / "work"))


def test_long_rows_are_cut_by_their_bytes(listing_of, tmp_path, monkeypatch):
    """Rows of text: small parts give what one part gives."""
    rows = [json.dumps({"text": f"{number} " * 500, "y": number}) for number in range(100)]
    (tmp_path / "rows.jsonl").write_text("\n".join(rows))
    fields = {"text": {"column": "text", "kind": "text"}, "y": {"column": "y", "kind": "number"}}
    whole = listing_of(tmp_path / "rows.jsonl", fields=fields)
    monkeypatch.setattr(parts, "_PART_CELL_BYTES", 20_000)
    cut = listing_of(tmp_path / "rows.jsonl", fields=fields)
    assert len(whole.parts) == 1 and len(cut.parts) > 5
    assert list(cut.references()) == list(whole.references()) and cut.sha256 == whole.sha256
    assert sum(map(len, map(cut.part, range(len(cut.parts))))) == 100
