"""Processes that die and disks that fill: the command ends by itself, and the next one writes the same bytes."""

import os
import re
import resource
import signal
import subprocess
import time
from pathlib import Path

import pytest

# A command that takes longer than this after the blow counts as hanging.
END_S = 60
PROCESSES = {"beam_workers": 2}
# Runs in every process that is started with it on its path: a shard that is written waits before it is published.
PAUSE = """
import os, sys, time

def pause(event, arguments):
    if event == "os.link" and os.fspath(arguments[1]).endswith(".tar"):
        folder = os.environ["SHARDLINE_TEST_PAUSE"]
        open(os.path.join(folder, str(os.getpid())), "w").close()
        while not os.path.exists(os.path.join(folder, "go")):
            time.sleep(0.01)

sys.addaudithook(pause)
"""


class Pause:
    """Holds workers where they have written a shard and not yet published it."""

    def __init__(self, folder):
        self.folder = folder / "paused"
        self.folder.mkdir()
        spy = folder / "spy"
        spy.mkdir()
        (spy / "sitecustomize.py").write_text(PAUSE)
        self.environment = {
            "SHARDLINE_TEST_PAUSE": str(self.folder),
            "PYTHONPATH": os.pathsep.join([str(spy), str(Path(__file__).parents[2])]),
        }

    def wait(self):
        """Return the process id of a worker that is held."""
        deadline = time.monotonic() + END_S
        while not (pids := [int(path.name) for path in self.folder.iterdir()]):
            assert time.monotonic() < deadline, "no worker came to write"
            time.sleep(0.02)
        return pids[0]

    def end(self):
        """Let everyone go on."""
        (self.folder / "go").touch()


@pytest.fixture
def pause(tmp_path):
    held = Pause(tmp_path)
    yield held
    held.end()


def is_alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def wait_for_end(pids):
    deadline = time.monotonic() + END_S
    while alive := [pid for pid in pids if is_alive(pid)]:
        assert time.monotonic() < deadline, f"processes {alive} outlive their job"
        time.sleep(0.05)


def check_unfinished(folder):
    """Check that nothing in a folder looks finished, and that what is not hidden is a whole shard."""
    assert not (folder / "manifest.json").exists()
    visible = [path.name for path in folder.iterdir() if not path.name.startswith(".")]
    assert all(
        re.fullmatch(r"(train|validation|test)-[0-9a-f]{8}-\d{5}(\.tar|\.idx\.npy)|refusal\.json", name)
        for name in visible
    ), visible


@pytest.fixture
def whole(run_shard):
    return run_shard(root="whole")


def check_rerun(run_shard, whole, root, resources=None):
    again = run_shard(root=root, resources=resources)
    assert again.code == 0, again.stderr
    assert again.content == whole.content


def test_kill_of_a_worker_process_changes_no_byte(run_shard, start_shard, whole, pause, tmp_path, find_descendants):
    process = start_shard("killed", PROCESSES, environment=pause.environment)
    victim = pause.wait()
    workers = find_descendants(process.pid)
    assert victim in workers
    os.kill(victim, signal.SIGKILL)
    pause.end()
    _, err = process.communicate(timeout=END_S)
    assert process.returncode == 0, err
    wait_for_end(workers)
    folder = tmp_path / "killed" / whole.folder.name
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == whole.content


def test_rows_of_a_file_survive_the_kill_of_a_worker_and_of_the_command(run_shard, start_shard, pause, tmp_path):
    rows = tmp_path / "rows.jsonl"
    rows.write_text("".join(f'{{"text": "a row {number}", "y": {number}}}\n' for number in range(200)))
    section = {
        "source": str(rows),
        "format": "webdataset",
        "fields": {"text": {"column": "text", "kind": "text"}, "y": {"column": "y", "kind": "number"}},
    }
    whole = run_shard(root="whole", **section)
    process = start_shard("killed", PROCESSES, environment=pause.environment, **section)
    os.kill(pause.wait(), signal.SIGKILL)
    process.kill()
    process.wait()
    pause.end()
    folder = tmp_path / "killed" / whole.folder.name
    check_unfinished(folder)
    again = run_shard(root="killed", **section)
    assert again.code == 0 and again.content == whole.content


@pytest.mark.slow
def test_kill_of_the_command_ends_its_worker_processes(
    run_shard, start_shard, whole, pause, tmp_path, find_descendants
):
    process = start_shard("killed", PROCESSES, environment=pause.environment)
    pause.wait()
    workers = find_descendants(process.pid)
    process.kill()
    process.wait()
    wait_for_end(workers)
    check_unfinished(tmp_path / "killed" / whole.folder.name)
    check_rerun(run_shard, whole, "killed", PROCESSES)


@pytest.mark.parametrize("resources", [{}, pytest.param(PROCESSES, marks=pytest.mark.slow)])
def test_a_file_that_may_not_grow(run_shard, start_shard, whole, tmp_path, resources):
    """A limit on the size of files stands for a full disk where none can be mounted."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (3000, hard))
    try:
        process = start_shard("full", resources)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    _, err = process.communicate(timeout=END_S)
    assert process.returncode == 2, err
    assert "cannot be written: File too large" in err and "Traceback" not in err
    check_unfinished(tmp_path / "full" / whole.folder.name)
    check_rerun(run_shard, whole, "full")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may mount a small disk")
@pytest.mark.parametrize("kilobytes", [100, *(pytest.param(size, marks=pytest.mark.slow) for size in (40, 160, 200))])
@pytest.mark.parametrize("resources", [{}, pytest.param(PROCESSES, marks=pytest.mark.slow)])
def test_a_full_disk(run_shard, start_shard, whole, tmp_path, kilobytes, resources):
    disk = tmp_path / "full"
    disk.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={kilobytes}k", "tmpfs", str(disk)], check=False, capture_output=True
    )
    if mounted.returncode:
        pytest.skip("mounting is not permitted")
    try:
        process = start_shard("full", resources)
        _, err = process.communicate(timeout=END_S)
        folder = disk / whole.folder.name
        assert process.returncode == 2, err
        assert "cannot be written: No space left on device" in err
        # Beam's workers print a traceback of their own.
        assert resources or "Traceback" not in err
        check_unfinished(folder)
        subprocess.run(["mount", "-o", "remount,size=10m", str(disk)], check=True)
        check_rerun(run_shard, whole, "full")
    finally:
        subprocess.run(["umount", "--lazy", str(disk)], check=True)
