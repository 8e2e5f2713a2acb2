"""`shardline tensorboard`: the real server, asked over HTTP for what stages have left."""

import gc
import json
import shutil
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import inspection.tensorboard
from contracts import storage
from pipelines.cli import app
from rehearsal.gcs import BucketServer
from tests.inspection.lines import plant
from tests.trainer.profiling.reports import gpu_report
from trainer.profiling.board import write_board

RUN = "20261122-070000-0001"
# A start takes some seconds, and many on a machine with much to do.
DEADLINE_S = 200


@pytest.fixture
def line(tmp_path: Path, small_shards: str) -> Path:
    """A line of one run, with logs of both stages."""
    planted = plant(tmp_path / "photos", small_shards, run_id=RUN)
    for stage in ("train", "profile"):
        folder = storage.local_path(planted.uris[stage]) / "tensorboard"
        shutil.rmtree(folder, ignore_errors=True)
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


def ask(address: str, path: str) -> Any:
    """Return the server's answer."""
    with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(address + path, timeout=60) as answer:
        return json.loads(answer.read())


@pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")
def test_runs_here_and_in_a_bucket_are_read_where_they_are_and_ctrl_c_ends_the_server(
    line: Path, bucket_server: BucketServer
) -> None:
    # Its documents name the old place; a colon is the end of a name to TensorBoard.
    moved = line.rename(line.with_name("pho:to s"))
    for path in sorted(path for path in moved.rglob("*") if path.is_file()):
        storage.replace(storage.join("gs://bucket-1/others", *path.relative_to(moved).parts), path.read_bytes())
    with opened(str(moved), f"gs://bucket-1/others/runs/{RUN}") as (process, address):
        deadline = time.monotonic() + DEADLINE_S
        while True:
            # It lists runs before it has read them.
            scalars = ask(address, "data/plugin/scalars/tags")
            boards = [name for name, tags in scalars.items() if name.endswith("/configurations/00") and tags]
            if len(boards) == 4:
                break
            assert time.monotonic() < deadline, scalars
            time.sleep(0.2)
        places = {f"others/{RUN}/{stage}/configurations/00" for stage in ("training", "profile")}
        assert places < set(boards)
        process.send_signal(signal.SIGINT)
        assert process.wait(DEADLINE_S) == 130
        with pytest.raises(urllib.error.URLError):
            ask(address, "data/runs")
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


def test_a_run_that_runs_shows_what_there_is(tmp_path: Path, small_shards: str) -> None:
    planted = plant(tmp_path / "photos", small_shards, kind="running", run_id=RUN)
    folder = planted.line / "train" / ("c" * 16) / "tensorboard"
    shutil.copytree(Path(__file__).parent, folder / "empty")
    answer = CliRunner().invoke(app, ["tensorboard", str(planted.line)])
    assert answer.exit_code == 2 and "has no logs for TensorBoard yet" in answer.stderr
    (folder / "events.out.tfevents.1.host").touch()
    assert inspection.tensorboard.find_logs([str(planted.line)]) == {"training": storage.normalise(folder)}
