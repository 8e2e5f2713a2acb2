"""The file behind the writer gets every byte, whatever the system takes at a time."""

import os

import pytest

from sharding.write import stream


@pytest.mark.parametrize("step", [1, 1000, 1 << 30])
def test_bytes_written_behind_are_those_that_were_given(tmp_path, monkeypatch, step):
    monkeypatch.setattr(stream, "WRITE_BEHIND_BYTES", step)
    pieces = [bytes([number]) * (number * 37) for number in range(200)]
    with (tmp_path / "shard").open("wb", buffering=0) as file:
        behind = stream.WriteBehind(file)
        for at in range(0, len(pieces), 3):
            behind.writelines(pieces[at : at + 3])
        behind.close()
        assert (tmp_path / "shard").read_bytes() == b"".join(pieces)


def test_a_file_system_that_takes_only_a_part_gets_the_rest(tmp_path, monkeypatch):
    whole = os.writev
    monkeypatch.setattr(os, "writev", lambda descriptor, parts: whole(descriptor, [b"".join(parts)[:5]]))
    with (tmp_path / "shard").open("wb", buffering=0) as file:
        behind = stream.WriteBehind(file)
        behind.writelines([b"abc", b"defg", b"hi"])
        behind.writelines([b"jk"])
        behind.close()
    assert (tmp_path / "shard").read_bytes() == b"abcdefghijk"
