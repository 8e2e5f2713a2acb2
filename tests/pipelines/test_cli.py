import importlib.metadata
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner, Result

from contracts.artifacts import ShardManifest
from contracts.storage import normalise
from pipelines.cli import GROUPS, app

HEAVY = ("torch", "apache_beam", "kfp", "google.cloud.aiplatform", "transformers", "rich", "pydantic")


@pytest.fixture
def call(project: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    """Runs the command line in the project's folder, in this process."""
    monkeypatch.chdir(project)
    return lambda *arguments: CliRunner().invoke(app, arguments, obj=0.0)


def test_help_imports_nothing_heavy() -> None:
    answer = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "pipelines.cli", "--help"],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    imported = {
        line.rpartition("|")[2].strip() for line in answer.stderr.splitlines() if line.startswith("import time")
    }
    assert "typer" in imported
    assert sorted(name for name in imported if name in HEAVY) == []
    assert "run" in answer.stdout


def test_commands_are_grouped_and_every_one_is_in_a_group() -> None:
    output = CliRunner().invoke(app, ["--help"]).stdout
    assert [line for line in output.splitlines() if line.rstrip(":") in GROUPS] == [f"{title}:" for title in GROUPS]
    listed = [name for names in GROUPS.values() for name in names]
    assert sorted(re.findall(r"^  ([a-z]+)  ", output, re.MULTILINE)) == sorted(listed)
    assert len(listed) <= 26 and "..." not in output.partition("Commands")[2]


def test_version_and_short_help() -> None:
    answer = CliRunner().invoke(app, ["--version"])
    assert (answer.exit_code, answer.stdout) == (0, f"shardline {importlib.metadata.version('shardline')}\n")
    for arguments in ([], ["run"], ["data", "describe"]):
        short, whole = (CliRunner().invoke(app, [*arguments, flag]) for flag in ("-h", "--help"))
        assert short.exit_code == 0 and short.stdout == whole.stdout != ""


MISTAKES = {
    # Arguments.
    "shrad tiny.yaml": "No such command 'shrad'. Did you mean 'shard'?",
    "shard": "Missing argument 'CONFIG'",
    "init --project p-123456 --source raw": "Missing option '--bucket'",
    "shard tiny.yaml --fersh": "No such option: --fersh (Possible options: --fresh)",
    "train tiny.yaml --to": "Option '--to' requires an argument",
    "runs -o xml": "'xml' is not one of 'table', 'json', 'csv'",
    "tensorboard x --port 70000": "Invalid value for '--port'",
    "predict model": "no samples: pass images or texts",
    # Files and places.
    "export missing.yaml": "configuration missing.yaml does not exist",
    "export raw": "raw",
    "shard tiny.yaml --to raw": "the output raw is inside of sharding.source raw",
    "report nowhere": "nowhere",
    "init --project p-123456 --bucket bucket-1 --source raw --to tiny.yaml": "tiny.yaml cannot be written: File exists",
    "clean nowhere --keep-last 1": "nowhere",
    "data describe nowhere": "nowhere holds no manifest.json",
    # Values of keys.
    "run tiny.yaml train.epoch=2": "did you mean train.epochs?",
    "train tiny.yaml train.epochs=0": "train.epochs = 0",
    "shard tiny.yaml epochs=0": "section.key=value",
    "run tiny.yaml run.root=gs://bucket/runs": "gs://",
    "shard tiny.yaml run.root=tiny.yaml": "run.root",
}


@pytest.mark.parametrize("words", MISTAKES)
def test_a_mistake_ends_with_2_and_three_lines_and_nothing_is_written(
    project: Path, call: Callable[..., Result], words: str
) -> None:
    before = sorted(project.rglob("*"))
    answer = call(*words.split())
    assert (answer.exit_code, answer.stdout) == (2, ""), answer.output
    first, *rest = answer.stderr.splitlines()
    assert first.startswith("error: ") and MISTAKES[words] in answer.stderr
    assert rest[-1].startswith("  to do: ") and len(rest) <= 2, answer.stderr
    assert sorted(project.rglob("*")) == before


def test_debug_shows_the_traceback(call: Callable[..., Result]) -> None:
    answer = call("run", "tiny.yaml", "train.epochs=0", "--debug")
    assert answer.exit_code == 2
    assert "Traceback" in answer.stderr


def test_config_show_resolves_overrides(call: Callable[..., Result]) -> None:
    answer = call("config", "show", "tiny.yaml", "train.epochs=3", "model.arguments={depths: [1, 1]}")
    assert answer.exit_code == 0
    shown = yaml.safe_load(answer.stdout)
    assert shown["train"]["epochs"] == 3
    assert shown["model"]["arguments"] == {"depths": [1, 1]}
    assert shown["sharding"]["source"] == "raw"


def test_a_stage_alone_ends_with_its_folder_and_a_dry_run_writes_nothing(
    project: Path, call: Callable[..., Result]
) -> None:
    before = sorted(project.iterdir())
    planned = call("shard", "tiny.yaml", "--dry-run")
    assert re.search(r"train: \d+ samples in \d+ shards?, \d+ bytes of source files", planned.stdout), planned.output
    assert sorted(project.iterdir()) == before
    answer = call("shard", "tiny.yaml", "--to", "out/my shards")
    assert answer.exit_code == 0, answer.stderr
    assert answer.stdout.splitlines()[-1] == "out/my shards"
    assert "shard  starts" in answer.stderr and "shard  done: " in answer.stderr
    manifest = ShardManifest.load(normalise(project / "out" / "my shards"))
    assert sum(split.samples for split in manifest.splits.values()) == 48


def test_a_reader_that_has_seen_enough_is_no_error() -> None:
    code = "from pipelines import cli; cli.command('flood')(lambda: print('x\\n' * 10**6)); cli.main()"
    command = f"'{sys.executable}' -c \"{code}\" flood | head -1"
    done = subprocess.run(["bash", "-o", "pipefail", "-c", command], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "x\n", "")
