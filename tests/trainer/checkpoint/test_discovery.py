"""The newest checkpoint that counts and is whole; what is passed over is named, with reasons."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contracts import storage
from contracts.artifacts import MANIFEST_NAME
from contracts.errors import DataError
from tests.trainer.checkpoint.attempts import Attempt, committed, file_of, groups, manifest
from trainer.checkpoint.discovery import CheckpointFolder, Listing, find_newest, list_checkpoints, require_same_inputs
from trainer.checkpoint.loading import load_model_state


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


@pytest.mark.parametrize("name", ["model.safetensors", "optimizer.safetensors"])
@pytest.mark.parametrize(
    ("damage", "why"), [(flip, "crc32c"), (truncate, "bytes"), (Path.unlink, "is missing")], ids=lambda x: str(x)[:16]
)
def test_a_damaged_checkpoint_is_passed_over_and_named(
    tmp_path: Path, damage: Callable[[Path], None], why: str, name: str
) -> None:
    Attempt(tmp_path).save(1, 2)
    damage(file_of(tmp_path, 2, name))
    attempt = Attempt(tmp_path)
    assert attempt.resumed_at == 1
    assert len(attempt.said) == 1
    assert all(word in attempt.said[0] for word in ("step-00000002", name, why))


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{}",
        b"\xff",
        b'{"kind": "shards"}',
        b'{"kind": "checkpoint"',
        b"[" * 200_000,
        b'{"kind": "checkpoint", "format_version": 1, "files": []}',
    ],
    ids=range(7),
)
def test_a_damaged_manifest_is_passed_over(tmp_path: Path, content: bytes) -> None:
    Attempt(tmp_path).save(1, 2)
    file_of(tmp_path, 2, MANIFEST_NAME).write_bytes(content)
    attempt = Attempt(tmp_path)
    assert attempt.resumed_at == 1
    assert len(attempt.said) == 1
    assert "step-00000002" in attempt.said[0]


def test_data_without_a_manifest_is_passed_over_and_named(tmp_path: Path) -> None:
    Attempt(tmp_path).save(1, 2)
    file_of(tmp_path, 2, MANIFEST_NAME).unlink()
    attempt = Attempt(tmp_path)
    assert attempt.resumed_at == 1
    assert "was not finished" in attempt.said[0]


def test_a_manifest_of_another_step_or_without_files_is_passed_over(tmp_path: Path) -> None:
    """As from a copy by hand."""
    Attempt(tmp_path).save(1, 2)
    moved = tmp_path / "checkpoints" / "step-00000009.000001"
    moved.mkdir()
    (moved / MANIFEST_NAME).write_bytes(file_of(tmp_path, 2, MANIFEST_NAME).read_bytes())
    empty = tmp_path / "checkpoints" / "step-00000008.000001"
    empty.mkdir()
    (empty / MANIFEST_NAME).write_bytes(manifest(8, attempt=1).to_json())
    attempt = Attempt(tmp_path)
    assert attempt.resumed_at == 2
    assert "is of step 2" in attempt.said[0]
    assert "names no files" in attempt.said[1]


@pytest.mark.parametrize("name", ["../../other/model.safetensors", "/etc/passwd", "model.pt", "a//model.safetensors"])
def test_a_manifest_cannot_name_files_elsewhere(tmp_path: Path, name: str) -> None:
    Attempt(tmp_path).save(1, 2)
    path = file_of(tmp_path, 2, MANIFEST_NAME)
    values = json.loads(path.read_bytes())
    values["files"][0]["name"] = name
    path.write_text(json.dumps(values))
    attempt = Attempt(tmp_path)
    assert attempt.resumed_at == 1
    assert "is damaged at files" in attempt.said[0]


def test_what_a_zombie_commits_does_not_count(tmp_path: Path) -> None:
    """It was cut off and goes on; even if it commits without looking for successors."""
    zombie = Attempt(tmp_path, keep_last=9)
    zombie.save(120, 130)
    file_of(tmp_path, 130, "model.safetensors").unlink()
    successor = Attempt(tmp_path, keep_last=9)
    assert successor.resumed_at == 120
    (tmp_path / "checkpoints" / "attempt-000002.json").rename(tmp_path / "hidden")
    zombie.save(140)
    (tmp_path / "hidden").rename(tmp_path / "checkpoints" / "attempt-000002.json")
    third = Attempt(tmp_path, keep_last=9)
    assert third.resumed_at == 120
    assert "attempt 2 resumed from step 120, so later steps of attempt 1 do not count" in third.said[0]
    third.save(125)
    assert Attempt(tmp_path).resumed_at == 125
    # Not ours to delete.
    assert committed(tmp_path) == [120, 125, 130, 140]


def test_two_processes_never_get_one_number(tmp_path: Path) -> None:
    numbers = [Attempt(tmp_path).manager.attempt_number for _ in range(4)]
    assert numbers == [1, 2, 3, 4]


def test_a_damaged_record_is_said_and_bounds_nothing(tmp_path: Path) -> None:
    Attempt(tmp_path).save(10)
    (tmp_path / "checkpoints" / "attempt-000002.json").write_text("{")
    attempt = Attempt(tmp_path)
    assert attempt.resumed_at == 10
    assert "attempt-000002.json cannot be read" in attempt.said[0]


def test_other_names_are_passed_over(tmp_path: Path) -> None:
    for name in ("step-1.1", "step-00000001.a", "latest", "step-00000009.000001.bak", "attempt-1.json"):
        (tmp_path / "checkpoints" / name).mkdir(parents=True)
    listing = list_checkpoints(storage.normalise(tmp_path / "checkpoints"))
    assert (listing.places, listing.resumed_at) == ([], {})


def test_other_inputs_are_named() -> None:
    document = manifest(1, made_from={"model": "a", "train": "b"})
    require_same_inputs("file:///x", document, {"model": "a", "train": "b"})
    with pytest.raises(DataError, match="another model"):
        require_same_inputs("file:///x", document, {"model": "c", "train": "b"})


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 4), st.integers(1, 5)), min_size=1, max_size=12))
def test_the_newest_that_counts_is_one_that_its_successors_could_see(story: list[tuple[bool, int, int]]) -> None:
    """Attempts start one after another; any that ever started may commit the steps after its own newest, at any time.

    The line of resumes is followed by hand and compared with what the records say.
    """
    resumed_at: dict[int, int] = {1: 0}
    at: dict[int, int] = {1: 0}
    line: list[CheckpointFolder] = []
    places: list[CheckpointFolder] = []
    for starts, who, steps in story:
        latest = max(at)
        if starts:
            step = max((place.step for place in line), default=0)
            resumed_at[latest + 1] = at[latest + 1] = step
            continue
        number = 1 + who % latest
        at[number] += steps
        place = CheckpointFolder("", at[number], number)
        places.append(place)
        # Nobody but the latest attempt adds to the line: what others commit is at best a second copy of a step before.
        if number == latest:
            line.append(place)
    listing = Listing(places, resumed_at, [])
    counting = [place for place in places if listing.left_behind_by(place) is None]
    expected = max((place.step for place in line), default=0)
    assert max((place.step for place in counting), default=0) == expected
    assert set(line) <= set(counting)


def test_a_listing_is_of_the_moment(tmp_path: Path) -> None:
    """A checkpoint that goes between listing and reading is passed over."""
    attempt = Attempt(tmp_path, keep_last=9)
    attempt.save(1, 2)
    listing = list_checkpoints(attempt.manager.folder_uri)
    storage.delete_tree(listing.places[0].uri, manifest_name=MANIFEST_NAME)
    found = find_newest(attempt.manager.folder_uri, listing)
    assert found.manifest is not None
    assert found.manifest.step == 1
    assert groups(1)["model"]["w"].equal(load_model_state(found.uri, found.manifest)["w"])
