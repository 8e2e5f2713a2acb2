"""What was remarked about a source is said again by whoever uses its shards."""

from pathlib import Path

import pytest

from contracts import storage
from contracts.artifacts import ShardManifest
from contracts.config import RunConfig
from inspection.stages import read_warnings
from pipelines import local
from tests.conftest import small_config

TEXT = "3 images of 48 were transparent and were laid on white"


def test_a_stage_that_uses_shards_ends_with_their_warnings(
    tmp_path: Path, small_shards: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    manifest = ShardManifest.load(small_shards).model_copy(update={"warnings": [TEXT]})
    shards = storage.normalise(tmp_path / "warned")
    storage.publish(storage.join(shards, "manifest.json"), manifest.to_json())
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(local, "_run_command", lambda *_: storage.normalise(tmp_path / "report"))
    config = RunConfig.model_validate(small_config(run={"root": str(tmp_path)}))
    local.run_stage_alone("profile", config, to=None, fresh=False, shards=shards)
    assert f"profile: warning: {TEXT}\n" in capsys.readouterr().err
    assert read_warnings(small_shards) == read_warnings(f"{shards}/nowhere") == []
