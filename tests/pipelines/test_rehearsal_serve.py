"""`shardline rehearse --serve`: what it prints, whom it serves, and how it ends."""

import os
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]
# A program of its own that uses Google's client as it is.
PROGRAM = """
from google.cloud import storage
bucket = storage.Client().bucket("rehearsal-line")
bucket.blob("a").upload_from_string("kept")
print(bucket.blob("a").download_as_text())
"""


def serve(folder: Path, *arguments: str) -> subprocess.Popen[str]:
    """Start the command in a group of its own, with `folder` for its temporary files."""
    return subprocess.Popen(
        [sys.executable, "-m", "pipelines.cli", "rehearse", "--serve", *arguments],
        cwd=REPOSITORY,
        env={**os.environ, "TMPDIR": str(folder)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        process_group=0,
    )


def call(variables: dict[str, str]) -> subprocess.CompletedProcess[str]:
    environment = {"PATH": os.environ["PATH"], **variables}
    return subprocess.run(
        [sys.executable, "-W", "ignore", "-c", PROGRAM], env=environment, capture_output=True, text=True, timeout=120
    )


def test_a_program_uses_it_until_ctrl_c_and_nothing_is_left(tmp_path: Path) -> None:
    server = serve(tmp_path)
    assert server.stdout is not None and server.stderr is not None
    try:
        assert server.stderr.readline() == (
            "serving project rehearsal-project, us-central1, gs://rehearsal-line; Ctrl-C ends it\n"
        )
        os.set_blocking(server.stdout.fileno(), False)
        lines = server.stdout.read().splitlines()
        variables = dict(shlex.split(line.removeprefix("export "))[0].split("=", 1) for line in lines)
        assert all(line.startswith("export ") for line in lines)
        done = call(variables)
        assert (done.stdout, done.returncode) == ("kept\n", 0), done.stderr
    finally:
        # As a terminal does it: to the whole group.
        os.killpg(server.pid, signal.SIGINT)
        _, errors = server.communicate(timeout=60)
    assert server.returncode == 0 and "served " in errors and "Traceback" not in errors
    with pytest.raises(ProcessLookupError):
        os.killpg(server.pid, 0)
    assert [path for path in tmp_path.rglob("*") if not path.name.startswith("shardline-rehearsals-")] == []
