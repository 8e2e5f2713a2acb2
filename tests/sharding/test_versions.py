"""Finished shards are used whatever versions made them, and the log names these."""

from contracts.artifacts import ShardManifest, SplitEntry
from contracts.config import SPLITS
from contracts.stage import find_output_damage
from sharding.job import made_with
from sharding.versions import describe_versions


def test_the_versions_that_differ_are_named() -> None:
    assert describe_versions({}) is None and describe_versions(made_with()) is None
    told = describe_versions({**made_with(), "pillow": "1.0"})
    assert told is not None and "pillow 1.0 (here " in told and "simplejpeg" not in told


def test_a_manifest_of_other_versions_is_whole() -> None:
    empty = SplitEntry(first=0, samples=0, source_bytes=0, samples_by_class=[])
    manifest = ShardManifest(
        fingerprint="0123456789abcdef",
        format="webdataset",
        seed=0,
        classes=[],
        splits=dict.fromkeys(SPLITS, empty),
        shards=[],
        rejected=[],
        made_with={"pillow": "1.0"},
    )
    assert find_output_damage("file:///nowhere", manifest) is None
