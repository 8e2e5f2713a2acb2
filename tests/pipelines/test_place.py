from pathlib import Path

import pytest

from contracts.config import RunConfig
from contracts.errors import StorageError
from pipelines.place import line_uri, make_absolute, stage_root


def make_config(source: str, root: str) -> RunConfig:
    return RunConfig.model_validate({"sharding": {"source": source}, "run": {"root": root, "name": "digits"}})


def test_paths_are_relative_to_the_current_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    config = make_absolute(make_config("raw images", "runs"))
    assert config.sharding.source == str(tmp_path / "raw images")
    assert line_uri(config) == (tmp_path / "runs" / "digits").as_uri()
    assert stage_root(config, "shard") == (tmp_path / "runs" / "digits" / "shard").as_uri()


def test_a_cache_is_of_the_machine_that_trains(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    values = {"data": {"cache_dir": "cache", "cache_bytes": 1}, "run": {"root": "gs://b/r"}}
    made = []
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        monkeypatch.chdir(tmp_path / name)
        made.append(make_absolute(RunConfig.model_validate(values)))
    assert made[0] == made[1], "two submitters, one configuration"
    assert made[0].data.cache_dir == "cache"


def test_a_line_of_this_machine_lives_on_this_machine() -> None:
    with pytest.raises(StorageError):
        line_uri(make_config("raw", "gs://bucket/runs"))
