"""`shardline config show --run`: the configuration of a run, by which the same is run again."""

import json
import re
import shlex
from html import unescape
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from contracts import fingerprint
from contracts.config import RunConfig
from contracts.resolve import parse_config
from pipelines.cli import app
from pipelines.reported import load
from tests.inspection.lines import Planted, plant

SECTIONS: dict[str, Any] = {
    "sharding": {"source": "/data/{date}"},
    "model": {"weights": "previous", "architecture": "own:Network"},
    "train": {"learning_rate": 0.05},
    "code": {"path": f"/lines/photos/code/{'a' * 64}", "sha256": "a" * 64},
    "resources": {"ranks": "auto"},
}


@pytest.fixture
def planted(tmp_path: Path, small_shards: str, monkeypatch: pytest.MonkeyPatch) -> Planted:
    """A run whose configuration leaves to its line and day what it can, in a folder that a shell takes apart."""
    monkeypatch.chdir(tmp_path)
    return plant(tmp_path / "it's lines" / "photos", small_shards, sections=SECTIONS)


def fingerprints(config: RunConfig) -> list[dict[str, str]]:
    """Return all that goes into the fingerprints of a run's stages and comes out of its configuration."""
    return [
        fingerprint.shard_inputs(config, "listing"),
        fingerprint.profile_inputs(config, shards="s", hardware={}, torch_version="2"),
        fingerprint.train_inputs(config, shards="s", weights="w"),
        fingerprint.export_inputs(config, checkpoint="c", builder="b", tools={}),
    ]


def test_the_command_on_the_page_has_the_fingerprints_of_the_run(planted: Planted) -> None:
    assert CliRunner().invoke(app, ["report", str(planted.folder), "--output", "page.html"]).exit_code == 0
    found = re.search(r"<dt>Run again</dt><dd>(.*?)</dd>", Path("page.html").read_text())
    assert found is not None
    words = shlex.split(unescape(found[1]))
    show, run = words[1 : words.index(">")], words[words.index("&&") + 2 :]
    shown = CliRunner().invoke(app, show)
    assert shown.exit_code == 0, shown.stderr
    Path("again.yaml").write_text(shown.stdout)
    assert run[:2] == ["run", "again.yaml"]
    again = load(Path(run[1]), run[2:])
    before = parse_config(json.loads((planted.folder / "run-start.json").read_text())["config"], where="")
    assert fingerprints(again) == fingerprints(before)
    assert (again.run.name, again.run.root) == ("photos-again", before.run.root)
    assert again.sharding.source == "/data/2026-11-18"
    # Its training is finished, and has started from random weights.
    assert again.model.weights == ""


def test_weights_that_the_line_gave_are_named(planted: Planted) -> None:
    start = planted.folder / "run-start.json"
    start.write_text(json.dumps({**json.loads(start.read_text()), "previous_training": "gs://b/lines/p/train/1"}))
    (planted.line / "train" / ("c" * 16) / "manifest.json").unlink()
    shown = CliRunner().invoke(app, ["config", "show", "--run", str(planted.folder)])
    assert "weights: gs://b/lines/p/train/1\n" in shown.stdout


def test_one_of_a_file_and_a_run_is_shown(planted: Planted) -> None:
    for arguments, said in (
        ([], "none of CONFIG, --run RUN and --describe KEY was given"),
        (["run.name=x", "--run", str(planted.folder)], "more than one of CONFIG, --run RUN and --describe KEY"),
        (["--run", "nothing"], "nothing is no run"),
    ):
        answer = CliRunner().invoke(app, ["config", "show", *arguments])
        assert answer.exit_code == 2 and said in answer.stderr and "to do:" in answer.stderr
    (planted.folder / "run-start.json").write_text("{")
    answer = CliRunner().invoke(app, ["config", "show", "--run", str(planted.folder)])
    assert answer.exit_code == 2 and "it is damaged" in answer.stderr
