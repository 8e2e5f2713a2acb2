"""`shardline tensorboard`: the real server, asked over HTTP for what training and profiling have left."""

import gc
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest
from typer.testing import CliRunner

import inspection.tensorboard
from contracts import storage
from contracts.errors import ConfigError
from pipelines.cli import app
from rehearsal.gcs import BucketServer
from tests.conftest import small_config
from tests.inspection.lines import plant
from tests.trainer.one_rank import one_rank, train
from tests.trainer.profiling.reports import gpu_report
from trainer.profiling.board import write_board

RUN = "20261122-070000-0001"
# A start takes some seconds, and many on a machine with much to do.
DEADLINE_S = 200


@pytest.fixture(scope="module")
def trained(small_shards: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What a real training leaves for TensorBoard; read only."""
    folder = tmp_path_factory.mktemp("trained")
    with one_rank() as rank:
        train(rank, folder, small_shards, small_config())
    return folder / "out" / "tensorboard"


@pytest.fixture
def line(tmp_path: Path, small_shards: str, trained: Path) -> Path:
    """A line of one run, with the logs of a real training."""
    planted = plant(tmp_path / "photos", small_shards, run_id=RUN)
    for stage in ("train", "profile"):
        folder = storage.local_path(planted.uris[stage]) / "tensorboard"
        shutil.rmtree(folder, ignore_errors=True)
        if stage == "train":
            shutil.copytree(trained, folder)
        else:
            write_board(folder, gpu_report())
    return planted.line


@contextmanager
def opened(*arguments: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Run the command until its server listens."""
    process = subprocess.Popen(
        [sys.executable, "-m", "pipelines.cli", "tensorboard", *arguments, "--port", "0"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None and process.stderr is not None
        address = process.stdout.readline().strip()
        assert address.startswith("http://127.0.0.1:"), process.stderr.read()
        yield process, address
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()


def ask(address: str, path: str, body: dict[str, Any] | None = None) -> Any:
    """Return the server's answer; what it does not know yet is None."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(address + path, data=data, headers={"Content-Type": "application/json"})
    try:
        with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=60) as answer:
            return json.loads(answer.read())
    except urllib.error.HTTPError as error:
        error.close()
        return None


def wait_for_runs(address: str, *names: str) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not set(names) <= set(found := ask(address, "data/runs") or []):
        assert time.monotonic() < deadline, found
        time.sleep(0.2)


def check_everything(address: str) -> None:
    """Each of TensorBoard's plugins answers with what was written for it."""
    wait_for_runs(address, "training/.", "training/result", "profile/.", "profile/configurations/00")
    scalars = ask(address, "data/plugin/scalars/tags")
    wanted = {"loss", "learning_rate", "samples_per_s", "epoch"}
    assert {f"train/{name}" for name in wanted} | {"data/time_percent", "memory/resident_bytes"} <= set(
        scalars["training/."]
    )
    assert "choice/slot_size" in scalars["profile/."]
    query = urlencode({"tag": "train/loss", "run": "training/."})
    assert [step for _, step, _ in ask(address, f"data/plugin/scalars/scalars?{query}")] == [5, 10]
    images = ask(address, "data/plugin/images/tags")
    assert set(images["training/."]) == {"images/first_slot"}
    assert set(images["training/result"]) == {"test/confusion_matrix", "test/worst_images"}
    assert len(ask(address, "data/plugin/pr_curves/tags")["training/result"]) == 4
    asked = {
        "experimentName": "",
        "allowedStatuses": ["STATUS_SUCCESS"],
        "colParams": [],
        "startIndex": 0,
        "sliceSize": 99,
    }
    groups = ask(address, "experiment/defaultExperimentId/data/plugin/hparams/session_groups", asked)["sessionGroups"]
    (group,) = (group for group in groups if group["name"] == "training/result")
    assert group["hparams"]["architecture"] == "resnet"
    metrics = {metric["name"]["tag"]: metric["value"] for metric in group["metricValues"]}
    assert {"test/accuracy", "test/loss", "best/validation_accuracy"} <= set(metrics)
    assert 0.5 < metrics["test/accuracy"] <= 1.0


def test_a_line_that_was_moved_is_shown_whole_and_ctrl_c_ends_it(line: Path) -> None:
    # Its documents name the old place; a comma is the end of a path to TensorBoard.
    moved = line.rename(line.with_name("pho,tos"))
    with opened(str(moved)) as (process, address):
        check_everything(address)
        process.send_signal(signal.SIGINT)
        assert process.wait(DEADLINE_S) == 130
        wait_for_refusal(address)
        assert process.stderr is not None
        assert "Traceback" not in process.stderr.read()


def wait_for_refusal(address: str) -> None:
    port = int(address.rstrip("/").rpartition(":")[2])
    deadline = time.monotonic() + DEADLINE_S
    while time.monotonic() < deadline:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) != 0:
                return
        time.sleep(0.1)
    pytest.fail("the server is still there")


@pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")
def test_a_run_in_a_bucket_is_read_there_and_its_server_ends_with_the_command(
    line: Path, bucket_server: BucketServer
) -> None:
    for path in sorted(path for path in line.rglob("*") if path.is_file()):
        storage.replace(storage.join("gs://bucket-1/photos", *path.relative_to(line).parts), path.read_bytes())
    with opened(f"gs://bucket-1/photos/runs/{RUN}") as (process, address):
        check_everything(address)
        process.kill()
        wait_for_refusal(address)
    gc.collect()


def test_a_training_alone_is_shown_by_its_folder(line: Path) -> None:
    assert inspection.tensorboard.find_logs(str(line / "train" / ("c" * 16))) == {
        "c" * 16: storage.normalise(line / "train" / ("c" * 16) / "tensorboard")
    }


def test_what_is_not_there_yet_is_said(line: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for stage in ("train", "profile"):
        for folder in (line / stage).glob("*/tensorboard"):
            shutil.rmtree(folder)
    answer = CliRunner().invoke(app, ["tensorboard", str(line)])
    assert answer.exit_code == 2
    assert "has no logs for TensorBoard yet" in answer.stderr and "wait for it" in answer.stderr


def test_a_run_that_runs_shows_what_there_is(tmp_path: Path, small_shards: str) -> None:
    planted = plant(tmp_path / "photos", small_shards, kind="running", run_id=RUN)
    folder = planted.line / "train" / ("c" * 16) / "tensorboard"
    shutil.copytree(Path(__file__).parent, folder / "empty")
    with pytest.raises(Exception, match="no logs for TensorBoard yet"):
        inspection.tensorboard.find_logs(str(planted.line))
    (folder / "events.out.tfevents.1.host").touch()
    assert inspection.tensorboard.find_logs(str(planted.line)) == {"training": storage.normalise(folder)}


def test_a_folder_out_of_the_line_is_not_read(line: Path, tmp_path: Path) -> None:
    (line / "runs" / RUN / "run.json").unlink()
    (elsewhere := tmp_path / "elsewhere").mkdir()
    for events in (line / "train" / "attempts").glob("*/events.jsonl"):
        text = events.read_text().replace(
            (line / "train" / ("c" * 16)).as_uri(), f"{line.as_uri()}/../{elsewhere.name}"
        )
        events.write_text(text)
    assert set(inspection.tensorboard.find_logs(str(line))) == {"profile"}


@pytest.mark.parametrize("package", ["tensorboard", "gcsfs"])
def test_what_is_not_installed_is_said(line: Path, monkeypatch: pytest.MonkeyPatch, package: str) -> None:
    if package == "gcsfs":
        monkeypatch.setattr(inspection.tensorboard, "find_logs", lambda run: {"training": "gs://bucket/x/tensorboard"})
    find_spec = inspection.tensorboard.find_spec
    monkeypatch.setattr(inspection.tensorboard, "find_spec", lambda name: None if name == package else find_spec(name))
    answer = CliRunner().invoke(app, ["tensorboard", str(line)])
    assert answer.exit_code == 2
    assert f"the package {package} is not installed" in answer.stderr and f'pip install "{package}' in answer.stderr


def test_what_the_server_says_moves_no_cursor(monkeypatch: pytest.MonkeyPatch) -> None:
    # Names out of a run are in what it says: of files that it cannot read, for one.
    command = "import sys; print('bad \\x1b]0;title\\x07\\x1b[2J\\u202efile\\x9b\\there', file=sys.stderr); sys.exit(3)"
    monkeypatch.setattr(inspection.tensorboard, "_COMMAND", command)
    said: list[str] = []
    with pytest.raises(ConfigError) as ended:
        inspection.tensorboard._serve([], lambda url: None, said.append)
    for text in (*said, str(ended.value)):
        assert "file" in text and "title" in text
        assert not any(mark in text for mark in "\x1b\x07\x9b\u202e")


def test_a_port_that_is_taken_is_an_error_of_the_user(line: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        done = subprocess.run(
            [sys.executable, "-m", "pipelines.cli", "tensorboard", str(line), "--port", port],
            capture_output=True,
            text=True,
            timeout=DEADLINE_S,
            env={**os.environ},
        )
    assert done.returncode == 2
    assert "TensorBoard ended:" in done.stderr and port in done.stderr


def test_a_run_that_is_none_is_refused(tmp_path: Path) -> None:
    answer = CliRunner().invoke(app, ["tensorboard", str(tmp_path)])
    assert answer.exit_code == 2
    assert "is no run" in answer.stderr
