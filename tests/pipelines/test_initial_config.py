"""`shardline init`: what it writes can be planned for each task, and nothing is overwritten."""

import json
from pathlib import Path

import pytest
from click.testing import Result
from typer.testing import CliRunner

from contracts.config.load import load_config
from contracts.config.run import TASKS
from contracts.errors import ConfigError
from pipelines.cli import app
from pipelines.images.record import ROLES
from pipelines.initial_config import Names, write_initial
from pipelines.place import make_absolute
from pipelines.plan import make_plan, plan_of
from pipelines.rules.checks import Checked
from pipelines.rules.submission import Asked
from tests.conftest import write_pictures
from tests.pipelines.images import IMAGES

NAMES = ("--project", "my-project", "--bucket", "my-bucket")


def write_data(folder: Path, task: str) -> Path:
    """Write a small source of a task, in the form that the configuration says."""
    if task == "image_classification":
        write_pictures(folder / "photos")
        return folder / "photos"
    rows = {
        "image_multilabel": [{"uri": f"p/{n}.png", "label": ["red"] if n % 2 else ["red", "blue"]} for n in range(24)],
        "text_classification": [{"text": f"word {n} of {n % 2}", "label": "ab"[n % 2]} for n in range(24)],
    }[task]
    path = folder / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.mark.parametrize("task", TASKS)
def test_a_first_configuration_has_no_problem_but_what_is_to_be_made(task: str, tmp_path: Path) -> None:
    source = write_data(tmp_path, task)
    names = Names("my-project", "my-bucket", str(source), task=task)
    path = write_initial(names, tmp_path / "line.yaml")
    config = make_absolute(load_config(path))
    assert (config.task.name, config.run.name) == (task, source.stem)
    assert config.cloud.images.build_account == "shardline-build@my-project.iam.gserviceaccount.com"
    config = make_absolute(load_config(path, IMAGES))
    plan = make_plan(config, Asked(), complete=True)
    assert [problem.given for problem in plan.problems] == [f"sharding.source = {source}"]


def test_what_is_written_can_be_looked_at_before_anything_is_built(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The stages' own checks are asked in the test above, and by tests/pipelines/test_checks.py."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SHARDLINE_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr("pipelines.plan.check_planned", lambda *_, **__: Checked((), ()))
    write_data(tmp_path, "image_classification")

    def call(*arguments: str) -> Result:
        answer = CliRunner().invoke(app, list(arguments))
        assert answer.exit_code == 0, answer.output
        return answer

    call("init", *NAMES, "--source", "photos")
    named = ["sharding.source = gs://my-bucket/lines/photos/source/"]
    named += [f"cloud.images.{role} = not-built.invalid/shardline/{role}@sha256:" for role in ROLES]
    plan = call("plan", "photos.yaml").stdout
    assert "CustomJob of stage train" in plan and "problem" not in plan
    told = json.loads(call("plan", "photos.yaml", "-o", "json").stdout)
    assert told["ok"] is True
    compiled = call("compile", "photos.yaml")
    dry = call("submit", "photos.yaml", "--dry-run")
    request = json.loads(dry.stdout)
    assert request["placeholders"] == told["placeholders"] and len(request["placeholders"]) == 4
    for text, each in zip(named, request["placeholders"], strict=True):
        assert each.startswith(text)
    for output in (plan, compiled.stderr, dry.stderr):
        assert [line for line in output.splitlines() if line.startswith("placeholder: ")] == [
            f"placeholder: {text}" for text in request["placeholders"]
        ]
    # Nothing was made but what was asked for, and images that a configuration names, or a record, have none.
    assert {path.name for path in tmp_path.iterdir()} == {"photos", "photos.yaml", "photos.pipeline.yaml", "cache"}
    assert len(json.loads(call("plan", "photos.yaml", *IMAGES, "-o", "json").stdout)["placeholders"]) == 1
    with pytest.raises(ConfigError, match=r"cloud\.images\.pipeline is not set, and there is no images-my-project"):
        plan_of(make_absolute(load_config(Path("photos.yaml"), ["sharding.source=gs://my-bucket/photos"])))


@pytest.mark.parametrize(
    ("source", "name"),
    [("gs://b-1/My Photos.csv", "my-photos"), ("raw/a: #b", "a-b"), ("raw/2026/", "line-2026"), ("r/[x]'\"", "x")],
)
def test_the_line_is_named_after_its_data(source: str, name: str, tmp_path: Path) -> None:
    config = load_config(write_initial(Names("my-project", "my-bucket", source), tmp_path / "x.yaml"))
    assert (config.run.name, config.sharding.source) == (name, source)


def test_the_command_names_the_next_one_and_overwrites_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    runner = CliRunner()
    made = runner.invoke(app, ["init", *NAMES, "--source", "raw/cats"])
    assert (made.exit_code, made.stdout) == (0, "cats.yaml\n")
    assert made.stderr.startswith("next: shardline submit cats.yaml")
    assert [path.name for path in tmp_path.iterdir()] == ["cats.yaml"]
    (tmp_path / "cats.yaml").write_text("mine")
    again = runner.invoke(app, ["init", *NAMES, "--source", "raw/cats"])
    assert again.exit_code == 2 and "cats.yaml cannot be written: File exists" in again.stderr
    assert (tmp_path / "cats.yaml").read_text() == "mine"
    assert runner.invoke(app, ["init", *NAMES, "--source", "raw", "--to", "no/x.yaml"]).exit_code == 2
    assert [path.name for path in tmp_path.iterdir()] == ["cats.yaml"]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"project": "My Project"}, "--project = My Project"),
        ({"bucket": "gs://b-1"}, "--bucket = gs://b-1"),
        ({"region": "us-central1-a"}, "--region = us-central1-a"),
        ({"task": "images"}, "--task images"),
    ],
)
def test_names_that_cannot_work_are_refused(changes: dict[str, str], said: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        write_initial(
            Names(**{"project": "my-project", "bucket": "my-bucket", "source": "raw", **changes}), tmp_path / "x.yaml"
        )
    assert said in str(caught.value)
    assert not list(tmp_path.iterdir())
