"""Groups of tensors back from files: each is checked against its manifest and against itself before it is used.

Nothing is unpickled: files are safetensors, and the header is read by framing.py, which believes nothing. The bytes of
a file are compared with their crc32c as they come, also when discovery has read them before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import NoReturn

import google_crc32c
import torch

from contracts import storage
from contracts.artifacts import CheckpointManifest, FileEntry
from contracts.errors import DataError
from trainer.checkpoint.framing import LENGTH_BYTES, Entry, Malformed, header_bytes, parse_header

# Which rows of a tensor of this name and shape a rank wants: [first, last + 1).
ChooseRows = Callable[[str, tuple[int, ...]], tuple[int, int]]


def load_group(
    folder_uri: str,
    manifest: CheckpointManifest,
    group: str,
    *,
    rows: ChooseRows | None = None,
    on_piece: Callable[[], object] = lambda: None,
) -> dict[str, torch.Tensor]:
    """Return the tensors of a group on the CPU, put together from the files of all ranks that wrote it.

    Args:
        folder_uri: Folder of the manifest: a checkpoint's, or a finished training's.
        manifest: The manifest.
        group: model, optimizer, ...
        rows: Which rows of each tensor to return; None: all. Scalars come whole. A file that has none of the rows is
            not read beyond its header.
        on_piece: Called after each piece of a file that is read.

    Raises:
        DataError: A file is missing, damaged, malformed, or the files do not make whole tensors.
    """
    files = manifest.files_of(group)
    if not files:
        _refuse(folder_uri, f"there is no {group} in its manifest")
    tensors: dict[str, torch.Tensor] = {}
    # Of each tensor in parts: the rows wanted, then those that came.
    parts: dict[str, list[tuple[int, int]]] = {}
    for file in files:
        try:
            _take(folder_uri, file, rows, tensors, parts, on_piece, sharded=len(files) > 1)
        except (Malformed, FileNotFoundError, NotADirectoryError) as error:
            said = "is missing" if isinstance(error, FileNotFoundError | NotADirectoryError) else f"is refused: {error}"
            _refuse(folder_uri, f"{file.relative_path} {said}")
    for name, (wanted, *came) in parts.items():
        if not _make_up(wanted, came):
            _refuse(folder_uri, f"its files do not have each row of {name} once")
    return tensors


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


def require_same(found: Mapping[str, torch.Tensor], expected: Mapping[str, torch.Tensor], *, where: str) -> None:
    """Refuse tensors that are not those of the model: names, types and shapes.

    Raises:
        DataError: They differ; the first difference is named.
    """
    for name in sorted(set(found) | set(expected)):
        if name not in expected:
            given = f"{name} is not in the model"
        elif name not in found:
            given = f"{name} of the model is not in it"
        elif (found[name].dtype, found[name].shape) != (expected[name].dtype, expected[name].shape):
            ours, theirs = expected[name], found[name]
            given = f"{name} is {tuple(theirs.shape)} {theirs.dtype}, the model's is {tuple(ours.shape)} {ours.dtype}"
        else:
            continue
        raise DataError(
            f"checkpoint {storage.display(where)}: {given}",
            allowed="a checkpoint of the configured model",
            todo="take the checkpoint's model section, another folder, or train again with --fresh",
        )


def require_optimizer_state(
    found: Mapping[str, torch.Tensor], parameters: Mapping[str, torch.Tensor], *, where: str
) -> None:
    """Refuse optimizer tensors (`parameter/entry`) that do not belong to the parameters.

    Raises:
        DataError: One belongs to no parameter, or has neither its shape nor none; it is named.
    """
    for key, value in found.items():
        name, _, _ = key.rpartition("/")
        if name not in parameters or value.shape not in (parameters[name].shape, torch.Size()):
            raise DataError(
                f"checkpoint {storage.display(where)}: optimizer state {key} {tuple(value.shape)} fits no parameter",
                allowed="a checkpoint of the configured model and optimizer",
                todo="take the checkpoint's configuration, another folder, or train again with --fresh",
            )


def _take(
    folder_uri: str,
    file: FileEntry,
    rows: ChooseRows | None,
    tensors: dict[str, torch.Tensor],
    parts: dict[str, list[tuple[int, int]]],
    on_piece: Callable[[], object],
    *,
    sharded: bool,
) -> None:
    """Put what a file has of the wanted rows into `tensors`; `parts` says which."""
    uri = file.uri(folder_uri)
    entries = data = None
    if rows is not None:
        entries = _peek(uri, file.bytes)
        if not any(_overlap(entry, rows) for entry in entries):
            for entry in entries:
                _place(entry, rows, None, tensors, parts)
            return
    entries, data = _read(uri, file, on_piece)
    for entry in entries:
        if not sharded and not entry.is_whole:
            raise Malformed(f"it has {entry.shape} of {entry.name} {entry.global_shape}, and there is no other file")
        _place(entry, rows, data, tensors, parts)


def _overlap(entry: Entry, rows: ChooseRows) -> bool:
    if not entry.shape:
        return True
    start, stop = rows(entry.name, entry.global_shape)
    return max(start, entry.offset) < min(stop, entry.offset + entry.shape[0])


def _place(
    entry: Entry,
    rows: ChooseRows | None,
    data: torch.Tensor | None,
    tensors: dict[str, torch.Tensor],
    parts: dict[str, list[tuple[int, int]]],
) -> None:
    whole = entry.global_shape
    start, stop = (0, whole[0] if whole else 1) if rows is None or not whole else rows(entry.name, whole)
    if entry.is_whole and entry.name not in tensors and data is not None:
        found = _view(data, entry)
        tensors[entry.name] = found[start:stop] if whole else found
        parts[entry.name] = [(start, stop), (start, stop)]
        return
    if entry.name not in tensors:
        tensors[entry.name] = torch.empty((stop - start, *whole[1:]), dtype=entry.dtype)
        parts[entry.name] = [(start, stop)]
    target = tensors[entry.name]
    if (target.dtype, tuple(target.shape[1:])) != (entry.dtype, whole[1:]) or not entry.shape:
        raise Malformed(f"{entry.name} differs between files")
    first, last = max(start, entry.offset), min(stop, entry.offset + entry.shape[0])
    if first < last:
        assert data is not None, "a file with wanted rows was read"
        target[first - start : last - start] = _view(data, entry)[first - entry.offset : last - entry.offset]
        parts[entry.name].append((first, last))


def _make_up(wanted: tuple[int, int], came: list[tuple[int, int]]) -> bool:
    """Whether ranges of rows are the wanted one, cut."""
    at = wanted[0]
    for first, last in sorted(came):
        if first != at:
            return False
        at = last
    return at == wanted[1]


def _view(data: torch.Tensor, entry: Entry) -> torch.Tensor:
    content = data[entry.start : entry.stop]
    if entry.start % entry.dtype.itemsize:
        content = content.clone()
    return content.view(entry.dtype).view(entry.shape)


def _peek(uri: str, file_bytes: int) -> list[Entry]:
    length = header_bytes(storage.read_range(uri, 0, LENGTH_BYTES), file_bytes)
    return parse_header(storage.read_range(uri, LENGTH_BYTES, length), file_bytes - LENGTH_BYTES - length)


def _read(uri: str, file: FileEntry, on_piece: Callable[[], object]) -> tuple[list[Entry], torch.Tensor]:
    """Return the tensors of a file and its data ([bytes] uint8), its checksum compared."""
    size = storage.size(uri)
    if size != file.bytes:
        raise Malformed(f"it has {size} bytes, its manifest says {file.bytes}")
    with storage.open_read(uri) as stream:
        first = stream.read(LENGTH_BYTES)
        length = header_bytes(first, size)
        header = stream.read(length)
        entries = parse_header(header, size - LENGTH_BYTES - length)
        # Only now that a header accounts for every byte: no claim makes this take more memory than the file is long.
        data = torch.empty(size - LENGTH_BYTES - length, dtype=torch.uint8)
        total = google_crc32c.extend(google_crc32c.value(first), header)
        view, done = data.numpy().data, 0
        while piece := stream.read(_PIECE_BYTES):
            total = google_crc32c.extend(total, piece)
            view[done : done + len(piece)] = piece
            done += len(piece)
            on_piece()
    if (found := f"{total:08x}") != file.crc32c:
        raise Malformed(f"it has crc32c {found}, its manifest says {file.crc32c}")
    return entries, data


# Of a file that is read: small enough to stay in the processor's cache between checksum and copy.
_PIECE_BYTES = 1 << 20


def _refuse(folder_uri: str, given: str) -> NoReturn:
    raise DataError(
        f"checkpoint {storage.display(folder_uri)}: {given}",
        allowed="a checkpoint whose files agree with its manifest",
        todo="take another checkpoint, or train again with --fresh",
    )
