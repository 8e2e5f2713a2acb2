"""Class folders, folders of splits, and what is neither."""

import pytest

from contracts import storage
from contracts.config import SPLITS
from contracts.errors import ConfigError, DataError


def write_files(write_file, root, *paths):
    for path in paths:
        write_file(root, path.encode(), b"x")


SPLIT_FILES = [
    f"{split}/{name}/{number}.png"
    for split in ("Train", "val", "valid", "TEST")
    for name in ("cat", "dog")
    for number in range(3)
]


def test_folders_of_splits_give_the_splits(listing_of, tmp_path, write_file):
    write_files(write_file, tmp_path / "raw", *SPLIT_FILES, ".cache/x.png", "val/.DS_Store", "Train/deep/a/b.png")
    listing = listing_of(tmp_path / "raw")
    assert listing.classes == (b"cat", b"deep", b"dog")
    assert listing.splits_given
    by_path = {one.path.decode(): (listing.classes[one.label], SPLITS[one.split]) for one in listing.references()}
    assert by_path["Train/cat/0.png"] == (b"cat", "train")
    assert by_path["val/dog/1.png"] == (b"dog", "validation") and by_path["valid/dog/1.png"] == (b"dog", "validation")
    assert by_path["TEST/cat/2.png"] == (b"cat", "test")
    assert by_path["Train/deep/a/b.png"] == (b"deep", "train")
    assert list(by_path) == sorted([*SPLIT_FILES, "Train/deep/a/b.png"])
    assert [listing.counts[split] for split in range(3)] == [[3, 1, 3], [6, 0, 6], [3, 0, 3]]
    assert listing.ignored == (b".cache/", b"val/.DS_Store")


def test_given_splits_are_in_the_hash(listing_of, tmp_path, write_file):
    write_files(write_file, tmp_path / "raw", *SPLIT_FILES)
    before = listing_of(tmp_path / "raw").sha256
    # The same paths, sizes and times: only what a word stands for could differ, so a file moves and its split with it.
    (tmp_path / "raw/val/cat/0.png").rename(tmp_path / "raw/TEST/cat/x.png")
    assert listing_of(tmp_path / "raw").sha256 != before


@pytest.mark.parametrize(
    ("paths", "words"),
    [
        (
            ["train/cat/1.png", "test/cat/1.png", "unlabelled/1.png"],
            ("folders test, train, which are called like splits, beside unlabelled", "move unlabelled out", "rename"),
        ),
        (["train/1.png", "test/1.png"], ("folders test, train", "without class folders in them", "rename test, train")),
        (["train/1.png"], ("holds a single class (train)",)),
        (["train/cat/1.png", "val/cat/1.png"], ("holds a single class (cat)",)),
        (["train/cat/1.png", "test/dog/1.png"], ("no training sample of class dog",)),
    ],
)
def test_what_is_ambiguous_is_refused(listing_of, tmp_path, write_file, paths, words):
    write_files(write_file, tmp_path / "raw", *paths)
    with pytest.raises(DataError) as raised:
        listing_of(tmp_path / "raw")
    assert all(word in str(raised.value) for word in words), raised.value


def test_one_class_may_be_called_like_a_split(listing_of, tmp_path, write_file):
    paths = [f"{name}/{number}/x.png" for name in ("train", "bus") for number in range(20)]
    write_files(write_file, tmp_path / "raw", *paths)
    listing = listing_of(tmp_path / "raw")
    assert listing.classes == (b"bus", b"train") and not listing.splits_given


def test_groups_cannot_hold_where_folders_give_the_splits(listing_of, tmp_path, write_file):
    write_files(write_file, tmp_path / "raw", *SPLIT_FILES)
    with pytest.raises(ConfigError, match="give the splits"):
        listing_of(tmp_path / "raw", group_by="(cat)")


def names_of(listing, split):
    return {one.path.decode() for one in listing.references() if SPLITS[one.split] == split}


def test_a_training_folder_alone_is_split_by_hash_as_class_folders_are(listing_of, tmp_path, write_file):
    paths = [f"train/{name}/{number}.png" for name in ("cat", "dog") for number in range(40)]
    # A class that hashes alone leave a split empty of gets a sample in each.
    write_files(write_file, tmp_path / "raw", *paths, *(f"train/rare/{number}.png" for number in range(3)))
    listing = listing_of(tmp_path / "raw")
    assert listing.classes == (b"cat", b"dog", b"rare") and not listing.splits_given
    assert all(min(counts) > 0 for counts in listing.counts) and sum(map(sum, listing.counts)) == 83
    assert any("0.1 of it for validation and 0.1 of it for test" in warning for warning in listing.warnings)
    grouped = listing_of(tmp_path / "raw", group_by="([0-9]+).png", stratify=False)
    assert all(name.replace("cat", "dog") in names_of(grouped, "test") for name in names_of(grouped, "test"))


@pytest.mark.parametrize(("given", "missing"), [("val", "test"), ("test", "validation")])
def test_a_split_without_a_folder_is_drawn_from_that_of_training(listing_of, tmp_path, write_file, given, missing):
    paths = [f"{split}/{name}/{number}.png" for split in ("train", given) for name in "ab" for number in range(60)]
    write_files(write_file, tmp_path / "raw", *paths)
    listing = listing_of(tmp_path / "raw", splits={"train": 0.6, "validation": 0.2, "test": 0.2})
    assert listing.splits_given
    drawn = names_of(listing, missing)
    assert 15 <= len(drawn) <= 45 and all(name.startswith("train/") for name in drawn)
    own = names_of(listing, {"val": "validation", "test": "test"}[given])
    assert own == {one for one in paths if one.startswith(given)}
    assert any(f"0.25 of it for {missing}" in warning for warning in listing.warnings)
    # Who has no use for it keeps all for training.
    whole = listing_of(tmp_path / "raw", splits={"train": 0.6, "validation": 0.4, "test": 0.4, missing: 0})
    assert len(names_of(whole, "train")) == 120 and whole.warnings == ()


def test_images_outside_of_class_folders_are_reported(listing_of, source, write_file, tmp_path):
    write_files(write_file, source, *(f"{number:02d}.JPG" for number in range(12)), "README", "list.csv", ".1.png")
    (warning,) = [one for one in listing_of(source).warnings if "outside" in one]
    assert "12 images outside of class folders left out: 00.JPG" in warning and warning.endswith("09.JPG and 2 more")
    write_files(write_file, tmp_path / "splits", *SPLIT_FILES, "val/lost.png")
    (warning,) = [one for one in listing_of(tmp_path / "splits").warnings if "outside" in one]
    assert "1 image outside of class folders left out: val/lost.png" in warning


def test_a_bucket_is_read_alike(bucket_server, listing_of, tmp_path, write_file):
    paths = [*SPLIT_FILES, "val/lost.png", ".cache/x.png", "TEST/dog/.hidden/1.png"]
    write_files(write_file, tmp_path / "raw", *paths)
    for path in paths:
        storage.publish(f"gs://bucket-1/raw/{path}", b"x")
    here, there = listing_of(tmp_path / "raw"), listing_of("gs://bucket-1/raw")
    assert [one[:4] for one in there.references()] == [one[:4] for one in here.references()]
    assert (there.classes, there.counts, there.splits_given) == (here.classes, here.counts, True)
    assert there.warnings == here.warnings
    assert there.is_remote and not here.is_remote
