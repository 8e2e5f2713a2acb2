"""What a rehearsal leaves that is killed at three moments: nothing after the next start, while others go on."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from contracts.errors import ConfigError
from rehearsal.leftovers import claimed_folder

ROOT = Path(__file__).parents[2]
LIMIT_S = 120.0
# A machine whose program has left its session, as daemons do, and its own child.
DAEMON = "import time; time.sleep(1000)"
PROGRAM = f"""
import subprocess, sys, time
subprocess.Popen([sys.executable, "-c", {DAEMON!r}], start_new_session=True)
time.sleep(1000)
"""
# A rehearsal: it starts a process by its mark; another one has only been led to its cloud.
CLAIM = f"""
import os, subprocess, sys
from rehearsal.leftovers import claimed_folder
from rehearsal.machines.processes import MARK_VARIABLE
with claimed_folder() as folder:
    for more in ({{MARK_VARIABLE: "/1"}}, {{}}):
        environment = {{**os.environ, "CLOUDSDK_CONFIG": f"{{folder}}/gcloud", **more}}
        command = [sys.executable, "-c", {DAEMON!r}]
        print(subprocess.Popen(command, env=environment, start_new_session=True).pid, end=" ")
    print(flush=True)
    sys.stdin.read()
"""
SUBMIT = f"""
import sys
from google.cloud import aiplatform
aiplatform.init(location="us-central1", staging_bucket="gs://rehearsal-line")
container = {{"image_uri": "us-docker.pkg.dev/p/r/i:1", "command": ["python3", "-c", {PROGRAM!r}]}}
pool = {{"replica_count": 1, "machine_spec": {{"machine_type": "n1-standard-4"}}, "container_spec": container}}
aiplatform.CustomJob(display_name="sleeps", worker_pool_specs=[pool]).submit()
"""


def wait_for(found: Callable[[], bool]) -> None:
    deadline = time.monotonic() + LIMIT_S
    while not found():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def living(text: str) -> list[int]:
    """Return the processes whose environment and command line hold a text each."""
    found = []
    for process in Path("/proc").iterdir():
        if process.name.isdecimal():
            with contextlib.suppress(OSError):
                if (
                    text.encode() in (process / "environ").read_bytes()
                    and b"sleep(1000)" in (process / "cmdline").read_bytes()
                ):
                    found.append(int(process.name))
    return found


@pytest.fixture
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder for temporary files, for this process and those that it starts."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    yield tmp_path
    for pid in living(str(tmp_path)):
        os.kill(pid, signal.SIGKILL)


def start(places: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "pipelines.cli", "rehearse", "--serve", "-o", "json"]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)


def submit(server: subprocess.Popen[str]) -> None:
    assert server.stdout is not None
    variables = json.loads(server.stdout.readline())["environment"]
    command = [sys.executable, "-W", "ignore", "-c", SUBMIT]
    subprocess.run(command, env={"PATH": os.environ["PATH"], **variables}, check=True, capture_output=True, timeout=120)


@pytest.mark.line
@pytest.mark.parametrize("moment", ["begun", "running", "ending"])
def test_nothing_is_left_after_the_next_start(places: Path, moment: str) -> None:
    with start(places) as server:
        if moment == "begun":
            wait_for(lambda: any(places.glob("shardline-rehearsal-*")))
        else:
            submit(server)
            wait_for(lambda: len(living(str(places))) >= 2)
        if moment == "ending":
            server.terminate()
        server.kill()
    left = [path for path in places.glob("shardline-rehearsal-*") if path.is_dir()]
    assert left or moment == "ending"
    with claimed_folder() as folder:
        assert living(str(places)) == []
        names = sorted(path.name for path in places.iterdir())
        assert names == sorted([folder.name, f"shardline-rehearsals-{os.getuid()}"])
    assert [path.name for path in places.iterdir()] == [f"shardline-rehearsals-{os.getuid()}"]


def test_processes_that_have_left_their_session_end_and_those_of_others_go_on(places: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", CLAIM], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as owner:
        assert owner.stdout is not None
        started, led = map(int, owner.stdout.readline().split())
        owner.kill()
    # What was just started may not have become its program yet.
    wait_for(lambda: sorted(living(str(places))) == sorted([started, led]))
    with claimed_folder():
        assert living(str(places)) == [led]


def test_who_still_runs_is_let_alone_and_a_folder_that_is_kept_stays(places: Path) -> None:
    kept = places / "kept"
    kept.mkdir()
    (kept / "log").touch()
    with claimed_folder(kept) as one, claimed_folder() as other:
        assert one == kept and other.is_dir()
        with claimed_folder() as third:
            assert one.is_dir() and other.is_dir() and third != other
    assert (kept / "log").exists() and not other.exists()
    assert list((places / f"shardline-rehearsals-{os.getuid()}").iterdir()) == []


def test_a_folder_of_entries_that_others_may_write_is_refused(places: Path) -> None:
    folder = places / f"shardline-rehearsals-{os.getuid()}"
    folder.mkdir()
    folder.chmod(0o777)
    with pytest.raises(ConfigError, match="not a folder of this user alone"), claimed_folder():
        raise AssertionError("unreachable")


def test_a_damaged_entry_is_named(places: Path) -> None:
    """As a power cut leaves it."""
    with claimed_folder():
        pass
    entry = places / f"shardline-rehearsals-{os.getuid()}" / "damaged"
    entry.write_text('{"folder": "/tmp')
    with pytest.raises(ConfigError) as caught, claimed_folder():
        raise AssertionError("unreachable")
    assert str(entry) in caught.value.given and "remove it" in caught.value.todo
