"""A header is believed only where it accounts for every byte of its file."""

import json
import struct
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors import SafetensorError, deserialize
from safetensors.torch import save

from trainer.checkpoint.framing import (
    DTYPES,
    LENGTH_BYTES,
    FileStream,
    Malformed,
    header_bytes,
    make_header,
    parse_header,
)


def header(**tensors: Any) -> bytes:
    return json.dumps(tensors).encode()


def tensor(dtype: Any = "F32", shape: Any = (2,), offsets: Any = (0, 8)) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets}


HOSTILE = {
    "not JSON": b"\x80\x04\x95",
    "not UTF-8": b'{"\xff": 1}',
    "a list": b"[]",
    "too deep": b"[" * 100_000,
    "a number with too many digits": b'{"w": {"dtype": "F32", "shape": ['
    + b"9" * 5000
    + b'], "data_offsets": [0, 8]}}',
    "a name twice": b'{"w": ' + json.dumps(tensor()).encode() + b', "w": ' + json.dumps(tensor()).encode() + b"}",
    "no number": b'{"w": {"dtype": "F32", "shape": [NaN], "data_offsets": [0, 8]}}',
    "an unknown type": header(w=tensor("F4")),
    "a type that a checkpoint has not": header(w=tensor("C64", (1,))),
    "offsets behind the end": header(w=tensor(shape=(4,), offsets=(0, 16))),
    "negative offsets": header(w=tensor(offsets=(-8, 0))),
    "a hole": header(w=tensor(shape=(1,), offsets=(4, 8))),
    "overlap": header(v=tensor(), w=tensor()),
    "too few bytes": header(w=tensor(shape=(1,), offsets=(0, 4))),
    "shape and bytes differ": header(w=tensor(shape=(3,))),
    "a negative size": header(w=tensor(shape=(-2,))),
    "a size that wraps around": header(w=tensor(shape=(2**62, 4, 2), offsets=(0, 8))),
    "huge and empty": header(w=tensor(), v=tensor(shape=(2**62, 2**62, 0), offsets=(8, 8))),
    "a size that is no whole number": header(w=tensor(shape=(2.0,))),
    "an extra field": header(w={**tensor(), "__reduce__": "os.system"}),
    "a missing field": header(w={"dtype": "F32", "shape": [2]}),
    "metadata that is no object": header(__metadata__=[1], w=tensor()),
    "rows of nothing": header(__metadata__={"rows": '{"v": [[4], 0]}'}, w=tensor()),
    "rows beyond the end": header(__metadata__={"rows": '{"w": [[4], 3]}'}, w=tensor()),
    "rows of another width": header(__metadata__={"rows": '{"w": [[4, 2], 0]}'}, w=tensor()),
}


@pytest.mark.parametrize("content", HOSTILE.values(), ids=HOSTILE.keys())
def test_a_hostile_header_is_refused(content: bytes) -> None:
    with pytest.raises(Malformed):
        parse_header(content, 8)


@pytest.mark.parametrize(
    ("first", "file_bytes"),
    [
        (b"", 0),
        (b"\x00" * 7, 7),
        (struct.pack("<Q", 2**64 - 1), 100),
        (struct.pack("<Q", 93), 100),
        (struct.pack("<Q", 100_000_001), 2**40),
    ],
)
def test_a_length_that_cannot_be_is_refused(first: bytes, file_bytes: int) -> None:
    with pytest.raises(Malformed):
        header_bytes(first, file_bytes)


names = st.text(min_size=1, max_size=8).filter(lambda name: name != "__metadata__")
shapes = st.lists(st.integers(0, 5), max_size=3).map(tuple)


@given(st.dictionaries(names, st.tuples(st.sampled_from(sorted(DTYPES)), shapes), max_size=6))
def test_what_is_made_is_what_is_read_by_us_and_by_the_library(tensors: dict[str, tuple[str, tuple[int, ...]]]) -> None:
    content, entries = make_header((name, DTYPES[kind], shape, None, 0) for name, (kind, shape) in tensors.items())
    data_bytes = entries[-1].stop if entries else 0
    assert header_bytes(content, len(content) + data_bytes) == len(content) - LENGTH_BYTES
    read = parse_header(content[LENGTH_BYTES:], data_bytes)
    assert sorted(read, key=lambda entry: entry.name) == sorted(entries, key=lambda entry: entry.name)
    assert all(entry.start % entry.dtype.itemsize == 0 for entry in entries)
    assert len(content) % 8 == 0
    library = dict(deserialize(content + bytes(data_bytes)))
    assert {name: (value["dtype"], tuple(value["shape"])) for name, value in library.items()} == tensors


@given(st.data())
def test_a_changed_header_is_refused_or_still_accounts_for_every_byte(data: st.DataObject) -> None:
    """And where the library refuses one, so is it here."""
    content = bytearray(save({"w": torch.arange(6.0).reshape(2, 3), "v": torch.tensor([1, 2])}))
    length = int.from_bytes(content[:8], "little")
    for _ in range(data.draw(st.integers(1, 3))):
        content[8 + data.draw(st.integers(0, length - 1))] = data.draw(st.sampled_from(b'0123456789-"{}[]:,FIUe w'))
    data_bytes = len(content) - 8 - length
    try:
        entries = parse_header(bytes(content[8 : 8 + length]), data_bytes)
    except Malformed:
        return
    assert sum(entry.stop - entry.start for entry in entries) == data_bytes
    try:
        deserialize(bytes(content))
    except SafetensorError as error:
        # It is stricter about what is no tensor: values of __metadata__ that are no text.
        assert "JSON" in str(error) or "json" in str(error), error


def test_rows_are_in_the_header() -> None:
    content, entries = make_header([("w", torch.float32, (2, 3), (5, 3), 1), ("s", torch.float32, (), None, 0)])
    assert parse_header(content[LENGTH_BYTES:], entries[-1].stop) == entries
    found = {entry.name: entry for entry in entries}
    assert (found["w"].global_shape, found["w"].offset, found["w"].is_whole) == ((5, 3), 1, False)
    assert found["s"].is_whole


def test_a_type_without_a_name_is_refused() -> None:
    with pytest.raises(Malformed, match="complex64"):
        make_header([("w", torch.complex64, (1,), None, 0)])


@given(st.binary(max_size=20), st.binary(max_size=20), st.lists(st.integers(1, 9), max_size=20), st.integers(0, 45))
def test_a_stream_is_its_header_and_its_data(head: bytes, data: bytes, sizes: list[int], seek: int) -> None:
    stream = FileStream(head, memoryview(data))
    parts = []
    for size in sizes:
        left = stream.num_bytes - stream.tell()
        parts.append(stream.read(size))
        assert len(parts[-1]) == min(size, left)
    assert b"".join([*parts, *iter(lambda: stream.read(7), b"")]) == head + data
    assert stream.tell() == stream.num_bytes == len(head + data)
    stream.seek(seek)
    assert b"".join(iter(lambda: stream.read(5), b"")) == (head + data)[seek:]
