"""Read tensors, or rows of them, from the safetensors files of a checkpoint with any number of ranks.

A group of tensors (model, optimizer, ...) is one file, written by rank 0. With tensors sharded by FSDP2, it is one file
per rank with that rank's rows: a sharded tensor is the concatenation of its rows in rank order. Replicated tensors of
such a group are in the file of rank 0. Nothing is unpickled.
"""

from __future__ import annotations

import json
import math
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache, partial
from pathlib import Path
from types import EllipsisType
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from contracts import storage
from contracts.artifacts import CheckpointManifest, FileEntry, tensor_file
from contracts.errors import DataError

DTYPES: dict[str, torch.dtype] = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}
# File format (https://huggingface.co/docs/safetensors): header length, JSON header, data.
LENGTH_BYTES = 8
# Errors of reading a malformed header.
MALFORMED = (ValueError, KeyError, TypeError, AttributeError, RecursionError)


class StoredTensor:
    """A tensor of a checkpoint, read on indexing: `stored[first:last]` for rows, `stored[...]` for all."""

    def __init__(self, name: str, dtype: torch.dtype) -> None:
        self._name, self.dtype = name, dtype
        self.shape: tuple[int, ...] = ()
        self._parts: list[tuple[Callable[[], Any], int]] = []

    def append(self, open_file: Callable[[], Any], dtype: torch.dtype, shape: tuple[int, ...]) -> None:
        """Add the part in the next file: the entire tensor, or its next rows.

        Raises:
            ValueError: Dtype or row shape differ.
        """
        same_row_shape = not self._parts or (shape and self.shape and shape[1:] == self.shape[1:])
        if not same_row_shape or dtype != self.dtype:
            raise ValueError(f"{self._name} differs between files")
        self.shape = (self.shape[0] + shape[0], *shape[1:]) if self._parts else shape
        self._parts.append((open_file, shape[0] if shape else 1))

    def __getitem__(self, rows: slice | EllipsisType) -> torch.Tensor:
        """Return a tensor on the CPU, which may be backed by its file.

        Raises:
            DataError: A file is missing or damaged.
        """
        if not self.shape:
            tensor: torch.Tensor = self._parts[0][0]().get_tensor(self._name)
            return tensor
        first, last = (0, self.shape[0]) if isinstance(rows, EllipsisType) else (rows.start, rows.stop)
        pieces, offset = [], 0
        for open_file, count in self._parts:
            low, high = max(first - offset, 0), min(last - offset, count)
            if low < high:
                pieces.append(open_file().get_slice(self._name)[low:high])
            offset += count
        if len(pieces) == 1:
            return pieces[0]  # type: ignore[no-any-return]
        return torch.cat(pieces) if pieces else torch.empty((0, *self.shape[1:]), dtype=self.dtype)


# Tensors of a group by name.
Group = Mapping[str, torch.Tensor | StoredTensor]
Groups = Mapping[str, Group]


@contextmanager
def open_groups(
    folder_uri: str, manifest: CheckpointManifest, *names: str, on_piece: Callable[[], object] = lambda: None
) -> Iterator[dict[str, dict[str, StoredTensor]]]:
    """Open the groups of a checkpoint, or those of `names` that it has, for reading in the block.

    On first use a file is downloaded if it is in a bucket, and its crc32c is verified. `on_piece` is called after each
    piece.

    Raises:
        DataError: A file is missing, damaged or malformed, or files are inconsistent.
    """
    with tempfile.TemporaryDirectory(prefix="shardline-checkpoint-") as downloads:
        groups = [group for group in manifest.groups if not names or group in names]
        yield {group: _open_group(folder_uri, manifest, group, Path(downloads), on_piece) for group in groups}


def load_groups(
    folder_uri: str, manifest: CheckpointManifest, *names: str, on_piece: Callable[[], object] = lambda: None
) -> dict[str, dict[str, torch.Tensor]]:
    """Read groups of tensors to the CPU; arguments and errors as in `open_groups`."""
    with open_groups(folder_uri, manifest, *names, on_piece=on_piece) as groups:
        return {group: {name: stored[...] for name, stored in tensors.items()} for group, tensors in groups.items()}


def load_model_state(folder_uri: str, manifest: CheckpointManifest) -> dict[str, torch.Tensor]:
    """Read parameters and buffers of a checkpoint, or the best weights of a finished training.

    Raises:
        DataError: A file is missing or damaged.
    """
    groups = load_groups(folder_uri, manifest, "model")
    require_groups(groups, ["model"], where=folder_uri)
    return groups["model"]


def read_header(uri: str, file_bytes: int) -> dict[str, tuple[str, tuple[int, ...]]]:
    """Return dtype and shape of each tensor in a safetensors file, without reading data.

    Raises:
        ValueError: Its size does not match the header, or the header is malformed (any of `MALFORMED`).
        FileNotFoundError: It is missing.
    """
    if (size := storage.info(uri).size) != file_bytes:
        raise ValueError(f"it has {size} bytes, its manifest says {file_bytes}")
    length = int.from_bytes(storage.read_range(uri, 0, LENGTH_BYTES), "little")
    data_bytes = file_bytes - LENGTH_BYTES - length
    if data_bytes < 0:
        raise ValueError(f"it claims a header of {length} bytes in a file of {file_bytes}")
    header = json.loads(storage.read_range(uri, LENGTH_BYTES, length))
    header.pop("__metadata__", None)
    described = max((tensor["data_offsets"][1] for tensor in header.values()), default=0)
    if described != data_bytes:
        raise ValueError(f"its tensors have {described} bytes, its data {data_bytes}")
    return {name: (tensor["dtype"], tuple(map(int, tensor["shape"]))) for name, tensor in header.items()}


def _open_group(
    folder_uri: str, manifest: CheckpointManifest, group: str, downloads: Path, on_piece: Callable[[], object]
) -> dict[str, StoredTensor]:
    """Return the tensors of a group from the headers of its files, in rank order."""
    entries = manifest.files_of(group)
    names = [entry.name.rpartition("/")[2] for entry in entries]
    if names not in ([tensor_file(group)], [tensor_file(group, rank, len(names)) for rank in range(len(names))]):
        raise _refusal(folder_uri, f"its manifest names {', '.join(names)}, which are not the files of all ranks")
    tensors: dict[str, StoredTensor] = {}
    for entry in entries:
        open_file = cache(partial(_open_file, folder_uri, entry, downloads, on_piece))
        with _refused(folder_uri, entry):
            for name, (dtype, shape) in read_header(entry.uri(folder_uri), entry.bytes).items():
                if dtype not in DTYPES:
                    raise ValueError(f"{name[:80]} is of type {dtype}; allowed are {', '.join(DTYPES)}")
                stored = tensors.setdefault(name, StoredTensor(name, DTYPES[dtype]))
                stored.append(open_file, DTYPES[dtype], shape)
    return tensors


def _open_file(folder_uri: str, entry: FileEntry, downloads: Path, on_piece: Callable[[], object]) -> Any:
    """Verify the crc32c of a file and open it; safetensors checks for gaps and overlaps."""
    uri = entry.uri(folder_uri)
    with _refused(folder_uri, entry):
        if not storage.is_local(uri):
            path = downloads / entry.name.replace("/", "-")
            with path.open("wb") as file:

                def write(piece: bytes) -> None:
                    file.write(piece)
                    on_piece()

                storage.copy_range(uri, 0, entry.bytes, write)
            uri = storage.normalise(path)
        crc32c = storage.crc32c_of(uri, read=True, on_piece=on_piece)
        if crc32c != entry.crc32c:
            raise ValueError(f"it has crc32c {crc32c}, its manifest says {entry.crc32c}")
        return safe_open(storage.local_path(uri), framework="pt")


@contextmanager
def _refused(folder_uri: str, entry: FileEntry) -> Iterator[None]:
    """Raise read errors of a file as DataError."""
    try:
        yield
    except (FileNotFoundError, NotADirectoryError):
        raise _refusal(folder_uri, f"{entry.relative_path} is missing") from None
    except (*MALFORMED, SafetensorError) as error:
        raise _refusal(folder_uri, f"{entry.relative_path} is refused: {str(error)[:200]}") from error


# --- comparison with a training ---------------------------------------------------------------------------------------


def require_groups(actual: Iterable[str], expected: Iterable[str], *, where: str) -> None:
    """Raise DataError if a group of tensors is missing."""
    actual = sorted(actual)
    if missing := sorted(set(expected) - set(actual)):
        raise _refusal(where, f"it has {', '.join(actual)}, and no {', '.join(missing)}")


def require_same(stored: Group, expected: Mapping[str, torch.Tensor], *, where: str) -> None:
    """Raise DataError if names, dtypes or shapes differ from the model's."""
    for name in sorted({*stored, *expected}):
        if name not in expected:
            raise _refusal(where, f"{name} is not in the model")
        if name not in stored:
            raise _refusal(where, f"{name} of the model is not in it")
        actual, model_type = (f"{tuple(tensor.shape)} {tensor.dtype}" for tensor in (stored[name], expected[name]))
        if actual != model_type:
            raise _refusal(where, f"{name} is {actual}, the model's is {model_type}")


def require_optimizer_state(state: Group, parameters: Mapping[str, torch.Tensor], *, where: str) -> None:
    """Raise DataError for optimizer tensors (`parameter/entry`) that do not match the parameters."""
    for key, value in state.items():
        name, shape = key.rpartition("/")[0], tuple(value.shape)
        # Step counts are one-element tensors of any shape.
        if name not in parameters or (shape != tuple(parameters[name].shape) and math.prod(shape) != 1):
            raise _refusal(where, f"optimizer state {key} {shape} fits no parameter")


def _refusal(uri: str, problem: str) -> DataError:
    return DataError(
        f"checkpoint {storage.display(uri)}: {problem}",
        allowed="a whole checkpoint of the configured model and optimizer",
        todo="take another checkpoint or this one's configuration, or train again with --fresh",
    )
