"""Which finished outputs an increment is built on, by their manifests alone."""

import json

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
