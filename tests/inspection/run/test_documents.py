"""What is kept of parsed documents, and how many large ones are parsed at a time."""

import itertools
import json
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from contracts import storage
from contracts.artifacts import ExportManifest
from inspection.run import documents as module
from inspection.run.documents import Documents
from inspection.run.door import MANIFEST_BYTES, MOST_DEPTH, Door, parse_json, plain
from tests.inspection import planted
from tests.inspection.lines import write_scalars


def manifests(folder: Path, count: int) -> list[str]:
    found = []
    for number in range(count):
        path = folder / f"{number}.json"
        path.write_bytes(planted.make_export().to_json())
        found.append(storage.normalise(path))
    return found


def test_a_document_is_parsed_once_as_long_as_its_file_is_the_same(tmp_path: Path) -> None:
    (uri,) = manifests(tmp_path, 1)
    door, kept = Door(storage.normalise(tmp_path)), Documents()
    first = kept.read(door, ExportManifest, uri, MANIFEST_BYTES)
    assert kept.read(door, ExportManifest, uri, MANIFEST_BYTES) is first
    sha256 = kept.sha256(door, uri, MANIFEST_BYTES)
    storage.replace(uri, planted.make_export(asked_precision="fp32").to_json())
    assert kept.read(door, ExportManifest, uri, MANIFEST_BYTES).asked_precision == "fp32"
    assert kept.sha256(door, uri, MANIFEST_BYTES) != sha256
    storage.delete(uri)
    with pytest.raises(FileNotFoundError):
        kept.read(door, ExportManifest, uri, MANIFEST_BYTES)


def test_what_is_kept_is_bounded(tmp_path: Path) -> None:
    uris = manifests(tmp_path, 4)
    each = storage.size(uris[0])
    door, kept = Door(storage.normalise(tmp_path)), Documents(most_bytes=2 * each)
    first = kept.read(door, ExportManifest, uris[0], MANIFEST_BYTES)
    for uri in uris[1:]:
        kept.read(door, ExportManifest, uri, MANIFEST_BYTES)
        assert kept.bytes <= 2 * each
    assert kept.read(door, ExportManifest, uris[0], MANIFEST_BYTES) is not first
    # One that is larger than the bound is read, and not kept.
    small = Documents(most_bytes=each - 1)
    small.read(door, ExportManifest, uris[0], MANIFEST_BYTES)
    assert small.bytes == 0


def test_scalars_that_were_read_are_not_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    logs, other = (storage.normalise(tmp_path / name) for name in ("a", "b"))
    for folder in ("a", "b"):
        write_scalars(tmp_path / folder)
    read: list[int] = []
    read_range = storage.read_range

    def counted(uri: str, start: int, length: int, *version: Any) -> bytes:
        content = read_range(uri, start, length, *version)
        read.append(len(content))
        return content

    monkeypatch.setattr(storage, "read_range", counted)
    kept = Documents()
    first = kept.curves(logs, points=400)
    assert first.rows > 0 and sum(read) > 1000
    read.clear()
    assert kept.curves(logs, points=400) == first and read == []
    # Of two trainings the older one is given up where both are more than is kept.
    monkeypatch.setattr(module, "KEPT_VALUES", first.rows + 1)
    kept.curves(other, points=400)
    read.clear()
    kept.curves(logs, points=400)
    assert read != []


def test_eight_readers_parse_a_large_manifest_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ALONE_BYTES", 100)
    (uri, other) = manifests(tmp_path, 2)
    door, kept, at_once, most, lock = Door(storage.normalise(tmp_path)), Documents(), 0, [0], threading.Lock()
    parse = module.parse_json

    def counted(content: bytes) -> object:
        nonlocal at_once
        with lock:
            at_once += 1
            most.append(at_once)
        time.sleep(0.05)
        with lock:
            at_once -= 1
        return parse(content)

    monkeypatch.setattr(module, "parse_json", counted)
    with ThreadPoolExecutor(8) as pool:
        read = list(
            pool.map(lambda at: kept.read(door, ExportManifest, (uri, other)[at % 2], MANIFEST_BYTES), range(8))
        )
    assert len({id(document) for document in read}) == 2
    assert most == [0, 1, 1]


def test_json_is_what_every_writer_takes_however_it_was_read() -> None:
    """The short way, of documents without halves of surrogate pairs, gives what the long one does."""

    def told(read: Callable[[], object]) -> object:
        try:
            return read()
        except ValueError as error:
            return str(error)

    contents = [b'"\\ud83d\\ude00"', b'"\\ud83d"', b'{"\\udc00a": [1, null]}', '{"ä": "中"}'.encode(), b'"\xff"']
    for depth, leaf in itertools.product(range(MOST_DEPTH - 1, MOST_DEPTH + 3), ("1", "[]", "{}", '"x"')):
        contents += [("[" * depth + leaf + "]" * depth).encode(), ('{"a":' * depth + leaf + "}" * depth).encode()]
    for content in contents:
        long = told(lambda content=content: plain(json.loads(content.decode(errors="replace"))))
        assert told(lambda content=content: parse_json(content)) == long, content
    assert isinstance(told(lambda: parse_json(b"[NaN]")), str)
