"""`shardline init`: what it writes can be planned for each task, and nothing is overwritten."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from contracts.checked import Findings
from contracts.config import RunConfig
from contracts.config.load import load_config
from contracts.config.run import TASKS
from contracts.errors import ConfigError
from pipelines.cli import app
from pipelines.initial_config import write_initial
from pipelines.place import make_absolute
from pipelines.plan import make_plan
from pipelines.submit import make_ready
from tests.conftest import write_pictures
from tests.pipelines.images import IMAGES
from trainer.check.__main__ import check_machine_side, check_network_side

NAMES = {"project": "my-project", "bucket": "my-bucket", "region": "us-central1"}
ROWS = {
    "image_multilabel": [{"uri": f"p/{n}.png", "label": ["red"] if n % 2 else ["red", "blue"]} for n in range(24)],
    "text_classification": [{"text": f"word {n} of {n % 2}", "label": "ab"[n % 2]} for n in range(24)],
}


def check(config: RunConfig, *, online: bool) -> Findings:
    """Check a configuration as the stages do, in this process."""
    findings = Findings()
    check_network_side(config, findings, online=online, elsewhere=True)
    check_machine_side(config, findings, elsewhere=True)
    return findings


@pytest.mark.parametrize("task", TASKS)
def test_a_first_configuration_has_no_problem_but_what_is_to_be_made(
    task: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pipelines.plan.check_planned", check)
    source = tmp_path / "rows.jsonl" if task in ROWS else tmp_path / "photos"
    if task in ROWS:
        source.write_text("".join(json.dumps(row) + "\n" for row in ROWS[task]))
    else:
        write_pictures(source)
    path = write_initial(tmp_path / "line.yaml", str(source), task, **NAMES)
    config = make_absolute(load_config(path, IMAGES))
    assert (config.task.name, config.run.name) == (task, source.stem)
    assert [problem.given for problem in make_plan(config, complete=True).problems] == [f"sharding.source = {source}"]


def test_what_is_written_can_be_looked_at_before_anything_is_built(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SHARDLINE_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr("pipelines.plan.check_planned", lambda *_, **__: Findings())
    write_pictures(tmp_path / "photos")

    def call(*arguments: str) -> Result:
        answer = CliRunner().invoke(app, list(arguments))
        assert answer.exit_code == 0, answer.output
        return answer

    call("init", "--project", "my-project", "--bucket", "my-bucket", "--source", "photos")
    document = json.loads(call("plan", "photos.yaml", "-o", "json").stdout)
    (source,), images = document["uploads"], document["unbuilt"]
    assert "photos (" in source and " to gs://my-bucket/lines/photos/source/" in source
    assert len(images) == 2 and all("there is no images-my-project.json" in text for text in images)
    assert document["ok"] is True
    outputs = [call("plan", "photos.yaml").stdout]
    outputs += [call(*command, "photos.yaml").stderr for command in (["compile"], ["submit", "--dry-run"])]
    for output in outputs:
        assert f"will upload: {source}" in output and f"not built yet: {images[0]}; run `shardline images" in output
    assert outputs[0].endswith("can work; before `shardline submit`: `shardline images build photos.yaml`\n")
    # Nothing was made but what was asked for, and images that a configuration names have none.
    assert {path.name for path in tmp_path.iterdir()} == {"photos", "photos.yaml", "photos.pipeline.yaml"}
    assert json.loads(call("plan", "photos.yaml", *IMAGES, "-o", "json").stdout)["unbuilt"] == []
    # A submission is of what is there: no placeholder does.
    with pytest.raises(ConfigError, match=r"cloud\.images\.cpu is not set"):
        make_ready(load_config(Path("photos.yaml"), ["sharding.source=gs://my-bucket/photos"]), print, online=True)


def test_the_command_names_the_next_one_and_overwrites_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    init = ["init", "--project", "my-project", "--bucket", "my-bucket", "--source", "raw/cats"]
    made = CliRunner().invoke(app, init)
    assert (made.exit_code, made.stdout) == (0, "cats.yaml\n")
    assert made.stderr.startswith("next: shardline plan cats.yaml")
    (tmp_path / "cats.yaml").write_text("mine")
    for more, expected in (
        ([], "cats.yaml cannot be written: File exists"),
        (["--project", "My Project"], "--project = My Project"),
        (["--task", "images"], "--task images"),
    ):
        refused = CliRunner().invoke(app, [*init, *more])
        assert refused.exit_code == 2 and expected in refused.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["cats.yaml"]
    assert (tmp_path / "cats.yaml").read_text() == "mine"
