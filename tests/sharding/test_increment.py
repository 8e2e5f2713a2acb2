"""Increments: what is new is written, what stays is reused, and the chain holds what a full reshard would."""

import json
import os
import shutil
import signal
from pathlib import Path

import numpy as np
import pytest
import webdataset
import wids

from contracts import storage
from contracts.artifacts import ShardManifest
from contracts.config import SPLITS, DataSection, ShardingSection
from inspection.show import describe, draw_grid
from inspection.verify import verify
from records.description import read_path
from records.index import key_of, open_index, read_payload
from sharding.plan import make_key, make_plan
from sharding.sources import list_source
from trainer.data.reader import ShardReader
from trainer.data.shards import load_shards

FORMATS = ("webdataset", "tfrecord")


def read_chain(folder):
    """Return {path: (class, split, content)} of every sample that a reader can reach."""
    uri = storage.normalise(folder)
    manifest = ShardManifest.load(uri)
    found = {}
    for record in open_index(Path(folder) / "index.bin"):
        entry = manifest.shards[record["shard"]]
        place = entry.uri(uri)
        path = read_path(place, record)
        assert make_key(path.encode()).hex() == key_of(record) and path not in found
        found[path] = (manifest.classes[record["label"]], entry.split, read_payload(place, record))
    return found


def read_source(source):
    return {
        path.relative_to(source).as_posix(): (path.relative_to(source).parts[0], path.read_bytes())
        for path in source.rglob("*")
        if path.is_file()
    }


def check_sound(result, source):
    """Check that a manifest holds the source, once, and that its counts are true."""
    manifest, samples = result.manifest, read_chain(result.folder)
    assert {path: (name, content) for path, (name, _, content) in samples.items()} == read_source(source)
    files = [storage.local_path(entry.uri(storage.normalise(result.folder))) for entry in manifest.owned_files()]
    assert len(set(files)) == len(files) and all(path.is_file() for path in files)
    assert verify(storage.normalise(result.folder), processes=1, progress=lambda done, total: None) == []
    first = 0
    for name in SPLITS:
        split = manifest.splits[name]
        of_split = [sample for sample in samples.values() if sample[1] == name]
        assert (split.first, split.samples) == (first, len(of_split))
        first += split.samples
        assert split.source_bytes == sum(len(sample[2]) for sample in of_split)
        assert split.samples_by_class == [sum(sample[0] == one for sample in of_split) for one in manifest.classes]
    assert sum(manifest.images.formats.values()) == sum(entry.samples + entry.tombstones for entry in manifest.shards)
    buried = open_index(result.folder / "tombstones.bin") if manifest.tombstones else []
    assert len(buried) == sum(entry.tombstones for entry in manifest.shards)
    assert (result.folder / "sources.bin").stat().st_size == 8 * len(samples)
    return samples


def written(result):
    """Bytes of the files that a run added."""
    return sum(path.stat().st_size for path in result.folder.iterdir())


def shard_names(result):
    return {path.name for path in result.folder.iterdir() if path.suffix in (".tar", ".tfrecord")}


@pytest.fixture
def grow(source, write_file, make_image):
    """Add images to the source; their names and content come from a number."""

    def add(numbers, class_name="ant"):
        for number in numbers:
            write_file(source, f"{class_name}/new-{number:04d}.png".encode(), make_image(10_000 + number, "png"))

    return add


@pytest.mark.parametrize("shard_format", FORMATS)
def test_an_increment_holds_what_a_full_reshard_holds(run_shard, source, grow, write_file, make_image, shard_format):
    full = run_shard(format=shard_format, incremental=True)
    old = check_sound(full, source)
    assert (full.manifest.parent, full.manifest.generation) == (None, 0)
    grow(range(5))
    (source / "bee/01.jpg").unlink()
    write_file(source, b"cow/02.png", make_image(999, "png"))
    os.utime(source / "cow/02.png")
    child = run_shard(format=shard_format, incremental=True, compact_share=0.9)
    assert child.code == 0, child.stderr
    samples = check_sound(child, source)
    assert "5 new, 1 changed, 1 gone" in child.stderr
    manifest = child.manifest
    assert (manifest.parent, manifest.generation) == (full.manifest.fingerprint, 1)
    assert sum(entry.tombstones for entry in manifest.shards) == 2
    assert sum(entry.samples for entry in manifest.shards if not entry.folder) == 6
    assert {entry.folder for entry in manifest.shards} == {"", full.folder.name}
    assert all("-g001-" in name for name in shard_names(child))
    assert all(samples[path][1] == split for path, (_, split, _) in old.items() if path in samples)
    assert (manifest.mean, manifest.std) == (full.manifest.mean, full.manifest.std)
    reshard = run_shard(format=shard_format, root="elsewhere")
    assert check_sound(reshard, source) == samples
    # The parent is left as it was.
    assert verify(storage.normalise(full.folder), processes=1, progress=lambda done, total: None) == []


def test_neither_field_moves_a_full_reshard(run_shard):
    plain = run_shard()
    first = run_shard(incremental=True, compact_share=0.5)
    assert first.folder == plain.folder and first.code == 0
    assert first.content == plain.content


def test_a_state_that_is_there_is_found(run_shard, grow):
    full = run_shard(incremental=True)
    grow(range(3))
    child = run_shard(incremental=True)
    before = child.content
    again = run_shard(incremental=True)
    assert (again.folder, again.content) == (child.folder, before)
    assert run_shard("--locate", incremental=True).folder == child.folder
    assert again.events[-1]["event"] == "reused"
    # Made again on request: from the same parent, to the same bytes.
    fresh = run_shard("--fresh", incremental=True)
    assert (fresh.folder, fresh.content) == (child.folder, before)
    assert fresh.manifest.parent == full.manifest.fingerprint
    grow([3])
    missing = run_shard("--locate", incremental=True)
    assert missing.code == 2 and "no finished output" in missing.stderr


def test_a_sample_that_is_gone_is_in_no_index(run_shard, source):
    run_shard(incremental=True)
    gone = ["ant/00.png", "bee/01.jpg", "cow/02.png"]
    for path in gone:
        (source / path).unlink()
    child = run_shard(incremental=True, compact_share=1)
    assert child.code == 0 and shard_names(child) == set()
    assert "0 new, 0 changed, 3 gone" in child.stderr and "writes 0 shards" in child.stderr
    assert not set(gone) & set(check_sound(child, source))
    buried = {key_of(record) for record in open_index(child.folder / "tombstones.bin")}
    assert buried == {make_key(path.encode()).hex() for path in gone}
    # Tombstones are carried on, and a sample that comes back is written anew.
    (source / "ant/03.jpg").unlink()
    grandchild = run_shard(incremental=True, compact_share=1)
    assert len(open_index(grandchild.folder / "tombstones.bin")) == 4
    assert grandchild.manifest.generation == 2
    check_sound(grandchild, source)


def test_a_shard_of_the_dead_is_no_longer_listed(run_shard, source):
    full = run_shard(incremental=True)
    number = next(n for n, entry in enumerate(full.manifest.shards) if entry.split == "train")
    name = full.manifest.shards[number].name
    for record in open_index(full.folder / "index.bin"):
        if record["shard"] == number:
            (source / read_path(full.folder / name, record)).unlink()
    child = run_shard(incremental=True, compact_share=1)
    assert name not in {entry.name for entry in child.manifest.shards}
    assert child.manifest.tombstones is None and "0 compacted" in child.stderr
    check_sound(child, source)


@pytest.mark.parametrize(("share", "compacted"), [(0, True), (0.9, False)])
def test_shards_above_the_share_are_written_again(run_shard, source, share, compacted):
    run_shard(incremental=True)
    (source / "ant/00.png").unlink()
    child = run_shard(incremental=True, compact_share=share)
    assert ("1 compacted" in child.stderr) == compacted
    assert (child.manifest.tombstones is None) == compacted
    check_sound(child, source)


def test_the_share_is_part_of_an_increment_only(run_shard, grow):
    full = run_shard(incremental=True, compact_share=0.3)
    assert "compact_share" not in full.manifest.made_from
    grow([1])
    child = run_shard(incremental=True, compact_share=0.3)
    assert child.manifest.made_from["parent"] == full.manifest.fingerprint
    assert "compact_share" in child.manifest.made_from


def test_classes_keep_their_places(run_shard, source, grow):
    full = run_shard(incremental=True)
    grow(range(8), class_name="aardvark")
    child = run_shard(incremental=True)
    assert child.code == 0, child.stderr
    assert child.manifest.classes == ["ant", "bee", "cow", "aardvark"]
    check_sound(child, source)
    shutil.rmtree(source / "bee")
    third = run_shard(incremental=True)
    assert third.code == 0, third.stderr
    assert "warning: the source has no image of class bee" in third.stderr
    assert third.manifest.classes == ["ant", "bee", "cow", "aardvark"]
    assert [split.samples_by_class[1] for split in third.manifest.splits.values()] == [0, 0, 0]
    check_sound(third, source)
    # The same with an empty folder, which a full reshard refuses.
    (source / "bee").mkdir()
    assert run_shard(incremental=True).code == 0
    refused = run_shard(root="elsewhere")
    assert refused.code == 2 and "bee" in refused.stderr
    assert full.manifest.classes == ["ant", "bee", "cow"]


def test_names_of_classes_are_known_again(run_shard, source, write_file, make_image, grow):
    odd = (b"50%", b"a%20b", b"caf\xe9")
    for number in range(24):
        write_file(source, odd[number % 3] + b"/%d.png" % number, make_image(7000 + number, "png"))
    full = run_shard(incremental=True)
    grow([1])
    child = run_shard(incremental=True)
    assert child.code == 0 and "1 new, 0 changed, 0 gone" in child.stderr
    assert child.manifest.classes == full.manifest.classes and len(child.manifest.classes) == 6
    assert "any more" not in child.stderr


def test_a_new_class_needs_a_training_image(run_shard, source):
    run_shard(incremental=True)
    (source / "dog").mkdir()
    refused = run_shard(incremental=True)
    assert refused.code == 2 and "no training image of class dog" in refused.stderr
    first = run_shard(incremental=True, root="elsewhere")
    assert first.code == 2 and "no training image of class dog" in first.stderr


@pytest.fixture
def listed(source):
    """Write a manifest of the source that gives every split; return a function that writes it with changes."""

    def write(changes=None, labels=None, without=()):
        lines = []
        for number, path in enumerate(sorted(path for path in source.rglob("*") if path.suffix in (".png", ".jpg"))):
            name = path.relative_to(source).as_posix()
            if name in without:
                continue
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


def test_another_label_is_a_change(run_shard, source, listed):
    run_shard(source=listed(), incremental=True)
    child = run_shard(source=listed(labels={"ant/06.png": "cow"}), incremental=True)
    assert child.code == 0 and "0 new, 1 changed, 0 gone" in child.stderr
    assert read_chain(child.folder)["ant/06.png"][0] == "cow"


def test_lists_of_labels(run_shard, source, listed):
    lists = {f"ant/{number:02d}.png": ["ant", "bee"] for number in (0, 6)}

    def write(**extra):
        labels = {p.relative_to(source).as_posix(): [p.parent.name] for p in source.glob("*/*")}
        return listed(labels={**labels, **lists, **extra})

    full = run_shard(source=write(), incremental=True)
    assert full.code == 0 and full.manifest.multi_label
    child = run_shard(source=write(**{"cow/02.png": ["cow", "zebra"]}), incremental=True)
    assert child.code == 0, child.stderr
    assert "0 new, 1 changed, 0 gone" in child.stderr
    assert child.manifest.classes == ["ant", "bee", "cow", "zebra"]
    totals = np.sum([split.samples_by_class for split in child.manifest.splits.values()], axis=0)
    assert totals.tolist() == [20, 22, 20, 1]
    # Lists that become single labels are no increment of them.
    other = run_shard(source=listed(), incremental=True)
    assert other.code == 0 and "another form" in other.stderr and other.manifest.generation == 0


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
    assert second.code == 0 and "nothing is built on" in second.stderr and "is missing" in second.stderr
    assert second.manifest.parent == full.manifest.fingerprint
    check_sound(second, source)
    lost = full.folder / full.manifest.shards[0].name
    lost.write_bytes(bytes(lost.stat().st_size))
    grow([3])
    third = run_shard(incremental=True)
    assert third.code == 0 and third.stderr.count("nothing is built on") == 3
    assert (third.manifest.parent, third.manifest.generation) == (None, 0)
    check_sound(third, source)


def test_a_damaged_state_is_made_again(run_shard, source, grow):
    run_shard(incremental=True)
    grow([1])
    child = run_shard(incremental=True)
    content = child.content
    (child.folder / "sources.bin").write_bytes(b"")
    again = run_shard(incremental=True)
    assert again.folder == child.folder and again.content == content


def test_manifests_without_sources_are_no_parents(run_shard, source, grow):
    full = run_shard()
    manifest = full.folder / "manifest.json"
    values = json.loads(manifest.read_bytes())
    for name in ("sources", "parent", "generation", "tombstones"):
        values.pop(name)
    manifest.write_text(json.dumps(values))
    assert run_shard(incremental=True).folder == full.folder
    grow([1])
    child = run_shard(incremental=True)
    assert child.code == 0 and "an older version wrote it" in child.stderr and child.manifest.generation == 0


def test_another_source_starts_a_chain_of_its_own(run_shard, source, grow, tmp_path, write_file, make_image):
    run_shard(incremental=True)
    other = tmp_path / "other"
    for number in range(30):
        write_file(other, f"{'xy'[number % 2]}/{number}.png".encode(), make_image(5000 + number, "png"))
    first = run_shard(source=str(other), incremental=True)
    assert first.code == 0 and "no sample in common" in first.stderr and first.manifest.classes == ["x", "y"]
    write_file(other, b"x/more.png", make_image(6000, "png"))
    second = run_shard(source=str(other), incremental=True)
    assert second.manifest.parent == first.manifest.fingerprint
    check_sound(second, other)


def test_the_root_can_be_moved(run_shard, source, grow, tmp_path):
    run_shard(incremental=True)
    grow(range(3))
    child = run_shard(incremental=True)
    assert str(tmp_path) not in (child.folder / "manifest.json").read_text()
    child.root.rename(tmp_path / "moved")
    child.folder = tmp_path / "moved" / child.folder.name
    check_sound(child, source)


def test_rejected_files_are_tried_again(run_shard, source, write_file, make_image, grow):
    write_file(source, b"ant/broken.png", b"no image")
    full = run_shard(incremental=True, max_rejected_fraction=0.1)
    grow([1])
    child = run_shard(incremental=True, max_rejected_fraction=0.1)
    assert child.manifest.rejected == full.manifest.rejected and len(full.manifest.rejected) == 1
    write_file(source, b"ant/broken.png", make_image(1, "png"))
    os.utime(source / "ant/broken.png")
    repaired = run_shard(incremental=True)
    assert repaired.manifest.rejected == []
    check_sound(repaired, source)


def test_copies_are_found_across_the_chain(run_shard, source, grow, make_image, write_file):
    run_shard(incremental=True, duplicates="drop")
    # Numbers 0 to 2 are in old shards; a copy may replace the old one or be left out.
    for number in range(3):
        write_file(source, f"cow/copy-{number}.png".encode(), (source / f"ant/{number * 6:02d}.png").read_bytes())
    warned = run_shard(incremental=True)
    assert warned.manifest.duplicates.copies == 3
    child = run_shard(incremental=True, duplicates="drop")
    assert child.code == 0, child.stderr
    assert child.manifest.duplicates.dropped and child.manifest.generation == 1
    full = run_shard(duplicates="drop", root="elsewhere")
    assert read_chain(child.folder) == read_chain(full.folder)
    assert sum(split.samples for split in child.manifest.splits.values()) == 60
    names = {entry.name for entry in child.manifest.owned_files() if not entry.folder} | {"manifest.json"}
    assert set(child.content) == names
    grow([1])
    third = run_shard(incremental=True, duplicates="drop")
    assert third.manifest.generation == 2 and third.manifest.duplicates.copies == 3
    assert len(read_chain(third.folder)) == 61


def test_a_dry_run_names_what_is_written(run_shard, grow):
    run_shard(incremental=True)
    grow(range(4))
    shown = run_shard("--dry-run", incremental=True, printed=True)
    assert shown.code == 0 and "increment 1 on" in shown.stdout and "4 new" in shown.stdout
    child = run_shard(incremental=True)
    for name in shard_names(child):
        line = next(line for line in shown.stdout.splitlines() if line.startswith(name))
        assert abs(int(line.split()[1]) - (child.folder / name).stat().st_size) <= 1024
    assert "train-00000" not in shown.stdout
    done = run_shard("--dry-run", incremental=True, printed=True)
    assert done.code == 0 and f"nothing: {child.folder.name}" in done.stdout


@pytest.mark.slow
def test_every_engine_writes_the_same_bytes(run_shard, source, grow, job_service):
    def run(root, resources):
        return run_shard(incremental=True, root=root, resources=resources)

    roots = ("one", "two", "three")
    for root in roots:
        run(root, {"beam_workers": 1})
    grow(range(20))
    (source / "bee/01.jpg").unlink()
    with job_service() as service:
        resources = ({"beam_workers": 1}, {"beam_workers": 2}, service.resources)
        results = [run(root, one) for root, one in zip(roots, resources, strict=True)]
    assert [result.code for result in results] == [0, 0, 0]
    assert results[0].content == results[1].content == results[2].content
    check_sound(results[0], source)


@pytest.mark.slow
def test_a_killed_increment_is_written_again(run_shard, start_shard, source, grow, tmp_path):
    run_shard(incremental=True, root="killed")
    run_shard(incremental=True, root="whole")
    grow(range(20))
    (source / "bee/01.jpg").unlink()
    whole = run_shard(incremental=True, root="whole")
    spy = tmp_path / "spy"
    spy.mkdir()
    # Ends the process when the first shard is about to be published.
    (spy / "sitecustomize.py").write_text(
        "import os, signal, sys\n"
        "def end(event, arguments):\n"
        "    if event == 'os.link' and '-g001-' in os.fspath(arguments[1]):\n"
        "        os.kill(os.getpid(), signal.SIGKILL)\n"
        "sys.addaudithook(end)\n"
    )
    path = os.pathsep.join([str(spy), str(Path(__file__).parents[2])])
    process = start_shard("killed", {"beam_workers": 1}, environment={"PYTHONPATH": path}, incremental=True)
    process.communicate(timeout=120)
    assert process.returncode == -signal.SIGKILL
    folder = tmp_path / "killed" / whole.folder.name
    assert (folder / ".writing").exists() and not (folder / "manifest.json").exists()
    again = run_shard(incremental=True, root="killed")
    assert again.folder == folder and again.content == whole.content


@pytest.mark.parametrize("shard_format", FORMATS)
def test_training_reads_the_chain(run_shard, source, grow, shard_format):
    run_shard(format=shard_format, incremental=True)
    grow(range(10))
    (source / "bee/01.jpg").unlink()
    child = run_shard(format=shard_format, incremental=True)
    uri = storage.normalise(child.folder)
    manifest = load_shards(uri, DataSection())
    labels = []
    for split in SPLITS:
        reader = ShardReader(uri, manifest, split)
        labels += [reader.read(place)[1] for place in range(len(reader))]
    assert np.bincount(labels).tolist() == [30, 19, 20]


def test_a_chain_is_shown(run_shard, source, grow, tmp_path):
    full = run_shard(incremental=True)
    grow(range(3))
    (source / "bee/01.jpg").unlink()
    child = run_shard(incremental=True, compact_share=1)
    shown = "\n".join(describe(child.manifest))
    assert f"increment 1 on {full.folder.name}" in shown and "1 tombstone" in shown
    assert draw_grid(storage.normalise(child.folder), child.manifest, tmp_path / "grid.png") > 40
    reused = next(entry for entry in child.manifest.shards if entry.folder)
    path = full.folder / reused.name
    content = bytearray(path.read_bytes())
    content[600] ^= 1
    path.write_bytes(content)
    findings = verify(storage.normalise(child.folder), processes=1, progress=lambda done, total: None)
    assert findings and f"../{full.folder.name}/{reused.name} has crc32c" in findings[0]


def test_neighbours_leave_out_what_is_gone(run_shard, source, grow):
    full = run_shard(incremental=True)
    (source / "bee/01.jpg").unlink()
    child = run_shard(incremental=True, compact_share=1)
    shard = next(entry for entry in child.manifest.shards if entry.tombstones)
    name = shard.name.replace(".tar", ".idx")
    lines = (child.folder / name).read_text().splitlines()
    before = (full.folder / name).read_text().splitlines()
    assert lines[0] == f"v1.2 {shard.samples}" and set(lines[1:]) < set(before[1:])
    assert len(lines) == len(before) - 1 and make_key(b"bee/01.jpg").hex() not in "".join(lines)
    assert [entry.folder for entry in child.manifest.neighbours if entry.name == name] == [""]


def test_tfrecord_neighbours_leave_out_what_is_gone(run_shard, source):
    full = run_shard(format="tfrecord", incremental=True)
    (source / "bee/01.jpg").unlink()
    child = run_shard(format="tfrecord", incremental=True, compact_share=1)
    shard = next(entry for entry in child.manifest.shards if entry.tombstones)
    name = shard.name.replace(".tfrecord", ".idx")
    lines = [tuple(map(int, line.split())) for line in (child.folder / name).read_text().splitlines()]
    before = [tuple(map(int, line.split())) for line in (full.folder / name).read_text().splitlines()]
    (gone,) = set(before) - set(lines)
    (record,) = open_index(child.folder / "tombstones.bin")
    assert gone[0] < record["offset"] < gone[0] + gone[1] and len(lines) == shard.samples


def test_wids_finds_shards_of_the_parent(run_shard, source, grow, tmp_path):
    run_shard(incremental=True)
    grow(range(10))
    child = run_shard(incremental=True)
    total = 0
    for split in SPLITS:
        dataset = wids.ShardListDataset(
            str(child.folder / f"wids-{split}.json"), cache_dir=str(tmp_path / f"cache-{split}"), transformations=[]
        )
        keys = {dataset[number]["__key__"] for number in range(len(dataset))}
        assert len(keys) == child.manifest.splits[split].samples
        total += len(keys)
        dataset.close()
    assert total == 70


def test_compacting_everything_lets_plain_readers_read_no_dead(run_shard, source):
    run_shard(incremental=True)
    (source / "bee/01.jpg").unlink()
    child = run_shard(incremental=True, compact_share=0)
    keys = set()
    for entry in child.manifest.shards:
        with storage.local_path(entry.uri(storage.normalise(child.folder))).open("rb") as stream:
            members = webdataset.tariterators.tar_file_expander([{"url": entry.name, "stream": stream}])
            keys |= {one["__key__"] for one in webdataset.tariterators.group_by_keys(members)}
    assert make_key(b"bee/01.jpg").hex() not in keys and len(keys) == 59


def write_blobs(source, numbers, size, write_file):
    """Write files that pass as images where nothing is verified, and cost nothing to make."""
    for number in numbers:
        content = b"BM" + np.random.default_rng(number).bytes(size - 2)
        write_file(source, f"{'ab'[number % 2]}/{number:06d}.bmp".encode(), content)


def test_a_hundredth_of_new_files_writes_a_hundredth_of_the_bytes(run_shard, tmp_path, write_file):
    source = tmp_path / "blobs"
    write_blobs(source, range(2000), 24_000, write_file)
    options = {"source": str(source), "verify": "none", "incremental": True, "target_shard_bytes": 1 << 20}
    assert run_shard(**options).code == 0
    write_blobs(source, range(2000, 2020), 24_000, write_file)
    child = run_shard(**options)
    assert child.code == 0 and "20 new" in child.stderr
    share = written(child) / (sum(entry.bytes for entry in child.manifest.owned_files()))
    assert share <= 0.015


@pytest.mark.parametrize("weeks", [6, pytest.param(52, marks=pytest.mark.slow)])
def test_weekly_increments_stay_near_a_full_reshard(run_shard, tmp_path, write_file, weeks):
    source = tmp_path / "blobs"
    options = {"source": str(source), "verify": "none", "target_shard_bytes": 8192}
    number, per_week = 600, 6
    write_blobs(source, range(number), 1000, write_file)
    run_shard(**options, incremental=True)
    random = np.random.default_rng(0)
    splits: dict[str, str] = {}
    for week in range(1, weeks + 1):
        write_blobs(source, range(number, number + per_week), 1000, write_file)
        number += per_week
        here = sorted(source.rglob("*.bmp"))
        gone, changed = (here[place] for place in random.choice(len(here), 2, replace=False))
        gone.unlink()
        os.utime(changed, ns=(10**18 + week, 10**18 + week))
        child = run_shard(**options, incremental=True)
        assert child.code == 0 and child.manifest.generation == week, child.stderr
        full = count_full(source, options)
        assert len(child.manifest.shards) <= 1.5 * full
        samples = read_chain(child.folder)
        # What is gone stays away, and who is old keeps the split.
        assert set(samples) == set(read_source(source))
        assert all(splits.setdefault(path, split) == split for path, (_, split, _) in samples.items())
    reshard = run_shard(**options, root="full")
    assert read_chain(reshard.folder) == samples and len(reshard.manifest.shards) == full


def count_full(source, options):
    """Number of shards of a full reshard."""
    listing = list_source(ShardingSection(**options))
    samples = ((one.path, one.split, one.size) for one in listing.references)
    return make_plan(samples, seed=0, target_shard_bytes=options["target_shard_bytes"], min_shards=1).total_shards
