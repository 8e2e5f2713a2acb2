"""What every process sets."""

import os
import subprocess
import sys

import pytest


@pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="needs pidfd (Linux)")
def test_end_with_a_process_that_is_not_the_parent():
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as other:
        code = (
            "import time; from contracts.process import end_with; "
            f"end_with({other.pid}); print(1, flush=True); time.sleep(60)"
        )
        with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as watching:
            watching.stdout.readline()
            assert watching.poll() is None
            other.kill()
            other.wait()
            assert watching.wait(timeout=20) == os.EX_TEMPFAIL
        # A process that has already gone is noticed at once.
        assert subprocess.run([sys.executable, "-c", code], timeout=20, check=False).returncode == os.EX_TEMPFAIL
