"""Which finished outputs an increment is built on, by their manifests alone."""

import json
import os

from contracts import storage
from contracts.artifacts import MANIFEST_NAME
from sharding.increment.chain import find_parents


def test_a_manifest_of_another_format_version_is_no_parent(tmp_path):
    made_from = {"listing": "l", "config": "c"}
    folder = tmp_path / "0123456789abcdef"
    folder.mkdir()
    document = {"kind": "shards", "format_version": 999, "made_from": {**made_from, "listing": "earlier"}}
    (folder / MANIFEST_NAME).write_text(json.dumps(document))
    warnings = []
    root = storage.normalise(tmp_path)
    found = list(find_parents(root, made_from, fresh=False, multi_label=False, warn=warnings.append))
    (warning,) = warnings
    assert found == [] and folder.name in warning and "version 999" in warning


def test_the_newest_state_comes_first_whatever_its_name(tmp_path):
    made_from = {"listing": "l", "config": "c"}
    # By their names the oldest is first, the newest second.
    times = {"0" * 16: 1000, "1" * 16: 3000, "2" * 16: 2000}
    for name, time_s in times.items():
        (tmp_path / name).mkdir()
        document = {"kind": "shards", "format_version": 999, "made_from": {**made_from, "listing": name}}
        (tmp_path / name / MANIFEST_NAME).write_text(json.dumps(document))
        os.utime(tmp_path / name / MANIFEST_NAME, (time_s, time_s))
    told = []
    assert not list(
        find_parents(storage.normalise(tmp_path), made_from, fresh=False, multi_label=False, warn=told.append)
    )
    assert [next(name for name in times if name in words) for words in told] == ["1" * 16, "2" * 16, "0" * 16]
