"""plan, compile, submit, status and logs in a process from which what only Linux, or only Unix, has was taken away.

The process and its children read the sitecustomize below: no fcntl and no other module of Unix alone, no prctl, no
/proc and /sys, none of Linux's own system calls in `os`, and a platform that is called otherwise.
"""

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


COMMANDS = (
    "plan line.yaml",
    "compile line.yaml --to line.pipeline.yaml",
    "submit line.yaml --dry-run",
    "submit line.yaml --run-id=one --wait",
    "status one --config line.yaml",
    "logs one --config line.yaml",
)
ONE_AFTER_THE_OTHER = """
import sys
from typer.testing import CliRunner
from pipelines.cli import app

for words in sys.argv[1:]:
    done = CliRunner().invoke(app, words.split())
    assert done.exit_code == 0, done.output
    print(done.output)
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
        timeout=300,
        check=False,
    )


def test_stages_are_refused_where_there_are_no_locks(folder: Path) -> None:
    done = call(folder, "-c", f"from contracts.output import Lock; Lock('file://{folder}/output')")
    assert "ConfigError: stages cannot run on freebsd14: it has no flock" in done.stderr


@pytest.mark.line
def test_commands_of_a_submitter_need_nothing_of_linux(cloud: Cloud, folder: Path) -> None:
    done = call(folder, "-c", ONE_AFTER_THE_OTHER, *COMMANDS)
    assert done.returncode == 0 and "Traceback" not in done.stderr, done.stdout + done.stderr
    assert yaml.safe_load((folder / "line.pipeline.yaml").read_text())
    assert "run one: succeeded" in done.stdout
