"""What every process sets."""

import os
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="needs pidfd (Linux)")
def test_end_with_a_process_that_is_not_the_parent() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as other:
        code = (
            "import time; from contracts.process import end_with; "
            f"end_with({other.pid}); print(1, flush=True); time.sleep(60)"
        )
        with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as watching:
            assert watching.stdout is not None
            watching.stdout.readline()
            assert watching.poll() is None
            other.kill()
            other.wait()
            assert watching.wait(timeout=20) == os.EX_TEMPFAIL


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs prctl (Linux)")
def test_a_child_ends_with_its_parent() -> None:
    code = (
        "import time; from contracts.process import end_with_parent as end; end(); print(1, flush=True); time.sleep(60)"
    )
    parent = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {code!r}])"
    with subprocess.Popen([sys.executable, "-c", parent], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        process.kill()
        # The pipe ends once the child has ended too.
        assert process.communicate(timeout=20)[0] == b""


def test_a_stage_reports_its_use_to_nobody() -> None:
    # What a library of ours must find when it is loaded, in the process of a stage.
    tell = "print(os.environ['ORT_DISABLE_TELEMETRY']) or 0"
    code = f"import os\nfrom contracts.process import run_process\nrun_process(lambda: {tell})"
    environment = {name: value for name, value in os.environ.items() if name != "ORT_DISABLE_TELEMETRY"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=True)
    assert done.stdout == "1\n"


def test_processes_start_where_the_temporary_folder_has_a_long_path(tmp_path: Path) -> None:
    folder = tmp_path / ("long" * 30)
    folder.mkdir()
    code = (
        "from multiprocessing import forkserver; from contracts.process import use_short_socket_folder as short; "
        "short(); forkserver.ensure_running()"
    )
    done = subprocess.run([sys.executable, "-c", code], env={**os.environ, "TMPDIR": str(folder)}, check=False)
    assert done.returncode == 0
