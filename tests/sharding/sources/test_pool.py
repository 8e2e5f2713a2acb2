"""Processes that list end with the command, and say so when they die."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from contracts.errors import TryAgain
from sharding.sources.pool import open_pool

HOLD = """
import sys, time
from sharding.sources.pool import open_pool
if __name__ == "__main__":
    import os
    with open_pool(2) as pool:
        first = [pool.submit(os.getpid) for _ in range(20)]
        print(*{one.result() for one in first}, flush=True)
        pool.submit(time.sleep, 600)
        time.sleep(600)
"""


def test_one_that_dies_is_no_fault_of_ours():
    with pytest.raises(TryAgain, match="a process that lists the source died"), open_pool(2) as pool:
        pool.submit(os._exit, 9).result()


def test_they_end_with_a_command_that_is_killed(tmp_path):
    script = tmp_path / "hold.py"
    script.write_text(HOLD)
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])}
    with subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE, text=True, env=environment) as command:
        assert command.stdout is not None
        pids = [int(pid) for pid in command.stdout.readline().split()]
        assert pids and command.pid not in pids
        command.send_signal(signal.SIGKILL)
    end = time.monotonic() + 20
    while any(is_running(pid) for pid in pids):
        assert time.monotonic() < end, "a process survived its command"
        time.sleep(0.05)


def is_running(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False
