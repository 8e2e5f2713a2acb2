"""Groups of tensors back from files: each is checked against its manifest and against itself before it is used.

Nothing is unpickled: files are safetensors, and the header is read by framing.py, which believes nothing. The bytes of
a file are compared with their crc32c as they come, also when discovery has read them before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from math import prod
from typing import BinaryIO, NoReturn

import google_crc32c
import torch

from contracts import storage
from contracts.artifacts import CheckpointManifest, FileEntry
from contracts.errors import DataError
from trainer.checkpoint.framing import LENGTH_BYTES, Entry, Malformed, header_bytes, parse_header
from trainer.checkpoint.tensors import ChooseRows, Group, Rows, global_shape


def load_group(
    folder_uri: str, manifest: CheckpointManifest, group: str, *, on_piece: Callable[[], object] = lambda: None
) -> dict[str, torch.Tensor]:
    """Return the tensors of a group on the CPU, put together from the files of all ranks that wrote it.

    Args:
        folder_uri: Folder of the manifest: a checkpoint's, or a finished training's.
        manifest: The manifest.
        group: model, optimizer, ...
        on_piece: Called after each piece of a file that is read.

    Raises:
        DataError: A file is missing, damaged, malformed, or the files do not make whole tensors.
    """
    return {name: found.tensor for name, found in _load(folder_uri, manifest, group, None, on_piece).items()}


def load_rows(
    folder_uri: str,
    manifest: CheckpointManifest,
    group: str,
    rows: ChooseRows,
    *,
    on_piece: Callable[[], object] = lambda: None,
) -> dict[str, torch.Tensor | Rows]:
    """Return some rows of each tensor of a group on the CPU: memory is taken for these alone.

    A file that has none of them is not read beyond its header, any other one to its end, for its checksum.

    Args:
        folder_uri: Folder of the manifest.
        manifest: The manifest.
        group: model, optimizer, ...
        rows: Which rows; a tensor of which all are wanted, and a scalar, comes whole.
        on_piece: Called after each piece of a file that is read.

    Raises:
        DataError: As `load_group`.
    """
    return {
        name: found.tensor if found.is_whole else Rows(found.tensor, found.global_shape, found.wanted[0])
        for name, found in _load(folder_uri, manifest, group, rows, on_piece).items()
    }


def load_model_state(folder_uri: str, manifest: CheckpointManifest) -> dict[str, torch.Tensor]:
    """Return parameters and buffers of a checkpoint, or the best weights of a finished training.

    Raises:
        DataError: A file is missing or damaged.
    """
    return load_group(folder_uri, manifest, "model")


def load_groups(
    folder_uri: str, manifest: CheckpointManifest, *names: str, on_piece: Callable[[], object] = lambda: None
) -> dict[str, dict[str, torch.Tensor]]:
    """Return groups of tensors by name: all that a checkpoint has, or those of `names` that it has.

    Raises:
        DataError: A file is missing or damaged.
    """
    groups = [group for group in manifest.groups if not names or group in names]
    return {group: load_group(folder_uri, manifest, group, on_piece=on_piece) for group in groups}


def load_parts(
    folder_uri: str,
    manifest: CheckpointManifest,
    rows: ChooseRows | None,
    *names: str,
    on_piece: Callable[[], object] = lambda: None,
) -> dict[str, Group]:
    """Return groups as `load_groups`, of each tensor the rows that `rows` chooses; None: all.

    Raises:
        DataError: A file is missing or damaged.
    """
    if rows is None:
        return dict(load_groups(folder_uri, manifest, *names, on_piece=on_piece))
    chosen = [group for group in manifest.groups if not names or group in names]
    return {group: load_rows(folder_uri, manifest, group, rows, on_piece=on_piece) for group in chosen}


def require_groups(found: Mapping[str, object], expected: Iterable[str], *, where: str) -> None:
    """Refuse a checkpoint without a group of tensors that training has.

    Raises:
        DataError: One is missing; it is named.
    """
    missing = sorted(set(expected) - set(found))
    if missing:
        raise DataError(
            f"checkpoint {storage.display(where)} has no {', '.join(missing)}",
            allowed=f"a checkpoint of the configured training (it has {', '.join(sorted(found))})",
            todo="take the checkpoint's train section, another folder, or train again with --fresh",
        )


def require_same(found: Group, expected: Mapping[str, torch.Tensor], *, where: str) -> None:
    """Refuse tensors that are not those of the model: names, types and shapes.

    Raises:
        DataError: They differ; the first difference is named.
    """
    for name in sorted(set(found) | set(expected)):
        if name not in expected:
            given = f"{name} is not in the model"
        elif name not in found:
            given = f"{name} of the model is not in it"
        elif (theirs := _kind(found[name])) != (ours := _kind(expected[name])):
            given = f"{name} is {theirs}, the model's is {ours}"
        else:
            continue
        raise DataError(
            f"checkpoint {storage.display(where)}: {given}",
            allowed="a checkpoint of the configured model",
            todo="take the checkpoint's model section, another folder, or train again with --fresh",
        )


def require_optimizer_state(found: Group, parameters: Mapping[str, torch.Tensor], *, where: str) -> None:
    """Refuse optimizer tensors (`parameter/entry`) that do not belong to the parameters.

    Raises:
        DataError: One belongs to no parameter, or has neither its shape nor one element; it is named.
    """
    for key, value in found.items():
        name, _, _ = key.rpartition("/")
        # One element, however it is shaped: optimizers count their steps in such.
        fits = name in parameters and (
            global_shape(value) == tuple(parameters[name].shape) or prod(global_shape(value)) == 1
        )
        if not fits:
            raise DataError(
                f"checkpoint {storage.display(where)}: optimizer state {key} {global_shape(value)} fits no parameter",
                allowed="a checkpoint of the configured model and optimizer",
                todo="take the checkpoint's configuration, another folder, or train again with --fresh",
            )


def _kind(value: torch.Tensor | Rows) -> str:
    return f"{global_shape(value)} {(value.tensor if isinstance(value, Rows) else value).dtype}"


@dataclass(frozen=True)
class _Collected:
    """The wanted rows of a tensor, as they come from files."""

    tensor: torch.Tensor
    """[rows, ...]; a scalar counts as one row."""
    global_shape: tuple[int, ...]
    wanted: tuple[int, int]
    came: list[tuple[int, int]] = field(default_factory=list)

    @property
    def is_whole(self) -> bool:
        return tuple(self.tensor.shape) == self.global_shape

    @property
    def is_complete(self) -> bool:
        """Whether each wanted row came once."""
        at = self.wanted[0]
        for first, last in sorted(self.came):
            if first != at:
                return False
            at = last
        return at == self.wanted[1]

    def rows_in(self, entry: Entry) -> tuple[int, int]:
        """Return the wanted rows that a file's part of the tensor has; the last is not above the first where none."""
        return max(self.wanted[0], entry.offset), min(self.wanted[1], entry.offset + (entry.shape or (1,))[0])

    def bytes_of(self, first: int, last: int) -> memoryview:
        """Return the memory of rows."""
        rows = self.tensor[first - self.wanted[0] : last - self.wanted[0]] if self.global_shape else self.tensor
        return rows.reshape(-1).view(torch.uint8).numpy().data


def _load(
    folder_uri: str,
    manifest: CheckpointManifest,
    group: str,
    rows: ChooseRows | None,
    on_piece: Callable[[], object],
) -> dict[str, _Collected]:
    files = manifest.files_of(group)
    if not files:
        _refuse(folder_uri, f"there is no {group} in its manifest")
    choose = None if rows is None else partial(rows, group)
    collected: dict[str, _Collected] = {}
    for file in files:
        try:
            _take(file.uri(folder_uri), file, choose, collected, on_piece, sharded=len(files) > 1)
        except (Malformed, FileNotFoundError, NotADirectoryError) as error:
            said = "is missing" if isinstance(error, FileNotFoundError | NotADirectoryError) else f"is refused: {error}"
            _refuse(folder_uri, f"{file.relative_path} {said}")
    for name, found in collected.items():
        if not found.is_complete:
            _refuse(folder_uri, f"its files do not have each row of {name} once")
    return collected


def _take(
    uri: str,
    file: FileEntry,
    choose: Callable[[str, tuple[int, ...]], tuple[int, int]] | None,
    collected: dict[str, _Collected],
    on_piece: Callable[[], object],
    *,
    sharded: bool,
) -> None:
    """Put what a file has of the wanted rows into `collected`.

    Raises:
        Malformed: The file is damaged, or differs from another one of the group.
    """
    if choose is not None:
        entries = _peek(uri, file.bytes)
        for entry in entries:
            _expect(entry, choose, collected)
        if all(first >= last for first, last in (collected[entry.name].rows_in(entry) for entry in entries)):
            return
    if (size := storage.info(uri).size) != file.bytes:
        raise Malformed(f"it has {size} bytes, its manifest says {file.bytes}")
    with storage.open_read(uri) as stream:
        start = stream.read(LENGTH_BYTES)
        length = header_bytes(start, size)
        header = stream.read(length)
        # Only now that a header accounts for every byte: no claim makes this take more memory than the file is long.
        targets = []
        for entry in parse_header(header, size - LENGTH_BYTES - length):
            if not sharded and not entry.is_whole:
                rows = f"it has {entry.shape} of {entry.name} {entry.global_shape}"
                raise Malformed(f"{rows}, and there is no other file")
            _expect(entry, choose, collected)
            found = collected[entry.name]
            if not entry.shape and found.came:
                raise Malformed(f"{entry.name} differs between files")
            first, last = found.rows_in(entry)
            if first < last:
                row_bytes = (entry.stop - entry.start) // (entry.shape or (1,))[0]
                targets.append((entry.start + (first - entry.offset) * row_bytes, found.bytes_of(first, last)))
                found.came.append((first, last))
        crc32c = google_crc32c.extend(google_crc32c.value(start), header)
        crc32c = _copy(stream, targets, crc32c, on_piece)
    if (said := f"{crc32c:08x}") != file.crc32c:
        raise Malformed(f"it has crc32c {said}, its manifest says {file.crc32c}")


def _expect(
    entry: Entry,
    choose: Callable[[str, tuple[int, ...]], tuple[int, int]] | None,
    collected: dict[str, _Collected],
) -> None:
    """Take memory for the wanted rows of a tensor, at the first file that names it; the others must agree with it."""
    shape = entry.global_shape
    if entry.name not in collected:
        start, stop = (0, (shape or (1,))[0]) if choose is None or not shape else choose(entry.name, shape)
        tensor = torch.empty((stop - start, *shape[1:]) if shape else (), dtype=entry.dtype)
        collected[entry.name] = _Collected(tensor, shape, (start, stop))
    found = collected[entry.name]
    if (found.tensor.dtype, found.global_shape) != (entry.dtype, shape):
        raise Malformed(f"{entry.name} differs between files")


def _copy(stream: BinaryIO, targets: list[tuple[int, memoryview]], crc32c: int, on_piece: Callable[[], object]) -> int:
    """Read a stream to its end, and copy byte ranges of it, in their order; return the checksum extended by it all."""
    done, at = 0, 0
    while piece := stream.read(_PIECE_BYTES):
        crc32c = google_crc32c.extend(crc32c, piece)
        content, end = memoryview(piece), done + len(piece)
        while at < len(targets) and targets[at][0] < end:
            start, target = targets[at]
            first, last = max(start, done), min(start + len(target), end)
            target[first - start : last - start] = content[first - done : last - done]
            if start + len(target) > end:
                break
            at += 1
        done = end
        on_piece()
    return crc32c


def _peek(uri: str, file_bytes: int) -> list[Entry]:
    length = header_bytes(storage.read_range(uri, 0, LENGTH_BYTES), file_bytes)
    return parse_header(storage.read_range(uri, LENGTH_BYTES, length), file_bytes - LENGTH_BYTES - length)


# Of a file that is read: small enough to stay in the processor's cache between checksum and copy.
_PIECE_BYTES = 1 << 20


def _refuse(folder_uri: str, given: str) -> NoReturn:
    raise DataError(
        f"checkpoint {storage.display(folder_uri)}: {given}",
        allowed="a checkpoint whose files agree with its manifest",
        todo="take another checkpoint, or train again with --fresh",
    )
