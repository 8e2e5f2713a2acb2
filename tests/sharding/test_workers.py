"""Shards are written in processes: files that kill or stall one are rejected, any other death changes no byte."""

import contextlib
import os
import pickle
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from multiprocessing import forkserver
from pathlib import Path

import pytest

from contracts import storage
from contracts.errors import TryAgain
from sharding.job import open_job
from sharding.workers import _idle, close_processes, write_in_process
from sharding.write import write_shard
from tests.sharding.conftest import REPOSITORY, children_of, process_environment

# Bounds a wait for what should come at once; no test measures time.
END_S = 30

# Runs in the fork server: what follows the end of an image tells its decoder to misbehave. In the command's own process
# the same files are sound images.
FAULTS = """
import ctypes, os, sys, time

def misbehave(content):
    name, _, path = content.partition(b"!FAULT!")[2].partition(b":")
    flag = path.decode()
    if name == b"abort":
        os.abort()
    elif name == b"sleep":
        ctypes.PyDLL(None).sleep(1000)  # holds the interpreter's lock
    elif name == b"once" and not os.path.exists(flag):
        open(flag, "w").close()
        os.abort()
    elif name == b"wait" and not os.path.exists(flag):
        with open(flag + ".new", "w") as stream:
            stream.write(str(os.getpid()))
        os.rename(flag + ".new", flag)
        time.sleep(1000)

if any("forkserver" in argument for argument in sys.orig_argv):
    import records.decode

    whole = records.decode.decode

    def decode(content, **options):
        misbehave(content)
        return whole(content, **options)

    records.decode.decode = decode
"""


@pytest.fixture(scope="module")
def faults(tmp_path_factory):
    """The environment in which a fork server has faulty decoders."""
    spy = tmp_path_factory.mktemp("spy")
    (spy / "sitecustomize.py").write_text(FAULTS)
    return {"PYTHONPATH": os.pathsep.join([str(spy), str(REPOSITORY)])}


@pytest.fixture(scope="module", autouse=True)
def _faulty_server(faults):
    """A fork server of this process with faulty decoders, while the tests of this file run."""
    with pytest.MonkeyPatch.context() as patch:
        close_processes()
        forkserver._forkserver._stop()
        for name, value in faults.items():
            patch.setenv(name, value)
        yield
        close_processes()
        forkserver._forkserver._stop()


@pytest.fixture(autouse=True)
def _new_processes():
    yield
    close_processes()


@pytest.fixture
def spoil(source):
    """Return a function that makes an image misbehave."""

    def spoil_image(reference, fault):
        path = source / reference.path.decode()
        path.write_bytes(path.read_bytes() + b"!FAULT!" + fault.encode())

    return spoil_image


def write(handle, references, **options):
    """Write the shard in a thread, as Beam does."""
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(write_in_process, handle, 0, references, **options).result(END_S)


def files_of(handle):
    return {path.name: path.read_bytes() for path in storage.local_path(handle.output_uri).iterdir() if path.is_file()}


def wait_for(condition, what):
    deadline = time.monotonic() + END_S
    while not (found := condition()):
        assert time.monotonic() < deadline, what
        time.sleep(0.02)
    return found


def is_alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def writer_pids():
    return [pid for executor in _idle for pid in executor._processes]


def test_a_process_writes_what_this_one_writes_and_does_the_next_one_too(make_job):
    handle, references = make_job()
    other, _ = make_job("other")
    result = write(handle, references)
    assert result == write_shard(open_job(other), 0, references)
    assert files_of(handle) == files_of(other)
    pids = writer_pids()
    assert write(handle, references) == result and writer_pids() == pids
    close_processes()
    assert not any(map(is_alive, pids))


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        ("abort", "its decoder ended the process (twice)"),
        ("sleep", "checking it took longer than 1 s (twice)"),
    ],
)
def test_a_file_that_fails_twice_is_rejected_by_name(make_job, spoil, fault, reason):
    _, listed = make_job("first")
    spoil(listed[5], fault)
    handle, references = make_job()
    bad = next(one for one in references if one.path == listed[5].path)
    result = write(handle, references, time_limit_s=1)
    assert result.rejected == [(bad.path.decode(), reason)]
    # As if it had never been there.
    without, _ = make_job("without")
    expected = write_shard(open_job(without), 0, [one for one in references if one != bad])
    assert expected.shards == result.shards and files_of(without) == files_of(handle)


def test_a_file_that_fails_once_is_kept(make_job, spoil, tmp_path):
    spoil(make_job("first")[1][5], f"once:{tmp_path}/flag")
    handle, references = make_job()
    result = write(handle, references)
    assert (tmp_path / "flag").exists() and result.rejected == []
    other, _ = make_job("other")
    assert write_shard(open_job(other), 0, references) == result


def test_errors_keep_their_type(make_job, source):
    handle, references = make_job()
    job = open_job(handle)
    (storage.local_path(job.output_uri) / f"{job.stem_of(0)}.tar").write_bytes(b"other")
    with pytest.raises(storage.AlreadyPublished):
        write(handle, references)
    (source / references[0].path.decode()).unlink()
    with pytest.raises(TryAgain, match="vanished while the stage ran"):
        write(handle, references)


DRIVER = """
import pickle, sys
from sharding.workers import write_in_process

handle, references = pickle.load(sys.stdin.buffer)
write_in_process(handle, 0, references)
"""


def test_a_process_does_not_import_the_main_module_of_the_command(make_job, tmp_path):
    """It would run this script, which has no guard, once more."""
    script = tmp_path / "command.py"
    script.write_text(DRIVER + "assert __file__ == sys.argv[0]\n")
    handle, references = make_job()
    given = pickle.dumps((handle, references))
    done = subprocess.run([sys.executable, script], input=given, env=process_environment(), timeout=END_S, check=False)
    assert done.returncode == 0
    assert f"{open_job(handle).stem_of(0)}.tar" in files_of(handle)


def test_processes_end_with_the_command(faults, make_job, spoil, tmp_path):
    flag = tmp_path / "flag"
    spoil(make_job("first")[1][5], f"wait:{flag}")
    command = subprocess.Popen(
        [sys.executable, "-c", DRIVER], stdin=subprocess.PIPE, env={**process_environment(), **faults}
    )
    try:
        command.stdin.write(pickle.dumps(make_job()))
        command.stdin.close()
        wait_for(flag.exists, "no file was checked")
        pid = int(flag.read_text())
        servers = children_of(command.pid)
    finally:
        command.kill()
        command.wait()
    try:
        wait_for(lambda: not is_alive(pid), "the process outlives its command")
        wait_for(lambda: not any(map(is_alive, servers)), "the fork server outlives its command")
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
