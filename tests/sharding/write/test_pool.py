"""A process for a thread: files that kill or stall it are rejected by name, and whatever kills it changes no byte."""

import contextlib
import dataclasses
import json
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from multiprocessing import forkserver
from pathlib import Path

import pytest

from contracts import storage
from contracts.errors import ConfigError, DataError, StorageError, TryAgain
from sharding.write import pool as pool_module
from sharding.write.pool import ShardPool
from sharding.write.shard import write_shard
from tests.sharding.conftest import children_of, process_environment

STEM = "train-1a2b3c4d-00000"
# Bounds a wait for what should come at once; no test measures time.
END_S = 20
REPOSITORY = Path(__file__).parents[3]

# Runs in the fork server: what follows the end of an image tells its decoder to misbehave. In the command's own process
# the same files are sound images.
FAULTS = """
import ctypes, os, sys, time

def misbehave(content):
    name, _, path = content.partition(b"!FAULT!")[2].partition(b":")
    flag = path.decode()
    if name == b"abort":
        os.abort()
    elif name == b"exit":
        os._exit(7)
    elif name == b"sleep":
        time.sleep(1000)
    elif name == b"once" and not os.path.exists(flag):
        open(flag, "w").close()
        os.abort()
    elif name in (b"wait", b"loop") and not os.path.exists(flag):
        with open(flag + ".new", "w") as stream:
            stream.write(str(os.getpid()))
        os.rename(flag + ".new", flag)
        if name == b"loop":
            ctypes.PyDLL(None).sleep(1000)  # holds the interpreter's lock
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


@pytest.fixture(scope="module")
def faulty_server(faults):
    """A fork server of this process with faulty decoders, while the tests of this file run."""
    with pytest.MonkeyPatch.context() as patch:
        forkserver._forkserver._stop()
        for name, value in faults.items():
            patch.setenv(name, value)
        pool_module.prepare_pools()
        yield
        forkserver._forkserver._stop()


@pytest.fixture
def pool(faulty_server):
    made = ShardPool(in_process=False)
    yield made
    made.close()


@pytest.fixture
def spoil(source, make_image):
    """Return a function that makes one of the training images misbehave, and returns its path."""

    def spoil_image(reference, fault):
        path = source / reference.path.decode()
        path.write_bytes(path.read_bytes() + b"!FAULT!" + fault.encode())
        return reference.path

    return spoil_image


def write(pool, references, job):
    """Write the shard in a thread, as Beam does; a process that stalls must not stall the test."""
    with ThreadPoolExecutor(1) as thread:
        future = thread.submit(pool.write, STEM, 7, 0, references, job)
        try:
            return future.result(END_S)
        finally:
            while not future.done():
                kill_child(pool)
                time.sleep(0.1)


def content_of(job, record):
    return storage.read_bytes(storage.join(job.output_uri, record.name))


def verdict_of(job):
    path = storage.local_path(job.work_uri) / job.key / f"verdict-{STEM}"
    return json.loads(path.read_bytes()) if path.exists() else None


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


def kill_child(pool):
    with contextlib.suppress(ProcessLookupError, AttributeError):  # there may be none at the moment
        os.kill(pool._child._process.pid, signal.SIGKILL)


def test_a_process_writes_what_this_one_writes(pool, make_job):
    job, references = make_job()
    other, _ = make_job("other")
    record = write(pool, references, job)
    assert record == write(ShardPool(in_process=True), references, other)
    assert content_of(job, record) == content_of(other, record)
    # The same process does the next one.
    pid = pool._child._process.pid
    assert write_shard("b", 8, 2, references[:5], other) == pool.write("b", 8, 2, references[:5], job)
    assert pool._child._process.pid == pid
    pool.close()
    assert not is_alive(pid)
    assert write(pool, references, job) == record


@pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")
def test_a_process_reads_and_writes_a_bucket(pool, make_job, source, bucket_server):
    """The environment names it, and was set after the fork server was started."""
    job, references = make_job()
    record = write(pool, references, job)
    pool.close()
    for one in references:
        path = one.path.decode()
        storage.publish(f"gs://bucket-1/raw/{path}", (source / path).read_bytes())
    listed = {info.name: info for info in storage.list_objects("gs://bucket-1/raw")}
    remote = [one._replace(generation=listed[one.path.decode()].generation) for one in references]
    there = dataclasses.replace(job, source_uri="gs://bucket-1/raw", output_uri="gs://bucket-1/out", read_threads=8)
    same = write(pool, remote, there)
    # What a sample was made of names the generation.
    assert dataclasses.replace(same, sources=record.sources) == record
    assert content_of(there, same) == content_of(job, record)
    storage.replace(f"gs://bucket-1/raw/{references[7].path.decode()}", b"other")
    with pytest.raises(TryAgain, match=f"replaced .*generation {remote[7].generation}"):
        pool.write("train-again", 7, 0, remote, there)


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        ("abort", "its decoder ended the process by signal 6 (twice)"),
        ("exit", "its decoder ended the process with exit code 7 (twice)"),
        ("sleep", "looking at it took longer than 1 s (twice)"),
    ],
)
def test_a_file_that_fails_twice_is_rejected_by_name(pool, make_job, spoil, source, fault, reason):
    path = spoil(make_job()[1][5], fault)
    job, references = make_job(file_timeout_s=1)
    record = write(pool, references, job)
    assert record.rejected == ((path, reason),)
    assert verdict_of(job) == {path.decode(): reason}
    # As if it had never been there.
    without, others = make_job("without")
    expected = write_shard(STEM, 7, 0, [one for one in others if one.path != path], without)
    assert record.rows == expected.rows and content_of(job, record) == content_of(without, expected)
    # A later attempt, in whatever process, gives the same record; nothing else is left.
    assert write(pool, references, job) == record
    assert {one.name for one in storage.local_path(job.output_uri).iterdir()} == {record.name, ".work"}


def test_a_file_that_fails_once_is_kept(pool, make_job, spoil, tmp_path):
    spoil(make_job()[1][5], f"once:{tmp_path}/flag")
    job, references = make_job()
    record = write(pool, references, job)
    assert (tmp_path / "flag").exists() and record.rejected == () and verdict_of(job) == {}
    other, _ = make_job("other")
    assert write_shard(STEM, 7, 0, references, other) == record


def test_a_process_that_is_killed_changes_nothing(pool, make_job, spoil, tmp_path):
    flag = tmp_path / "flag"
    spoil(make_job()[1][5], f"wait:{flag}")
    job, references = make_job()
    found = []
    thread = threading.Thread(target=lambda: found.append(write(pool, references, job)))
    thread.start()
    wait_for(flag.exists, "no file was looked at")
    os.kill(int(flag.read_text()), signal.SIGKILL)
    thread.join(END_S)
    other, _ = make_job("other")
    assert found == [write_shard(STEM, 7, 0, references, other)]
    assert {one.name for one in storage.local_path(job.output_uri).iterdir()} == {found[0].name, ".work"}
    assert verdict_of(job) == {}


def test_a_process_that_is_killed_between_two_files_again_and_again(pool, make_job, source):
    """A pipe for a file: nobody looks at anything while it is opened."""
    job, references = make_job()
    stuck = source / references[0].path.decode()
    stuck.unlink()
    os.mkfifo(stuck)
    errors = []

    def run():
        try:
            write(pool, references, job)
        except TryAgain as error:
            errors.append(str(error))

    thread = threading.Thread(target=run)
    thread.start()
    deadline = time.monotonic() + END_S
    while thread.is_alive():
        assert time.monotonic() < deadline, "it tries for ever"
        kill_child(pool)
        thread.join(0.1)
    assert len(errors) == 1 and "ended by signal 9, 3 times" in errors[0]
    assert verdict_of(job) is None


def test_the_first_attempts_verdict_counts(pool, make_job, spoil):
    """A time limit is no function of bytes: on a faster machine the file would pass."""
    job, references = make_job()
    theirs = {references[3].path: "looking at it took longer than 120 s (twice)"}
    first = write_shard(STEM, 7, 0, references, job, theirs)
    for later in (pool, ShardPool(in_process=True)):
        record = write(later, references, job)
        assert record == first and record.rejected == tuple(theirs.items())


def test_who_finds_a_fault_where_the_first_attempt_found_none_tries_again(pool, make_job, spoil):
    """The first one died behind its shard, before its record: the shard stays what it is."""
    path = spoil(make_job()[1][5], "abort")
    job, references = make_job()
    first = write_shard(STEM, 7, 0, references, job)
    with pytest.raises(TryAgain, match="ended by signal 6, 3 times, and another attempt found no fault in its files"):
        write(pool, references, job)
    assert verdict_of(job) == {} and path.decode() not in verdict_of(job)
    assert write(ShardPool(in_process=True), references, job) == first


def test_errors_keep_their_type(pool, make_job, source, tmp_path):
    job, references = make_job()
    (source / references[0].path.decode()).unlink()
    with pytest.raises(TryAgain, match="vanished while the stage ran"):
        write(pool, references, job)
    job, references = make_job()
    (tmp_path / "out" / f"{STEM}.tar").write_bytes(b"other")
    with pytest.raises(storage.AlreadyPublished):
        write(pool, references, job)
    (tmp_path / "file").touch()
    blocked, _ = make_job("file")
    with pytest.raises((StorageError, FileExistsError)):
        write(pool, references, blocked)
    # A fault of ours comes with its traceback.
    broken, _ = make_job(shard_format="zip")
    with pytest.raises(KeyError) as raised:
        write(pool, references, broken)
    assert "in write_shard" in "".join(raised.value.__notes__)


@pytest.mark.parametrize("kind", [DataError, StorageError, ConfigError])
def test_user_errors_cross_a_process_boundary_whole(kind):
    error = pickle.loads(pickle.dumps(kind("given", allowed="allowed", todo="todo")))
    assert type(error) is kind and (error.given, error.allowed, error.todo) == ("given", "allowed", "todo")


DRIVER = """
import pickle, sys
from sharding.write.pool import ShardPool

job, references = pickle.load(sys.stdin.buffer)
ShardPool().write("stem", 0, 0, references, job)
"""


def test_a_process_does_not_import_the_main_module_of_the_command(make_job, tmp_path):
    """It would run this script, which has no guard, once more."""
    script = tmp_path / "command.py"
    script.write_text(DRIVER + "assert __file__ == sys.argv[0]\n")
    done = subprocess.run(
        [sys.executable, script], input=pickle.dumps(make_job()), env=process_environment(), timeout=END_S, check=False
    )
    assert done.returncode == 0
    assert (tmp_path / "out" / "stem.tar").exists()


@pytest.mark.parametrize("fault", ["wait", "loop"])
def test_processes_end_with_the_command_even_in_a_decoder_that_holds_the_lock(faults, make_job, spoil, tmp_path, fault):
    flag = tmp_path / "flag"
    spoil(make_job()[1][5], f"{fault}:{flag}")
    command = subprocess.Popen(
        [sys.executable, "-c", DRIVER], stdin=subprocess.PIPE, env={**process_environment(), **faults}
    )
    try:
        command.stdin.write(pickle.dumps(make_job()))
        command.stdin.close()
        wait_for(flag.exists, "no file was looked at")
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


def test_a_long_temporary_folder_is_no_place_for_sockets(source: Path, tmp_path: Path) -> None:
    """A path of a socket has at most 107 bytes; that of TMPDIR may be longer."""
    folder = tmp_path / ("long" * 25)
    folder.mkdir()
    config = json.dumps({"sharding": {"source": str(source)}})
    command = [sys.executable, "-m", "sharding.task", "--config-json", config, "--root", str(tmp_path / "out")]
    environment = {**os.environ, "TMPDIR": str(folder)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=100)
    assert done.returncode == 0, done.stderr
