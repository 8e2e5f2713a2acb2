"""`shardline drill`: a training that is killed ends as an undisturbed one, and a difference is told."""

import json
from pathlib import Path

import pytest

from contracts.config import RunConfig
from pipelines.local import drill
from tests.conftest import small_config


@pytest.mark.line
def test_a_killed_training_ends_as_an_undisturbed_one(
    small_shards: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = RunConfig.model_validate(small_config(train={"epochs": 8}, checkpoint={"every_steps": 3}))

    def run() -> int:
        given = {"shards": small_shards, "profile": None}
        return drill.run_drill(config, kills=2, mode="sigkill", seed=1, output=str(tmp_path / "d"), given=given)

    assert run() == 0
    said = capsys.readouterr()
    assert said.out.splitlines()[-1] == "equal after 2 kills: parameters, losses and metrics"
    assert said.err.count("SIGKILL after step") == 2
    path = tmp_path / "d/disturbed/training/manifest.json"
    values = json.loads(path.read_bytes())
    path.write_text(json.dumps({**values, "parameters_sha256": "0" * 64}))
    assert drill._compare(tmp_path / "d/undisturbed", tmp_path / "d/disturbed")[0].startswith("parameters: 000")
