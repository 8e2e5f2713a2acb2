"""Increments: what is new is written, what is gone is in no index, and a chain holds what a full reshard would."""

import json
import os
import shutil

import numpy as np
import pytest

from contracts import storage
from contracts.artifacts import ShardManifest
from contracts.config import SPLITS
from records.tools.describe import describe, draw_grid
from records.tools.verify import verify
from sharding.reference import make_key
from tests.sharding.reading import read_found
from trainer.data.reader import ShardReader

FORMATS = ("webdataset", "tfrecord")


def find_wrong(folder):
    return verify(storage.normalise(folder), processes=1, progress=lambda done, total: None)


def read_chain(folder):
    """Return {key: (class, split, content)} of every sample that the index has."""
    manifest = ShardManifest.load(storage.normalise(folder))
    found = read_found(folder)
    samples = {one.key: (manifest.classes[one.label], one.split, one.content) for one in found}
    assert len(samples) == len(found)
    return samples


def read_source(source):
    paths = [path for path in source.rglob("*") if path.suffix in (".png", ".jpg", ".bmp")]
    names = [path.relative_to(source) for path in paths]
    return {key_of(name.as_posix()): (name.parts[0], (source / name).read_bytes()) for name in names}


def key_of(path):
    return make_key(path.encode()).hex()


def check_sound(result, source):
    """Check that a manifest holds the source, once, and that its counts are true; return its samples."""
    assert result.code == 0, result.stderr
    manifest, samples = result.manifest, read_chain(result.folder)
    assert {key: (name, content) for key, (name, _, content) in samples.items()} == read_source(source)
    assert find_wrong(result.folder) == []
    first = 0
    for name in SPLITS:
        split = manifest.splits[name]
        of_split = [sample for sample in samples.values() if sample[1] == name]
        assert (split.first, split.samples) == (first, len(of_split))
        first += split.samples
        assert split.source_bytes == sum(len(sample[2]) for sample in of_split)
        assert split.samples_by_class == [sum(sample[0] == one for sample in of_split) for one in manifest.classes]
    assert sum(manifest.shards.samples) == len(samples)
    own = {entry.name for entry in manifest.owned_files() if not entry.folder}
    assert {path.name for path in result.folder.iterdir()} == own | {"manifest.json"}
    return samples


def shard_names(result):
    return {path.name for path in result.folder.iterdir() if path.suffix in (".tar", ".tfrecord")}


def tombstones(result):
    return sum(entry.tombstones for entry in result.manifest.shards)


@pytest.fixture
def grow(source, write_file, make_image):
    """Add images to the source; their names and content come from a number."""

    def add(numbers, class_name="ant"):
        for number in numbers:
            write_file(source, f"{class_name}/new-{number:04d}.png".encode(), make_image(10_000 + number, "png"))

    return add


@pytest.mark.parametrize("shard_format", FORMATS)
def test_an_increment_holds_what_a_full_reshard_holds(
    run_shard, source, grow, write_file, make_image, shard_format, tmp_path
):
    full = run_shard(format=shard_format, incremental=True)
    old = check_sound(full, source)
    assert full.manifest.parent is None
    before = {path: path.stat().st_mtime_ns for path in full.folder.iterdir()}
    grow(range(5))
    (source / "bee/01.jpg").unlink()
    write_file(source, b"cow/02.png", make_image(999, "png"))
    os.utime(source / "cow/02.png")
    child = run_shard(format=shard_format, incremental=True)
    samples = check_sound(child, source)
    assert "5 new, 1 changed, 1 gone" in child.stderr
    manifest = child.manifest
    assert manifest.parent == full.manifest.fingerprint
    assert tombstones(child) == 2
    assert sum(entry.samples for entry in manifest.shards if not entry.folder) == 6
    assert {entry.folder for entry in manifest.shards} == {"", full.folder.name}
    assert all(samples[key][1] == split for key, (_, split, _) in old.items() if key in samples)
    assert (manifest.mean, manifest.std) == (full.manifest.mean, full.manifest.std)
    reshard = run_shard(format=shard_format, root="elsewhere")
    assert check_sound(reshard, source) == samples
    # The parent is left as it was.
    assert {path: path.stat().st_mtime_ns for path in full.folder.iterdir()} == before
    # Training reads it, and `data show` draws it.
    uri = storage.normalise(child.folder)
    readers = [ShardReader(uri, ShardManifest.load(uri), split) for split in SPLITS]
    labels = [reader.sample(place)["label"] for reader in readers for place in range(len(reader))]
    assert np.bincount(labels).tolist() == [25, 19, 20]
    shown = "\n".join(describe(manifest))
    assert f"increment on {full.folder.name}" in shown and "2 tombstones" in shown
    assert draw_grid(uri, manifest, tmp_path / "grid.png") > 40


def test_only_indices_of_shards_with_something_gone_are_written_anew(run_shard, source, grow, tmp_path):
    full = run_shard(incremental=True)
    grow(range(12))
    child = run_shard(incremental=True)
    kept = [entry for entry in child.manifest.shards if entry.folder]
    assert {entry.index.folder for entry in kept} == {full.folder.name} and len(kept) == len(full.manifest.shards)
    gone = next(one.key for one in read_found(child.folder) if one.split == "test")
    path = next(path for path in source.rglob("*.*") if key_of(path.relative_to(source).as_posix()) == gone)
    path.unlink()
    third = run_shard(incremental=True)
    check_sound(third, source)
    assert shard_names(third) == set() and "0 new, 0 changed, 1 gone; writes 0 shards" in third.stderr
    (written,) = [entry for entry in third.manifest.shards if not entry.index.folder]
    assert third.manifest.splits["test"].first <= written.first
    # What lies two folders away is named by its own folder.
    assert {entry.index.folder for entry in third.manifest.shards} == {"", full.folder.name, child.folder.name}
    # The root can be moved.
    assert str(tmp_path) not in (third.folder / "manifest.json").read_text()
    third.root.rename(tmp_path / "moved")
    third.folder = tmp_path / "moved" / third.folder.name
    check_sound(third, source)


def test_a_state_that_is_there_is_found_and_a_damaged_one_made_again(run_shard, source, grow):
    plain = run_shard()
    full = run_shard(incremental=True)
    assert full.folder == plain.folder and full.content == plain.content
    assert run_shard("--locate", incremental=True).folder == plain.folder
    grow(range(3))
    child = run_shard(incremental=True)
    before = child.content
    again = run_shard(incremental=True)
    assert (again.folder, again.content) == (child.folder, before)
    assert run_shard("--locate", incremental=True).folder == child.folder
    # Made again on request: from the same parent, to the same bytes.
    fresh = run_shard("--fresh", incremental=True)
    assert (fresh.folder, fresh.content) == (child.folder, before)
    assert fresh.manifest.parent == full.manifest.fingerprint
    own = next(entry.index for entry in child.manifest.shards if not entry.index.folder)
    (child.folder / own.name).write_bytes(b"")
    again = run_shard(incremental=True)
    assert again.folder == child.folder and again.content == before
    grow([3])
    missing = run_shard("--locate", incremental=True)
    assert missing.code == 2 and "no finished output" in missing.stderr
    for path in source.rglob("new-*"):
        path.unlink()
    back = run_shard(incremental=True)
    assert back.folder == full.folder
    assert not list(full.root.glob("*/.work"))


def test_a_shard_of_the_dead_is_no_longer_listed(run_shard, source):
    full = run_shard(incremental=True)
    entry = next(entry for entry in full.manifest.shards if entry.split == "train")
    keys = {one.key for one in read_found(full.folder)[entry.first : entry.first + entry.samples]}
    for path in list(source.rglob("*.*")):
        if key_of(path.relative_to(source).as_posix()) in keys:
            path.unlink()
    child = run_shard(incremental=True)
    check_sound(child, source)
    assert entry.name not in {one.name for one in child.manifest.shards} and tombstones(child) == 0
    assert len(child.manifest.shards) == len(full.manifest.shards) - 1


def test_classes_keep_their_places(run_shard, source, grow):
    run_shard(incremental=True)
    grow(range(8), class_name="aardvark")
    child = run_shard(incremental=True)
    check_sound(child, source)
    assert child.manifest.classes == ["ant", "bee", "cow", "aardvark"]
    shutil.rmtree(source / "bee")
    third = run_shard(incremental=True)
    check_sound(third, source)
    assert "warning: the source has no sample of class bee any more" in third.stderr
    assert any("class bee any more" in warning for warning in third.manifest.warnings)
    assert third.manifest.classes == ["ant", "bee", "cow", "aardvark"]
    # The same with an empty folder, which a full reshard refuses.
    (source / "bee").mkdir()
    assert run_shard(incremental=True).folder == third.folder
    refused = run_shard(root="elsewhere")
    assert refused.code == 2 and "bee" in refused.stderr
    (source / "dog").mkdir()
    new = run_shard(incremental=True)
    assert new.code == 2 and "no training sample of class dog" in new.stderr


def test_names_of_classes_are_known_again(run_shard, source, write_file, make_image, grow):
    odd = (b"50%", b"a%20b", b"caf\xe9")
    for number in range(24):
        write_file(source, odd[number % 3] + b"/%d.png" % number, make_image(7000 + number, "png"))
    full = run_shard(incremental=True)
    grow([1])
    child = run_shard(incremental=True)
    assert child.code == 0 and "1 new, 0 changed, 0 gone" in child.stderr and "any more" not in child.stderr
    assert child.manifest.classes == full.manifest.classes and len(child.manifest.classes) == 6


@pytest.fixture
def listed(source):
    """Write a manifest of the source that gives every split; return a function that writes it with changes."""

    def write(changes=None, labels=None):
        lines = []
        for number, path in enumerate(sorted(path for path in source.rglob("*") if path.suffix in (".png", ".jpg"))):
            name = path.relative_to(source).as_posix()
            split = (changes or {}).get(name, SPLITS[number % 5 if number % 5 < 3 else 0])
            label = (labels or {}).get(name, name.partition("/")[0])
            lines.append(json.dumps({"uri": name, "label": label, "split": split}))
        (source / "all.jsonl").write_text("\n".join(lines) + "\n")
        return str(source / "all.jsonl")

    return write


def test_old_samples_keep_their_split(run_shard, listed):
    assert run_shard(source=listed(), incremental=True).code == 0
    samples = {"ant/03.jpg": "test"}
    refused = run_shard(source=listed(samples), incremental=True)
    assert refused.code == 2
    assert "1 samples moved to another split: ant/03.jpg (validation -> test)" in refused.stderr
    assert "old samples keep their split" in refused.stderr and "sharding.incremental=false" in refused.stderr
    assert run_shard(source=listed(samples)).code == 0


def test_another_label_is_a_change_and_lists_of_labels_are_kept(run_shard, source, listed):
    def write(**extra):
        labels = {path.relative_to(source).as_posix(): [path.parent.name] for path in source.glob("*/*")}
        return listed(labels={**labels, "ant/00.png": ["ant", "bee"], **extra})

    run_shard(source=write(), incremental=True)
    child = run_shard(source=write(**{"cow/02.png": ["cow", "zebra"]}), incremental=True)
    assert child.code == 0 and "0 new, 1 changed, 0 gone" in child.stderr, child.stderr
    assert child.manifest.classes == ["ant", "bee", "cow", "zebra"]
    totals = np.sum([split.samples_by_class for split in child.manifest.splits.values()], axis=0)
    assert totals.tolist() == [20, 21, 20, 1]
    # An image that loses its classes is changed, one that had none stays.
    none = {"cow/02.png": [], "ant/00.png": []}
    empty = run_shard(source=write(**none), incremental=True)
    assert empty.code == 0 and "0 new, 2 changed, 0 gone" in empty.stderr, empty.stderr
    last = run_shard(source=write(**none, **{"bee/01.jpg": []}), incremental=True)
    assert last.code == 0 and "0 new, 1 changed, 0 gone" in last.stderr, last.stderr
    totals = np.sum([split.samples_by_class for split in last.manifest.splits.values()], axis=0)
    assert totals.tolist() == [19, 19, 19, 0]
    # Lists that become single labels are no increment of them.
    other = run_shard(source=listed(), incremental=True)
    assert other.code == 0 and "another form" in other.stderr and other.manifest.parent is None


def test_output_is_refused(run_shard, tmp_path):
    refused = run_shard("--output", str(tmp_path / "one"), incremental=True)
    assert refused.code == 2 and "--output" in refused.stderr and not (tmp_path / "one").exists()


def test_nothing_is_built_on_damage(run_shard, source, grow):
    full = run_shard(incremental=True)
    grow([1])
    child = run_shard(incremental=True)
    (child.folder / next(iter(shard_names(child)))).unlink()
    grow([2])
    second = run_shard(incremental=True)
    assert "nothing is built on" in second.stderr and "is missing" in second.stderr
    assert second.manifest.parent == full.manifest.fingerprint
    check_sound(second, source)
    lost = full.folder / full.manifest.shards[0].name
    lost.write_bytes(bytes(lost.stat().st_size))
    grow([3])
    third = run_shard(incremental=True)
    assert third.stderr.count("nothing is built on") == 3
    assert third.manifest.parent is None
    check_sound(third, source)


def test_a_damaged_index_is_not_written_anew(run_shard, source, monkeypatch):
    full = run_shard(incremental=True)
    # Of large shards only sizes are compared before they are reused.
    monkeypatch.setattr("contracts.stage.REUSE_CHECKSUM_BYTES", 0)
    part = full.folder / full.manifest.shards[0].index.name
    content = bytearray(part.read_bytes())
    content[-1] ^= 1
    part.write_bytes(content)
    for path in source.glob("ant/*"):
        if path.name > "03":
            path.unlink()
    refused = run_shard(incremental=True)
    assert refused.code == 2 and f"{part.name} has another crc32c" in refused.stderr


def test_another_source_starts_a_chain_of_its_own(run_shard, tmp_path, write_file, make_image):
    run_shard(incremental=True)
    other = tmp_path / "other"
    for number in range(30):
        write_file(other, f"{'xy'[number % 2]}/{number}.png".encode(), make_image(5000 + number, "png"))
    first = run_shard(source=str(other), incremental=True)
    assert "no sample in common" in first.stderr and first.manifest.classes == ["x", "y"]
    write_file(other, b"x/more.png", make_image(6000, "png"))
    second = run_shard(source=str(other), incremental=True)
    assert second.manifest.parent == first.manifest.fingerprint
    check_sound(second, other)


def test_rejected_files_are_tried_again(run_shard, source, write_file, make_image, grow):
    write_file(source, b"ant/broken.png", b"no image")
    # One of 62 is allowed; what the increment writes is one of two.
    full = run_shard(incremental=True, max_rejected_fraction=0.02)
    grow([1])
    assert run_shard("--dry-run", incremental=True, max_rejected_fraction=0.02, printed=True).code == 0
    child = run_shard(incremental=True, max_rejected_fraction=0.02)
    assert child.code == 0, child.stderr
    assert child.manifest.rejected == full.manifest.rejected and len(full.manifest.rejected) == 1
    write_file(source, b"ant/broken.png", make_image(1, "png"))
    os.utime(source / "ant/broken.png")
    repaired = run_shard(incremental=True)
    assert repaired.manifest.rejected == []
    check_sound(repaired, source)


def test_copies_of_what_stays_are_found(run_shard, source, grow, write_file):
    run_shard(incremental=True, root="named")
    write_file(source, b"bee/50%.png", (source / "ant/24.png").read_bytes())
    warned = run_shard(incremental=True, root="named")
    (group,) = warned.manifest.duplicates.listed
    assert {copy.path for copy in group.copies} == {"ant/24.png", "bee/50%25.png"} and "warning" in warned.stderr
    write_file(source, b"bee/third.png", (source / "ant/24.png").read_bytes())
    refused = run_shard(incremental=True, root="named", duplicates="fail")
    assert refused.code == 2 and "bee/third.png" in refused.stderr
    (source / "bee/third.png").unlink()
    grow([0])
    kept = run_shard(incremental=True, root="named")
    (group,) = kept.manifest.duplicates.listed
    assert {copy.path for copy in group.copies} == {"ant/24.png", "bee/50%25.png"}
    (source / "bee/50%.png").unlink()
    assert run_shard(incremental=True, root="named", duplicates="fail").manifest.duplicates.groups == 0


def test_a_dry_run_names_what_is_written(run_shard, source, grow):
    run_shard(incremental=True)
    grow(range(4))
    shown = run_shard("--dry-run", incremental=True, printed=True)
    assert shown.code == 0 and "increment on" in shown.stdout and "4 new" in shown.stdout
    child = run_shard(incremental=True)
    assert f"writes {len(shard_names(child))} shards" in shown.stdout
    done = run_shard("--dry-run", incremental=True, printed=True)
    assert done.code == 0 and f"nothing: {child.folder.name}" in done.stdout
    (source / "bee/01.jpg").unlink()
    gone = run_shard("--dry-run", incremental=True, printed=True)
    assert gone.code == 0 and "0 new, 0 changed, 1 gone; writes 0 shards" in gone.stdout, gone.stderr


def test_weekly_increments_hold_the_source(run_shard, tmp_path, write_file):
    source = tmp_path / "blobs"

    def write(numbers, week):
        for number in numbers:
            # They pass as images where nothing is verified, and cost nothing to make.
            content = b"BM" + np.random.default_rng([number, week]).bytes(998)
            write_file(source, f"{'ab'[number % 2]}/{number:06d}.bmp".encode(), content)
            os.utime(source / f"{'ab'[number % 2]}/{number:06d}.bmp", ns=(10**18 + week, 10**18 + week))

    options = {"source": str(source), "verify": "none", "target_shard_bytes": 8192, "incremental": True}
    write(range(300), 0)
    run_shard(**options)
    random = np.random.default_rng(0)
    here = set(range(300))
    splits = {}
    for week in range(1, 7):
        gone, changed = random.choice(sorted(here), 2, replace=False).tolist()
        here.remove(gone)
        (source / f"{'ab'[gone % 2]}/{gone:06d}.bmp").unlink()
        new = range(1000 + 6 * week, 1006 + 6 * week)
        here.update(new)
        write([changed, *new], week)
        child = run_shard(**options)
        samples = check_sound(child, source)
        assert child.manifest.parent and "6 new, 1 changed, 1 gone" in child.stderr
        assert all(splits.setdefault(key, split) == split for key, (_, split, _) in samples.items())
    reshard = run_shard(**{**options, "incremental": False}, root="full")
    assert check_sound(reshard, source) == samples


@pytest.mark.slow
def test_every_engine_writes_the_same_bytes(run_shard, source, grow):
    def run(root, resources):
        return run_shard(incremental=True, root=root, resources=resources)

    roots = ("one", "two")
    for root in roots:
        run(root, {"beam_workers": 1})
    grow(range(20))
    (source / "bee/01.jpg").unlink()
    resources = ({"beam_workers": 1}, {"beam_workers": 2})
    results = [run(root, one) for root, one in zip(roots, resources, strict=True)]
    assert [result.code for result in results] == [0, 0]
    assert results[0].content == results[1].content
    check_sound(results[0], source)
