"""The idle agent of a workstation, its clock run ahead: what keeps the machine, the warning, and the stop.

nvidia-smi is a script that prints what the driver's would: it does not prove what a real GPU shows.
"""

from __future__ import annotations

import importlib.util
import json
import os
import pty
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from types import ModuleType

import pytest

AGENT = Path(__file__).parents[2] / "deploy/terraform/workstation/idle_agent.py"


@pytest.fixture(scope="module")
def agent() -> ModuleType:
    spec = importlib.util.spec_from_file_location("idle_agent", AGENT)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def minutes_until_stop(agent: ModuleType, check: Callable[[], str]) -> tuple[float, list[float]]:
    """Return the minute at which the machine is stopped, and those of the warnings."""
    seconds, warnings, stops = [0.0], list[float](), list[float]()

    def sleep(duration_s: float) -> None:
        seconds[0] += duration_s
        # Of minute 40 on nothing is active, so that each case ends.
        assert seconds[0] < 6000

    agent.watch(
        {"check": lambda: check() if seconds[0] < 40 * 60 else ""},
        30,
        sleep=sleep,
        warn=lambda message: warnings.append(seconds[0] / 60),
        stop=lambda: stops.append(seconds[0] / 60),
    )
    return stops[0], warnings


@pytest.fixture
def gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Let nvidia-smi print some lines."""

    def show(lines: str) -> None:
        script = tmp_path / "nvidia-smi"
        script.write_text(f"#!/bin/sh\nprintf '{lines}'\n")
        script.chmod(0o755)
        monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")

    return show


def test_a_check_that_fails_finds_no_activity(agent: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    def fail() -> str:
        raise OSError("no driver")

    assert minutes_until_stop(agent, fail) == (30, [25])
    assert capsys.readouterr().out.count("not checked: no driver") == 1


def test_a_used_gpu_keeps_the_machine(agent: ModuleType, gpu: Callable[[str], None]) -> None:
    gpu("0\\n5\\n")
    assert agent.find_used_gpu() == ""
    gpu("[N/A]\\n6\\n")
    assert agent.find_used_gpu() == "GPU 1 is used by 6 %"
    assert minutes_until_stop(agent, lambda: "GPU 1 is used by 6 %") == (70, [65])


def test_one_sample_in_29_minutes_starts_the_count_anew(agent: ModuleType) -> None:
    samples = iter(range(10_000))
    assert minutes_until_stop(agent, lambda: "GPU 0" if next(samples) == 29 * 6 - 1 else "") == (59, [25, 54])


def test_a_stage_keeps_the_machine(agent: ModuleType, tmp_path: Path) -> None:
    command = [sys.executable, "-c", "import time; time.sleep(60)", "-m", "trainer.profiling.task"]
    stage = subprocess.Popen(command)
    try:
        # Other processes of this machine may be stages, too.
        (tmp_path / "1").symlink_to("/proc/self")
        assert agent.find_stage(tmp_path) == ""
        (tmp_path / "2").symlink_to(f"/proc/{stage.pid}")
        while not (tmp_path / "2/cmdline").read_bytes():
            pass
        assert agent.find_stage(tmp_path) == "trainer.profiling.task is running"
    finally:
        stage.kill()
        stage.wait()


@pytest.fixture
def jupyter() -> Iterator[tuple[str, list[str]]]:
    """Address of a server that answers as Jupyter's REST API, and the states of its kernels."""
    states = ["idle"]

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            content = json.dumps([{"name": "python3", "execution_state": state} for state in states]).encode()
            self.send_response(200 if self.path == "/api/kernels" else 404)
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *arguments: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}", states
    server.shutdown()
    server.server_close()


def test_a_busy_kernel_keeps_the_machine(agent: ModuleType, jupyter: tuple[str, list[str]]) -> None:
    address, states = jupyter
    assert agent.find_busy_kernel(address) == ""
    states.append("busy")
    assert agent.find_busy_kernel(address) == "kernel python3 is busy"


def test_typing_keeps_the_machine_and_an_open_terminal_does_not(agent: ModuleType) -> None:
    keyboard, terminal = pty.openpty()
    try:
        path, now = Path(os.ttyname(terminal)), time.time()
        os.utime(path, (now - 3600, now - 3600))
        assert agent.find_typing([path, Path("/dev/pts/none")], now) == ""
        os.write(keyboard, b"x\n")
        os.read(terminal, 10)
        assert agent.find_typing([path], time.time()) == f"somebody types at {path}"
    finally:
        os.close(keyboard)
        os.close(terminal)
