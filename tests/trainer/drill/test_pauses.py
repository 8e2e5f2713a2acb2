"""A rank can be held at a phase, by name, number and rank; otherwise nothing happens."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

PROGRAM = """
from trainer.drill.pauses import reached
for step in range(3):
    reached("forward")
    print(step, flush=True)
    reached("backward")
"""


def start(mark: Path, at: str, rank: str = "0") -> subprocess.Popen[str]:
    environment = {**os.environ, "SHARDLINE_PAUSE_AT": at, "SHARDLINE_PAUSE_FILE": str(mark), "RANK": rank}
    return subprocess.Popen([sys.executable, "-c", PROGRAM], env=environment, stdout=subprocess.PIPE, text=True)


def held(process: subprocess.Popen[str], mark: Path) -> dict[str, object]:
    """Wait until a process is held; return its event."""
    deadline = time.monotonic() + 60
    while not mark.exists() or not mark.read_text().endswith("\n"):
        assert process.poll() is None, "it ended"
        assert time.monotonic() < deadline
        time.sleep(0.02)
    event: dict[str, object] = json.loads(mark.read_text().splitlines()[-1])
    return event


def test_a_process_is_held_at_the_nth_arrival_and_only_once(tmp_path: Path) -> None:
    mark = tmp_path / "paused"
    process = start(mark, "forward:2:0,optimizer:1")
    try:
        event = held(process, mark)
        assert event == {"event": "paused", "at": "forward:2:0", "phase": "forward", "rank": 0, "pid": process.pid}
    finally:
        process.kill()
        output = process.communicate()[0]
    assert output.split() == ["0"]
    # The next process is not held where the one before it was.
    again = start(mark, "forward:2:0,optimizer:1")
    assert again.communicate(timeout=60)[0].split() == ["0", "1", "2"]
    assert len(mark.read_text().splitlines()) == 1


def test_another_rank_and_no_request_pass(tmp_path: Path) -> None:
    for at, rank in (("forward:2:0", "1"), ("", "0")):
        process = start(tmp_path / "paused", at, rank)
        assert process.communicate(timeout=60)[0].split() == ["0", "1", "2"]
    assert not (tmp_path / "paused").exists()


def test_of_several_one_is_held_when_those_before_it_have_happened(tmp_path: Path) -> None:
    """The second place comes first in every process: the first process passes it, the second is held there."""
    mark, at = tmp_path / "paused", "forward:3:0,backward:1:0"
    for expected, printed in (("forward:3:0", ["0", "1"]), ("backward:1:0", ["0"])):
        before = mark.read_text() if mark.exists() else ""
        process = start(mark, at)
        try:
            deadline = time.monotonic() + 60
            while not mark.exists() or mark.read_text() == before:
                assert process.poll() is None, "it ended"
                assert time.monotonic() < deadline
                time.sleep(0.02)
        finally:
            process.kill()
            output = process.communicate()[0]
        assert json.loads(mark.read_text().splitlines()[-1])["at"] == expected
        assert output.split() == printed
    assert start(mark, at).communicate(timeout=60)[0].split() == ["0", "1", "2"]
