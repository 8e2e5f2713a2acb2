"""Containers as processes: what they get, what they print, and that nothing of them stays."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import pytest

import rehearsal
from rehearsal.guard import PYTHON_GUARD
from rehearsal.machines import processes
from rehearsal.machines.processes import MARK_VARIABLE, ProcessTree, clean_environment
from tests.rehearsal.world import LIMIT_S, find_marked, wait_until

PROJECT = str(Path(rehearsal.__file__).parents[1])
# A child in a session of its own, deaf to signals, that says when it is up; then what the test says.
FAMILY = """
import subprocess, sys, time
script = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); time.sleep(600)"
child = subprocess.Popen([sys.executable, "-c", script], start_new_session=True, stdout=subprocess.PIPE, text=True)
child.stdout.readline()
print("both up", flush=True)
if sys.argv[1] == "stay":
    time.sleep(600)
sys.exit(3)
"""


def run(folder: Path, code: str, *args: str, **more: str) -> tuple[ProcessTree, list[str]]:
    lines: list[str] = []
    environment, core = clean_environment(more), min(os.sched_getaffinity(0))
    return ProcessTree(
        ["python3", "-c", code, *args], environment=environment, folder=folder, on_line=lines.append, cores=[core]
    ), lines


def mark_of(tree: ProcessTree) -> str:
    return tree._environment[MARK_VARIABLE]


@pytest.mark.parametrize("how", ["end", "kill", "stop"])
def test_nothing_stays(tmp_path: Path, how: str) -> None:
    tree, lines = run(tmp_path, FAMILY, "stay" if how != "end" else "go")
    wait_until(lambda: "both up" in lines)
    if how == "kill":
        tree.kill()
        assert tree.returncode == -signal.SIGKILL
    elif how == "stop":
        # As process 1 of a container, it has no handler for SIGTERM.
        assert tree.stop(0.2) == -signal.SIGKILL
    else:
        assert tree.wait(LIMIT_S) == 3
    assert find_marked(mark_of(tree)) == []


def test_a_process_with_a_handler_hears_sigterm_and_has_its_cores_and_this_interpreter(tmp_path: Path) -> None:
    code = "import os, signal, sys, time; signal.signal(15, lambda *_: sys.exit(9)); "
    code += "print(sys.prefix, *os.sched_getaffinity(0)); time.sleep(600)"
    tree, lines = run(tmp_path, code)
    wait_until(lambda: lines)
    assert tree.stop(LIMIT_S) == 9
    assert lines == [f"{sys.prefix} {min(os.sched_getaffinity(0))}"]


def test_the_environment_is_clean(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLUSTER_SPEC", "of somebody else")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "installed" / "torch-2.13.0.dist-info").mkdir(parents=True)
    (tmp_path / "modules").mkdir()
    # A rehearsal leads its own process through the guard too; the user's own modules are in no image.
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(PYTHON_GUARD), "modules", "installed"]))
    given = clean_environment({"A": "1", "PYTHONPATH": os.pathsep.join([str(PYTHON_GUARD), "modules"])}, {"A": "2"})
    assert "CLUSTER_SPEC" not in given
    assert given["A"] == "2"
    assert given["OMP_NUM_THREADS"].isdecimal()
    assert given["PYTHONPATH"].split(os.pathsep) == [str(PYTHON_GUARD), PROJECT, str(tmp_path / "installed")]


def test_a_process_that_cleans_its_environment_ends_too(tmp_path: Path) -> None:
    code = "import subprocess; print(subprocess.Popen(['env', '-i', 'sleep', '600']).pid, flush=True)"
    tree, lines = run(tmp_path, code)
    assert tree.wait(LIMIT_S) == 0
    # It may be a zombie, which has no command line, until its new parent looks.
    cmdline = Path("/proc", lines[0], "cmdline")
    assert not cmdline.exists() or not cmdline.read_bytes()


def test_what_does_not_end_is_said_and_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a process that waits in the kernel for a dead disk; broken, `kill` never returns."""
    tree, lines = run(tmp_path, FAMILY, "stay")
    wait_until(lambda: "both up" in lines)
    pids = find_marked(mark_of(tree))
    with monkeypatch.context() as patched:
        patched.setattr(os, "kill", lambda *_: None)
        patched.setattr(processes, "KILL_LIMIT_S", 0.2)
        patched.setattr(ProcessTree, "send", lambda *_: None)
        tree.kill()
    assert tree.returncode == -signal.SIGKILL
    assert any(line.startswith("processes ") and "do not end after SIGKILL" in line for line in lines), lines
    assert processes.end_processes(lambda pid: pid in pids) == []
