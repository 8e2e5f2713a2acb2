"""plan, compile, submit, status and logs in processes from which what only Linux, or only Unix, has was taken away.

Each process and its children read the sitecustomize below: no fcntl and no other module of Unix alone, no prctl, no
/proc and /sys, none of Linux's own system calls in `os`, and a platform that is called otherwise.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests.pipelines.vertex.conftest import Cloud
from tests.pipelines.vertex.test_commands import CONFIG

TAKEN_AWAY = """
import os, sys, sysconfig

class Absent:
    names = {"fcntl", "resource", "termios", "pwd", "grp", "pty", "tty", "syslog", "crypt", "spwd"}

    def find_spec(self, name, path=None, target=None):
        if name in self.names:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

for name in Absent.names:
    sys.modules.pop(name, None)
sys.meta_path.insert(0, Absent())
for name in ("sched_getaffinity", "sched_setaffinity", "pidfd_open", "memfd_create", "eventfd", "unshare", "setns",
             "copy_file_range", "posix_fadvise", "posix_fallocate", "splice", "prlimit"):
    if hasattr(os, name):
        delattr(os, name)
sysconfig.get_config_vars()  # named after the platform that this Python was built for
sys.platform = "freebsd14"

def watch(event, arguments):
    if event in ("open", "os.listdir", "os.scandir") and str(arguments[0]).startswith(("/proc/", "/sys/")):
        raise FileNotFoundError(2, "No such file or directory", arguments[0])
    if event == "ctypes.dlsym" and arguments[1] == "prctl":
        raise AttributeError("undefined symbol: prctl")

sys.addaudithook(watch)
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "python").mkdir()
    (tmp_path / "python" / "sitecustomize.py").write_text(TAKEN_AWAY)
    (tmp_path / "line.yaml").write_text(yaml.safe_dump(CONFIG))
    return tmp_path


def call(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    places = [str(folder / "python"), os.environ.get("PYTHONPATH", "")]
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, places))},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_stages_are_refused_where_there_are_no_locks(folder: Path) -> None:
    done = call(folder, "-c", f"from contracts.output import Lock; Lock('file://{folder}/output')")
    assert "ConfigError: stages cannot run on freebsd14: it has no flock" in done.stderr


@pytest.mark.line
def test_commands_of_a_submitter_need_nothing_of_linux(cloud: Cloud, folder: Path) -> None:
    def shardline(*arguments: str, code: int = 0) -> str:
        done = call(folder, "-m", "pipelines.cli", *arguments)
        assert done.returncode == code and "Traceback" not in done.stderr, done.stdout + done.stderr
        return done.stdout

    assert "line" in shardline("plan", "line.yaml")
    shardline("compile", "line.yaml", "--to", "line.pipeline.yaml")
    assert yaml.safe_load((folder / "line.pipeline.yaml").read_text())
    request = json.loads(shardline("submit", "line.yaml", "--dry-run"))
    assert request
    shardline("submit", "line.yaml", "--run-id=one", "--wait")
    assert "run one: succeeded" in shardline("status", "one", "--config", "line.yaml")
    shardline("logs", "one", "--config", "line.yaml")
