"""What was remarked about a source is said again by whoever uses its shards."""

import io
from pathlib import Path

from contracts import storage
from contracts.artifacts import ShardManifest
from inspection.attempts import read_warnings
from pipelines.runs.name import RunName
from pipelines.runs.status import Status, print_status, to_json
from tests.pipelines.conftest import Shardline

TEXT = "3 images of 48 were transparent and were laid on white"


def plant_warning(folder: Path, **update: object) -> None:
    manifest = ShardManifest.load(storage.normalise(folder))
    (folder / "manifest.json").write_bytes(manifest.model_copy(update={"warnings": [TEXT], **update}).to_json())


def test_stages_that_use_the_shards_end_with_their_warnings(project: Path, shardline: Shardline) -> None:
    made = shardline("shard", "tiny.yaml", "run.name=warned")
    assert made.returncode == 0 and "warning: 3 images" not in made.stderr
    plant_warning(project / made.stdout.splitlines()[-1])
    for command, said in (
        (["shard", "tiny.yaml"], f"shard  warning: {TEXT}"),
        (["profile", "tiny.yaml", "profile.budget_s=1"], f"profile: warning: {TEXT}"),
    ):
        used = shardline(*command, "run.name=warned")
        assert used.returncode == 0
        assert [line for line in used.stderr.splitlines() if TEXT in line] == [said]


def test_the_warnings_are_those_of_the_manifest(tmp_path: Path, small_shards: str) -> None:
    line = storage.normalise(tmp_path)
    assert read_warnings(small_shards) == []
    storage.publish(f"{line}/warned/manifest.json", b'{"warnings": ["one", "two"]}')
    assert read_warnings(f"{line}/warned") == ["one", "two"]
    assert read_warnings(f"{line}/nowhere") == []


def test_a_status_shows_them() -> None:
    status = Status(
        name=RunName("p", "us-east4", "tiny-1"),
        state="SUCCEEDED",
        line="gs://bucket/tiny",
        error="",
        created_at=None,
        ended_at=None,
        tasks=(),
        jobs=(),
        goodput=None,
        warnings=(TEXT,),
        note="",
        diagnosis=None,
    )
    told = io.StringIO()
    print_status(status, told)
    assert f"  warning: {TEXT}\n" in told.getvalue()
    assert to_json(status)["warnings"] == [TEXT]
