"""Stops this machine after some minutes without activity: a systemd unit on a workstation (startup.sh).

A minute is active if, in it,

    a GPU was used by more than 5 % in any sample (nvidia-smi, every 10 s),
    a stage of Shardline, or `shardline run`, was running,
    a kernel of JupyterLab was busy, or
    somebody typed at a terminal.

An open ssh connection alone is no activity: editors keep one all night. Five minutes before the end all terminals are
warned. A check that fails (no driver, no JupyterLab) finds no activity and is logged once; the machine's maximum run
duration, which Compute Engine keeps, is the ceiling beside this agent.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import re
import subprocess
import time
import urllib.request
from collections.abc import Callable, Iterable
from pathlib import Path

SAMPLE_S = 10
SAMPLES = 6
"""Of a minute."""
WARNING_MINUTES = 5
USED_PERCENT = 5
STAGES = re.compile(r"(sharding|trainer|trainer\.profiling|trainer\.export)\.task|shardline\x00run")
Check = Callable[[], str]
"""Returns what is active, in words; empty: nothing."""


def find_used_gpu() -> str:
    """Return the first GPU that is used."""
    query = ["nvidia-smi", "--query-gpu=utilization.gpu", "--format=csv,noheader,nounits"]
    lines = subprocess.run(query, capture_output=True, text=True, timeout=30, check=True).stdout.splitlines()
    used = [(number, line) for number, line in enumerate(lines) if line.strip().isdigit() and int(line) > USED_PERCENT]
    return f"GPU {used[0][0]} is used by {used[0][1].strip()} %" if used else ""


def find_stage(processes: Path = Path("/proc")) -> str:
    """Return a running stage of Shardline."""
    for path in processes.glob("[0-9]*/cmdline"):
        # A process that has ended meanwhile.
        with contextlib.suppress(OSError):
            if match := STAGES.search(path.read_bytes().decode(errors="replace")):
                return f"{match.group().replace(chr(0), ' ')} is running"
    return ""


def find_busy_kernel(address: str) -> str:
    """Return a busy kernel of the JupyterLab at an address of this machine."""
    with urllib.request.urlopen(f"{address}/api/kernels", timeout=10) as response:
        kernels = json.load(response)
    return next((f"kernel {each['name']} is busy" for each in kernels if each["execution_state"] == "busy"), "")


def find_typing(terminals: Iterable[Path], now: float) -> str:
    """Return a terminal that was read from in the last minute: the kernel notes it as its access time."""
    for path in terminals:
        # A terminal that was closed meanwhile.
        with contextlib.suppress(OSError):
            if now - path.stat().st_atime < SAMPLE_S * SAMPLES:
                return f"somebody types at {path}"
    return ""


def watch(
    checks: dict[str, Check],
    minutes: int,
    *,
    sleep: Callable[[float], object] = time.sleep,
    warn: Callable[[str], object],
    stop: Callable[[], object],
) -> None:
    """Check every 10 s until there was no activity for some minutes, then stop the machine.

    Args:
        checks: What may be active, by name.
        minutes: Without activity.
        sleep: Waits some seconds.
        warn: Tells everybody at a terminal.
        stop: Stops the machine.
    """
    idle, failed = 0, set[str]()
    while idle < minutes:
        activity = ""
        for _ in range(SAMPLES):
            for name, check in checks.items():
                try:
                    activity = activity or check()
                # Whatever it is, the other checks go on: an agent that ends would never stop the machine.
                except Exception as error:  # noqa: BLE001
                    if name not in failed:
                        print(f"{name}: not checked: {error}", flush=True)
                        failed.add(name)
            sleep(SAMPLE_S)
        idle = 0 if activity else idle + 1
        print(activity or f"idle for {idle} of {minutes} minutes", flush=True)
        if idle == minutes - WARNING_MINUTES:
            warn(f"This machine is idle and stops in {WARNING_MINUTES} minutes. A key pressed in a terminal keeps it.")
    stop()


def main() -> None:
    """Watch this machine, and switch it off."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=int, default=30)
    parser.add_argument("--jupyter", default="http://127.0.0.1:8080", help="address of JupyterLab")
    options = parser.parse_args()
    watch(
        {
            "GPU": find_used_gpu,
            "stages": find_stage,
            "JupyterLab": lambda: find_busy_kernel(options.jupyter),
            "terminals": lambda: find_typing(Path("/dev/pts").glob("[0-9]*"), time.time()),
        },
        options.minutes,
        warn=lambda message: subprocess.run(["wall", message], check=False),
        stop=lambda: subprocess.run(["systemctl", "poweroff"], check=True),
    )


if __name__ == "__main__":
    main()
