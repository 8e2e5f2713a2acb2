"""Tensors come back whole or by rows, from any number of files; what does not agree is refused, and nothing is run."""

import json
import pickle
import struct
from pathlib import Path
from typing import Any

import google_crc32c
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from contracts import storage
from contracts.artifacts import MANIFEST_NAME, CheckpointManifest, FileEntry, tensor_file
from contracts.errors import DataError
from tests.trainer.checkpoint.attempts import Attempt, file_of, manifest
from trainer.checkpoint.framing import make_header
from trainer.checkpoint.loading import load_group, load_model_state, load_rows, require_optimizer_state, require_same
from trainer.checkpoint.tensors import Group, Rows


def write(folder: Path, name: str, content: bytes) -> FileEntry:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_bytes(content)
    return FileEntry(name=name, bytes=len(content), crc32c=f"{google_crc32c.value(content):08x}")


def file(*tensors: tuple[str, torch.Tensor, tuple[int, ...] | None, int]) -> bytes:
    """A file by hand: (name, tensor, shape of the whole, first row)."""
    header, entries = make_header((name, t.dtype, tuple(t.shape), whole, row) for name, t, whole, row in tensors)
    found = {name: t for name, t, _, _ in tensors}
    return header + b"".join(
        found[entry.name].contiguous().reshape(-1).view(torch.uint8).numpy().tobytes() for entry in entries
    )


def cut(folder: Path, whole: torch.Tensor, cuts: list[int]) -> CheckpointManifest:
    """A checkpoint of one tensor, cut into the files of several ranks, and a scalar of rank 0."""
    bounds = [0, *cuts, whole.shape[0]]
    ranks = len(bounds) - 1
    files = []
    for rank in range(ranks):
        rows = whole[bounds[rank] : bounds[rank + 1]]
        tensors: list[Any] = [("w", rows, tuple(whole.shape), bounds[rank])] if len(rows) else []
        if rank == 0:
            tensors.append(("count", torch.tensor(7), None, 0))
        files.append(write(folder, tensor_file("model", rank, ranks), file(*tensors)))
    return manifest(1, files=files)


@given(st.data())
def test_rows_of_any_cut_come_back_in_any_other(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    folder = tmp_path_factory.mktemp("cut")
    num_rows = data.draw(st.integers(1, 9))
    whole = torch.randn(num_rows, 2)
    cuts = sorted(data.draw(st.lists(st.integers(0, num_rows), max_size=4)))
    document = cut(folder, whole, cuts)
    uri = storage.normalise(folder)
    assert torch.equal(load_group(uri, document, "model")["w"], whole)
    start = data.draw(st.integers(0, num_rows))
    stop = data.draw(st.integers(start, num_rows))
    part = load_rows(uri, document, "model", lambda group, name, shape: (start, stop))
    assert int(count_of(part)) == 7
    if (start, stop) == (0, num_rows):
        assert torch.equal(rows_of(part), whole)
        return
    assert isinstance(part["w"], Rows)
    assert (part["w"].global_shape, part["w"].offset) == ((num_rows, 2), start)
    assert torch.equal(rows_of(part), whole[start:stop])
    assert rows_of(part).untyped_storage().nbytes() == 8 * (stop - start), "memory is taken for the wanted rows alone"


def rows_of(part: Group) -> torch.Tensor:
    return part["w"].tensor if isinstance(part["w"], Rows) else part["w"]


def count_of(part: Group) -> torch.Tensor:
    assert isinstance(part["count"], torch.Tensor)
    return part["count"]


def test_files_without_wanted_rows_are_not_read(tmp_path: Path) -> None:
    document = cut(tmp_path, torch.arange(8.0).reshape(4, 2), [2])
    path = tmp_path / tensor_file("model", 1, 2)
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    uri = storage.normalise(tmp_path)
    part = load_rows(uri, document, "model", lambda group, name, shape: (0, 2))
    assert rows_of(part).tolist() == [[0, 1], [2, 3]]
    with pytest.raises(DataError, match=r"00001-of-00002.*crc32c"):
        load_rows(uri, document, "model", lambda group, name, shape: (1, 3))


@pytest.mark.parametrize(
    "parts",
    [
        [(0, 2), (3, 4)],
        [(0, 2), (1, 4)],
        [(0, 2)],
        [(0, 2), (0, 2)],
        [(0, 3), (0, 3), (3, 4)],
    ],
    ids=["a hole", "overlap", "too few", "twice", "twice and whole"],
)
def test_files_that_do_not_make_a_tensor_are_refused(tmp_path: Path, parts: list[tuple[int, int]]) -> None:
    whole = torch.arange(8.0).reshape(4, 2)
    files = [
        write(tmp_path, tensor_file("model", rank, len(parts)), file(("w", whole[a:b], (4, 2), a)))
        for rank, (a, b) in enumerate(parts)
    ]
    with pytest.raises(DataError, match=r"each row of w once|and there is no other file"):
        load_group(storage.normalise(tmp_path), manifest(1, files=files), "model")


def test_files_that_disagree_are_refused(tmp_path: Path) -> None:
    files = [
        write(tmp_path, tensor_file("model", 0, 2), file(("w", torch.zeros(2, 2), (4, 2), 0))),
        write(tmp_path, tensor_file("model", 1, 2), file(("w", torch.zeros(2, 3), (4, 3), 2))),
    ]
    with pytest.raises(DataError, match="differs between files"):
        load_group(storage.normalise(tmp_path), manifest(1, files=files), "model")


class Runs:
    """What a pickle would run."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> Any:
        return (self.mark.touch, ())


def hostile_files(mark: Path) -> dict[str, bytes]:
    torch_file = pickle.dumps({"w": Runs(mark)})
    valid = file(("w", torch.zeros(2), None, 0))
    return {
        "a pickle": torch_file,
        "a pickle behind a length": struct.pack("<Q", len(torch_file)) + torch_file,
        "a header longer than the file": struct.pack("<Q", 2**40) + b"{}",
        "a header of 2**64 - 1": b"\xff" * 8 + b"{}",
        "too short": b"\x01",
        "empty": b"",
        "more data than tensors": valid + b"\x00",
        "less data than tensors": valid[:-1],
        "a terabyte": struct.pack("<Q", 72)
        + b'{"w":{"dtype":"F32","shape":[250000000000],"data_offsets":[0,1000000000000]}}'.ljust(72)[:72],
    }


@pytest.mark.parametrize("kind", hostile_files(Path()).keys())
def test_a_hostile_file_is_refused_although_its_manifest_agrees(tmp_path: Path, kind: str) -> None:
    """Size and crc32c are right: only what the file says of itself is wrong."""
    entry = write(tmp_path, "model.safetensors", hostile_files(tmp_path / "was-run")[kind])
    with pytest.raises(DataError, match="is refused"):
        load_model_state(storage.normalise(tmp_path), manifest(1, files=[entry]))
    assert not (tmp_path / "was-run").exists()


@given(
    st.lists(st.tuples(st.sampled_from([torch.float32, torch.bfloat16, torch.int64, torch.uint8]), st.integers(0, 99)))
)
def test_tensors_begin_at_their_items_size_and_those_that_fill_cache_lines_at_a_line(
    tensors: list[tuple[torch.dtype, int]],
) -> None:
    # The count of steps of an optimizer is what would push all behind it off the lines.
    named = [(f"{number}/{at}", *one) for number, one in enumerate(tensors) for at in range(2)]
    _, entries = make_header((name, dtype, (rows, 4), None, 0) for name, dtype, rows in named)
    assert all(entry.start % entry.dtype.itemsize == 0 for entry in entries)
    assert all(entry.start % 64 == 0 for entry in entries if (entry.stop - entry.start) % 64 == 0)


def test_files_of_others_are_read_unaligned_too(tmp_path: Path) -> None:
    header = json.dumps(
        {
            "flag": {"dtype": "BOOL", "shape": [1], "data_offsets": [0, 1]},
            "w": {"dtype": "F32", "shape": [2], "data_offsets": [1, 9]},
        }
    ).encode()
    content = struct.pack("<Q", len(header)) + header + b"\x01" + struct.pack("<2f", 1.5, -2)
    entry = write(tmp_path, "model.safetensors", content)
    assert load_model_state(storage.normalise(tmp_path), manifest(1, files=[entry]))["w"].tolist() == [1.5, -2]


def test_loading_a_damaged_checkpoint_is_a_user_error(tmp_path: Path) -> None:
    attempt = Attempt(tmp_path)
    attempt.save(1)
    found = attempt.manager.newest_valid()
    assert found.manifest is not None
    path = file_of(tmp_path, 1, "model.safetensors")
    path.write_bytes(path.read_bytes()[:-1] + b"\x01")
    with pytest.raises(DataError, match="crc32c"):
        load_model_state(found.uri, found.manifest)
    path.unlink()
    with pytest.raises(DataError, match="is missing"):
        load_model_state(found.uri, found.manifest)
    with pytest.raises(DataError, match="no ema in its manifest"):
        load_group(found.uri, found.manifest, "ema")
    assert file_of(tmp_path, 1, MANIFEST_NAME).exists()


@pytest.mark.parametrize(
    ("found", "words"),
    [
        ({"w": torch.zeros(3)}, "w is \\(3,\\)"),
        ({"w": torch.zeros(2, dtype=torch.float64)}, "float64"),
        ({}, "w of the model is not in it"),
        ({"w": torch.zeros(2), "x": torch.zeros(1)}, "x is not in the model"),
    ],
)
def test_tensors_of_another_model_are_named(found: dict[str, torch.Tensor], words: str) -> None:
    require_same({"w": torch.ones(2)}, {"w": torch.zeros(2)}, where="file:///x")
    with pytest.raises(DataError, match=words):
        require_same(found, {"w": torch.zeros(2)}, where="file:///x")


@pytest.mark.parametrize("key", ["v/exp_avg", "w/exp_avg", "exp_avg"])
def test_optimizer_state_of_no_parameter_is_named(key: str) -> None:
    parameters = {"w": torch.zeros(2)}
    require_optimizer_state({"w/exp_avg": torch.ones(2), "w/step": torch.tensor(1.0)}, parameters, where="file:///x")
    with pytest.raises(DataError, match="fits no parameter"):
        require_optimizer_state({key: torch.zeros(3)}, parameters, where="file:///x")
