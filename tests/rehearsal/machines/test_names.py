"""The name server's messages, asked by a real resolver's bytes."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rehearsal.machines.names import GOOGLES, answer_question, read_question


def query(name: str, kind: int = 1) -> bytes:
    labels = b"".join(bytes([len(part)]) + part.encode() for part in name.split(".") if part)
    return struct.pack("!6H", 0x1234, 0x0100, 1, 0, 0, 0) + labels + b"\0" + struct.pack("!2H", kind, 1)


def test_an_address() -> None:
    asked = query("Storage.googleapis.com")
    assert read_question(asked) == ("storage.googleapis.com", 1)
    answer = answer_question(asked, "10.128.0.1")
    assert answer[:2] == asked[:2]
    assert struct.unpack_from("!H", answer, 2)[0] & 0x800F == 0x8000
    assert answer[12 : len(asked)] == asked[12:]
    assert answer.endswith(bytes([0, 4, 10, 128, 0, 1]))


def test_another_type_has_no_answer_and_another_name_is_none() -> None:
    empty = answer_question(query("storage.googleapis.com", 28), "10.128.0.1")
    assert struct.unpack_from("!6H", empty)[3] == 0 and struct.unpack_from("!H", empty, 2)[0] & 15 == 0
    unknown = answer_question(query("example.com"), None)
    assert struct.unpack_from("!6H", unknown)[3] == 0 and struct.unpack_from("!H", unknown, 2)[0] & 15 == 3
    assert answer_question(query(""), None)[12:] == query("")[12:]


@given(st.binary(max_size=80))
def test_any_bytes_are_a_question_or_refused(message: bytes) -> None:
    try:
        read_question(message)
    except ValueError:
        return
    assert answer_question(message, None)[:2] == message[:2]


@pytest.mark.parametrize("name", ["storage.googleapis.com", "us-central1-aiplatform.googleapis.com", "eu-kfp.pkg.dev"])
def test_googles_names(name: str) -> None:
    assert GOOGLES.fullmatch(name)
    assert not GOOGLES.fullmatch(f"{name}.evil.example")
    assert not GOOGLES.fullmatch(name.replace(".googleapis", "-googleapis").replace(".pkg", "-pkg"))
