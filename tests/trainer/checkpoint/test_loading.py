"""Tensors come back whole or by rows, from any number of files; what does not agree is refused, and nothing is run."""

import json
import pickle
import struct
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import google_crc32c
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save

from contracts import storage
from contracts.artifacts import CheckpointManifest, FileEntry, tensor_file
from contracts.errors import DataError
from rehearsal.gcs import BucketServer
from tests.trainer.checkpoint.attempts import manifest
from trainer.checkpoint.loading import (
    load_model_state,
    open_groups,
    require_optimizer_state,
    require_same,
)


def write(folder: Path | str, name: str, content: bytes) -> FileEntry:
    storage.publish(storage.join(storage.normalise(folder), name), content)
    return FileEntry(name=name, bytes=len(content), crc32c=f"{google_crc32c.value(content):08x}")


def write_parts(folder: Path | str, *parts: Mapping[str, torch.Tensor]) -> CheckpointManifest:
    """A checkpoint by hand: the tensors of each rank."""
    files = [write(folder, tensor_file("model", rank, len(parts)), save(dict(part))) for rank, part in enumerate(parts)]
    return manifest(1, files=files)


def cut(folder: Path | str, whole: torch.Tensor, cuts: list[int]) -> CheckpointManifest:
    """A checkpoint of one tensor, cut into the files of several ranks, and a scalar of rank 0."""
    bounds = [0, *cuts, whole.shape[0]]
    parts = [{"w": whole[first:last].clone()} for first, last in pairwise(bounds) if last > first]
    ranks = [{**parts[0], "count": torch.tensor(7)}, *parts[1:]]
    return write_parts(folder, *ranks)


@settings(max_examples=50, deadline=None)
@given(st.data())
def test_rows_of_any_cut_come_back_in_any_other(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    folder = tmp_path_factory.mktemp("cut")
    num_rows = data.draw(st.integers(1, 9))
    whole = torch.randn(num_rows, 2)
    document = cut(folder, whole, sorted(data.draw(st.lists(st.integers(0, num_rows), max_size=4))))
    uri = storage.normalise(folder)
    start = data.draw(st.integers(0, num_rows))
    stop = data.draw(st.integers(start, num_rows))
    with open_groups(uri, document) as groups:
        stored = groups["model"]["w"]
        assert (stored.shape, stored.dtype) == ((num_rows, 2), torch.float32)
        assert torch.equal(stored[start:stop], whole[start:stop])
        assert torch.equal(stored[...], whole)
        assert int(groups["model"]["count"][...]) == 7
    assert torch.equal(load_model_state(uri, document)["w"], whole)


@pytest.mark.parametrize("place", ["disk", "bucket"])
def test_files_without_wanted_rows_are_not_read(place: str, tmp_path: Path, bucket_server: BucketServer) -> None:
    uri = storage.normalise(tmp_path if place == "disk" else "gs://bucket-1/checkpoint")
    document = cut(uri, torch.arange(8.0).reshape(4, 2), [2])
    name = storage.join(uri, tensor_file("model", 1, 2))
    content = bytearray(storage.read_bytes(name))
    content[-1] ^= 1
    storage.replace(name, bytes(content))
    with open_groups(uri, document) as groups:
        stored = groups["model"]["w"]
        assert stored[0:2].tolist() == [[0, 1], [2, 3]]
        with pytest.raises(DataError, match=r"00001-of-00002.*crc32c"):
            stored[1:3]


def test_files_that_disagree_are_refused(tmp_path: Path) -> None:
    document = write_parts(tmp_path / "shapes", {"w": torch.zeros(2, 2)}, {"w": torch.zeros(2, 3)})
    with pytest.raises(DataError, match="w differs between files"):
        load_model_state(storage.normalise(tmp_path / "shapes"), document)
    document = write_parts(tmp_path / "few", *[{"w": torch.zeros(2, 2)}] * 3)
    with pytest.raises(DataError, match="not the files of all ranks"):
        load_model_state(
            storage.normalise(tmp_path / "few"), document.model_copy(update={"files": document.files[::2]})
        )


class Runs:
    """What a pickle would run."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> Any:
        return (self.mark.touch, ())


def header(**tensors: Any) -> bytes:
    content = json.dumps(tensors).encode()
    return struct.pack("<Q", len(content)) + content


def tensor(dtype: str = "F32", shape: Any = (2,), offsets: Any = (0, 8)) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets}


def hostile_files(mark: Path) -> dict[str, bytes]:
    torch_file = pickle.dumps({"w": Runs(mark)})
    data = bytes(8)
    return {
        "a pickle": torch_file,
        "a header longer than the file": struct.pack("<Q", 2**40) + b"{}",
        "a terabyte": header(w=tensor(shape=[250_000_000_000], offsets=[0, 1_000_000_000_000])),
        "overlap": header(v=tensor(), w=tensor()) + data,
        "shape and bytes differ": header(w=tensor(shape=[3])) + data,
        "a type that a checkpoint has not": header(w=tensor("F4")) + data,
    }


@pytest.mark.parametrize("kind", hostile_files(Path()).keys())
def test_a_hostile_file_is_refused_although_its_manifest_agrees(tmp_path: Path, kind: str) -> None:
    """Size and crc32c are right: only what the file says of itself is wrong."""
    entry = write(tmp_path, "model.safetensors", hostile_files(tmp_path / "was-run")[kind])
    with pytest.raises(DataError, match="is refused"):
        load_model_state(storage.normalise(tmp_path), manifest(1, files=[entry]))
    assert not (tmp_path / "was-run").exists()


@pytest.mark.parametrize(
    ("found", "words"),
    [
        ({"w": torch.zeros(3)}, "w is \\(3,\\)"),
        ({}, "w of the model is not in it"),
        ({"w": torch.zeros(2), "x": torch.zeros(1)}, "x is not in the model"),
    ],
)
def test_tensors_of_another_model_are_named(found: dict[str, torch.Tensor], words: str) -> None:
    require_same({"w": torch.ones(2)}, {"w": torch.zeros(2)}, where="file:///x")
    with pytest.raises(DataError, match=words):
        require_same(found, {"w": torch.zeros(2)}, where="file:///x")


def test_optimizer_state_of_no_parameter_is_named() -> None:
    parameters = {"w": torch.zeros(2)}
    require_optimizer_state({"w/exp_avg": torch.ones(2), "w/step": torch.tensor(1.0)}, parameters, where="file:///x")
    for key in ("v/exp_avg", "w/exp_avg"):
        with pytest.raises(DataError, match="fits no parameter"):
            require_optimizer_state({key: torch.zeros(3)}, parameters, where="file:///x")
