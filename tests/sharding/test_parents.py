"""Which finished outputs an increment is built on: the newest sound one of the same settings, and no other is read."""

import os

import pytest

from contracts import storage
from contracts.artifacts import MANIFEST_NAME, ShardManifest
from sharding.increments import find_parents


@pytest.fixture
def chain(run_shard, source, write_file, make_image):
    """The manifests of three weeks, the oldest first."""
    found = []
    for week in range(3):
        write_file(source, f"ant/week-{week}.png".encode(), make_image(5000 + week, "png"))
        found.append(run_shard(incremental=True))
    return found


def find(root, **options):
    warnings = []
    made_from = {"sharding": options.pop("sharding"), "listing": "new"}
    parents = find_parents(
        storage.normalise(root), made_from, fresh=False, multi_label=False, warn=warnings.append, **options
    )
    return parents, warnings


def test_the_newest_comes_first_whatever_its_name_and_another_version_is_no_parent(chain, monkeypatch):
    loaded = []
    load = ShardManifest.load
    monkeypatch.setattr(ShardManifest, "load", lambda uri: loaded.append(uri) or load(uri))
    folders = sorted((one.folder for one in chain), key=lambda folder: folder.name)
    settings = chain[0].manifest.made_from["sharding"]
    for place, folder in enumerate(folders):
        os.utime(folder / MANIFEST_NAME, (1000 + place, 1000 + place))
    loaded.clear()
    parents, warnings = find(chain[0].root, sharding=settings)
    # One manifest is read for the newest, however many there are.
    assert next(parents).fingerprint == folders[-1].name
    assert loaded == [storage.normalise(folders[-1])] and warnings == []
    assert [parent.fingerprint for parent in parents] == [folder.name for folder in folders[-2::-1]]
    text = (folders[-1] / MANIFEST_NAME).read_text().replace('"format_version": 4', '"format_version": 999')
    (folders[-1] / MANIFEST_NAME).write_text(text)
    parents, warnings = find(chain[0].root, sharding=settings)
    assert next(parents).fingerprint == folders[-2].name
    assert folders[-1].name in warnings[0] and "version 999" in warnings[0]
    # Of other settings there is none.
    assert list(find(chain[0].root, sharding="other")[0]) == []
