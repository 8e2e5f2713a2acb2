"""`shardline tensorboard`: the real server, asked over HTTP for what training and profiling have left."""

import gc
import json
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


def wait_for_everything(address: str, run: str = "") -> None:
    """Wait until the server has read what was written; it lists runs before it has read them."""
    deadline = time.monotonic() + DEADLINE_S
    while True:
        try:
            return check_everything(address, run)
        except (AssertionError, LookupError, TypeError, ValueError):
            if time.monotonic() > deadline:
                raise
            time.sleep(0.2)


def check_everything(address: str, run: str = "") -> None:
    """Each of TensorBoard's plugins answers with what was written for it.

    Args:
        address: Of the server.
        run: What its names begin with, where several are shown.
    """
    training, result, profile = f"{run}training/.", f"{run}training/result", f"{run}profile/."
    assert {training, result, profile, f"{run}profile/configurations/00"} <= set(ask(address, "data/runs"))
    scalars = ask(address, "data/plugin/scalars/tags")
    wanted = {"loss", "learning_rate", "samples_per_s", "epoch"}
    assert {f"train/{name}" for name in wanted} | {"data/time_percent", "memory/resident_bytes"} <= set(
        scalars[training]
    )
    assert "choice/slot_size" in scalars[profile]
    query = urlencode({"tag": "train/loss", "run": training})
    assert [step for _, step, _ in ask(address, f"data/plugin/scalars/scalars?{query}")] == [5, 10]
    images = ask(address, "data/plugin/images/tags")
    assert set(images[training]) == {"images/first_slot"}
    assert result not in images
    asked = {
        "experimentName": "",
        "allowedStatuses": ["STATUS_SUCCESS"],
        "colParams": [],
        "startIndex": 0,
        "sliceSize": 99,
    }
    groups = ask(address, "experiment/defaultExperimentId/data/plugin/hparams/session_groups", asked)["sessionGroups"]
    (group,) = (group for group in groups if group["name"] == result)
    assert group["hparams"]["architecture"] == "resnet"
    metrics = {metric["name"]["tag"]: metric["value"] for metric in group["metricValues"]}
    assert {"test/accuracy", "test/loss", "best/validation_accuracy"} <= set(metrics)
    assert 0.5 < metrics["test/accuracy"] <= 1.0


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
def test_runs_here_and_in_a_bucket_are_read_where_they_are_and_ctrl_c_ends_the_server(
    line: Path, bucket_server: BucketServer
) -> None:
    # Its documents name the old place; a colon is the end of a name to TensorBoard.
    moved = line.rename(line.with_name("pho:to s"))
    for path in sorted(path for path in moved.rglob("*") if path.is_file()):
        storage.replace(storage.join("gs://bucket-1/others", *path.relative_to(moved).parts), path.read_bytes())
    with opened(str(moved), f"gs://bucket-1/others/runs/{RUN}") as (process, address):
        wait_for_everything(address, f"others/{RUN}/")
        (name,) = {name.rpartition(f"/{RUN}/")[0] for name in ask(address, "data/runs")} - {"others"}
        wait_for_everything(address, f"{name}/{RUN}/")
        process.send_signal(signal.SIGINT)
        assert process.wait(DEADLINE_S) == 130
        wait_for_refusal(address)
        assert process.stderr is not None
        assert "Traceback" not in process.stderr.read()
    gc.collect()


def test_of_several_runs_a_folder_that_they_share_is_shown_once(line: Path, small_shards: str, tmp_path: Path) -> None:
    plant(line, small_shards, kind="cached", run_id="20261123-070000-0002")
    copy = Path(shutil.copytree(line, tmp_path / "copies" / "photos"))
    trained = line / "train" / ("c" * 16)
    runs = [line / "runs" / RUN, line / "runs" / "20261123-070000-0002", copy / "runs" / RUN, trained]
    profile = next(path for path in (line / "profile").iterdir() if path.name != "attempts")
    assert inspection.tensorboard.find_logs([*map(str, runs)]) == {
        f"photos/{RUN}/training": storage.normalise(trained / "tensorboard"),
        f"photos/{RUN}/profile": storage.normalise(profile / "tensorboard"),
        f"photos/{RUN}/training-2": storage.normalise(copy / "train" / ("c" * 16) / "tensorboard"),
        f"photos/{RUN}/profile-3": storage.normalise(copy / "profile" / profile.name / "tensorboard"),
    }
    answer = CliRunner().invoke(app, ["tensorboard", *[str(line)] * 9])
    assert answer.exit_code == 2 and "9 runs for one TensorBoard" in answer.stderr and "at most 8" in answer.stderr


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
        inspection.tensorboard.find_logs([str(planted.line)])
    (folder / "events.out.tfevents.1.host").touch()
    assert inspection.tensorboard.find_logs([str(planted.line)]) == {"training": storage.normalise(folder)}


def test_a_folder_out_of_the_line_is_not_read(line: Path, tmp_path: Path) -> None:
    (line / "runs" / RUN / "run.json").unlink()
    (elsewhere := tmp_path / "elsewhere").mkdir()
    for events in (line / "train" / "attempts").glob("*/events.jsonl"):
        text = events.read_text().replace(
            (line / "train" / ("c" * 16)).as_uri(), f"{line.as_uri()}/../{elsewhere.name}"
        )
        events.write_text(text)
    assert set(inspection.tensorboard.find_logs([str(line)])) == {"profile"}


def test_what_the_server_says_moves_no_cursor(monkeypatch: pytest.MonkeyPatch) -> None:
    # Names out of a run are in what it says: of files that it cannot read, for one.
    command = "import sys; print('bad \\x1b]0;title\\x07\\x1b[2J\\u202efile\\x9b\\there', file=sys.stderr); sys.exit(3)"
    monkeypatch.setattr(inspection.tensorboard, "_COMMAND", command)
    messages: list[str] = []
    with pytest.raises(ConfigError) as ended:
        inspection.tensorboard._serve([], lambda url: None, messages.append)
    for text in (*messages, str(ended.value)):
        assert "file" in text and "title" in text
        assert not any(mark in text for mark in "\x1b\x07\x9b\u202e")
