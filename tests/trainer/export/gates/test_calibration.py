from __future__ import annotations

import errno
import hashlib
import resource
import signal
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from contracts import storage
from contracts.artifacts import ShardManifest
from contracts.artifacts.export import Calibration
from contracts.config import DataSection, RunConfig
from records.index import DamagedSample, SampleIndex, key_of
from rehearsal.gcs import BucketServer
from tests.trainer.data.conftest import evaluation_batches, upload
from tests.trainer.export.conftest import write_shards
from trainer.export.gates.calibration import draw_places, write_calibration
from trainer.export.inputs import Inputs
from trainer.export.targets import Builder

DATA = DataSection(image_size=32, mean=[0.5, 0.4, 0.3], std=[0.25, 0.2, 0.3])


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, ShardManifest]:
    folder = tmp_path_factory.mktemp("calibration") / "shards"
    manifest = write_shards(folder, samples=10)
    return storage.normalise(folder), manifest


def inputs_of(uri: str, manifest: ShardManifest, data: DataSection = DATA) -> Inputs:
    checkpoint: Any = SimpleNamespace(calibration={}, data={})
    return Inputs("", checkpoint, uri, manifest, Builder("", "", ()), RunConfig(data=data))


def draw(
    uri: str, manifest: ShardManifest, folder: Path, *, data: DataSection = DATA, **settings: int
) -> tuple[np.ndarray, Calibration]:
    """Return the images that were drawn, and what is said of them."""
    inputs = inputs_of(uri, manifest, data)
    stored, document = write_calibration(inputs, inputs.load_task(), folder, **settings)  # type: ignore[arg-type]
    return stored.read()["images"], document


def train_images(uri: str, manifest: ShardManifest) -> np.ndarray:
    batches = evaluation_batches(uri, manifest, "train", inputs_of(uri, manifest).load_task(), 64)
    return np.concatenate([batch["images"].numpy() for batch, *_ in batches])


def test_places_are_drawn_without_replacement_by_the_seed() -> None:
    places = draw_places(1000, 128, 7)
    assert len(set(places)) == 128
    assert places == sorted(places)
    assert all(0 <= place < 1000 for place in places)
    assert places == draw_places(1000, 128, 7)
    assert places != draw_places(1000, 128, 8)
    # The same on every machine and with every numpy.
    assert places[:6] == [8, 13, 23, 28, 31, 43]
    assert len(set(draw_places(10**9, 512, 0))) == 512


def test_a_small_split_is_taken_whole() -> None:
    assert draw_places(5, 128, 0) == [0, 1, 2, 3, 4]
    assert draw_places(0, 128, 0) == []


def test_images_are_the_training_splits_by_the_evaluation_transform(
    shards: tuple[str, ShardManifest], tmp_path: Path
) -> None:
    uri, manifest = shards
    written, document = draw(uri, manifest, tmp_path / "images", samples=130, seed=3)
    places = draw_places(160, 130, 3)
    assert written.dtype == np.float32
    assert np.array_equal(written, train_images(uri, manifest)[places])
    index = SampleIndex(manifest, uri)
    keys = [key_of(index[place]) for place in places]
    assert document.sha256 == hashlib.sha256("".join(keys).encode()).hexdigest()
    assert (document.samples, document.seed, document.shards_fingerprint) == (130, 3, manifest.fingerprint)


def test_equal_inputs_give_an_equal_file(shards: tuple[str, ShardManifest], tmp_path: Path) -> None:
    uri, manifest = shards
    found = [
        draw(uri, manifest, tmp_path / name, samples=40, seed=seed) for name, seed in (("a", 0), ("b", 0), ("c", 1))
    ]
    documents, content = [one for _, one in found], [images.tobytes() for images, _ in found]
    assert documents[0] == documents[1]
    assert content[0] == content[1]
    assert documents[0].sha256 != documents[2].sha256
    assert content[0] != content[2]


def test_a_bucket_gives_the_same_file(
    shards: tuple[str, ShardManifest], bucket_server: BucketServer, tmp_path: Path
) -> None:
    uri, manifest = shards
    remote = upload(storage.local_path(uri))
    local, said = draw(uri, manifest, tmp_path / "local", samples=130, seed=0)
    data = DATA.model_copy(update={"cache_dir": str(tmp_path / "cache"), "cache_bytes": 64 << 20})
    found, document = draw(remote, manifest, tmp_path / "remote", samples=130, seed=0, data=data)
    assert document == said
    assert np.array_equal(found, local)


def test_what_there_is_is_taken(tmp_path: Path) -> None:
    manifest = write_shards(tmp_path / "shards", samples=3, train=128)
    uri = storage.normalise(tmp_path / "shards")
    images, found = draw(uri, manifest, tmp_path / "x", samples=512, seed=0)
    assert found.samples == 128
    assert images.shape == (128, 3, 32, 32)


def test_a_damaged_image_is_an_error_or_replaced_as_in_training(tmp_path: Path) -> None:
    manifest = write_shards(tmp_path / "shards", samples=3, train=30)
    uri = storage.normalise(tmp_path / "shards")
    expected = train_images(uri, manifest)
    bad = 14
    record = SampleIndex(manifest, uri)[bad]
    shard = tmp_path / "shards" / manifest.shards[0].name
    content = bytearray(shard.read_bytes())
    content[int(record["offset"]) + 700] ^= 1
    shard.write_bytes(content)
    with pytest.raises(DamagedSample, match=key_of(record)):
        draw(uri, manifest, tmp_path / "x", samples=30, seed=0)
    assert [path.name for path in tmp_path.iterdir()] == ["shards"]
    forgiving = DATA.model_copy(update={"on_bad_sample": "replace"})
    images, _ = draw(uri, manifest, tmp_path / "x", samples=30, seed=0, data=forgiving)
    # Labels come in turn, so the next of its class is ten places on.
    expected[bad] = expected[bad + 10]
    assert np.array_equal(images, expected)


@pytest.fixture
def full_disk() -> Iterator[None]:
    """No file may grow past 100 kB: a write fails as on a full disk, by EFBIG."""
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, before)
    signal.signal(signal.SIGXFSZ, handler)


def test_a_full_disk_leaves_nothing(shards: tuple[str, ShardManifest], tmp_path: Path, full_disk: None) -> None:
    uri, manifest = shards
    with pytest.raises(OSError) as raised:
        draw(uri, manifest, tmp_path / "x", samples=160, seed=0)
    assert raised.value.errno == errno.EFBIG
    assert not list(tmp_path.iterdir())
