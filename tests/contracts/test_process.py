"""What every process sets."""

import os
import subprocess
import sys


def test_a_stage_reports_its_use_to_nobody() -> None:
    # What a library of ours must find when it is loaded, in the process of a stage.
    tell = "print(os.environ['ORT_DISABLE_TELEMETRY']) or 0"
    code = f"import os\nfrom contracts.process import run_process\nrun_process(lambda: {tell})"
    environment = {name: value for name, value in os.environ.items() if name != "ORT_DISABLE_TELEMETRY"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=True)
    assert done.stdout == "1\n"
