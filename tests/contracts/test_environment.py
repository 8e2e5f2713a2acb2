"""Machines as they are: no home, no name, proxies, a stream that takes ASCII alone."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from contracts.environment import spare_loopback

# What libraries and our own modules ask; a user without a line in /etc/passwd is played.
ASK = """
import getpass, os, pwd, sys

def unknown(uid):
    raise KeyError(f"getpwuid(): uid not found: {uid}")

pwd.getpwuid = unknown
from contracts.process import run_process
from contracts.environment import user_cache

def main():
    folder = user_cache("code")
    folder.mkdir(parents=True, exist_ok=True)
    print(folder, getpass.getuser(), os.path.expanduser("~"), sep="|")
    print("52.6\\xa0s \\u2502 caf\\xe9")
    return 0

run_process(main)
"""


def ask(tmp_path: Path, **variables: str) -> list[str]:
    environment = {"PATH": os.environ["PATH"], "TMPDIR": str(tmp_path), **variables}
    done = subprocess.run(
        [sys.executable, "-c", ASK], env=environment, cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_a_nameless_user_without_a_home_on_an_ascii_terminal(tmp_path: Path) -> None:
    place = tmp_path / f"shardline-home-{os.getuid()}"
    told, shown = ask(tmp_path, PYTHONIOENCODING="ascii:strict")
    assert told == f"{place}/.cache/shardline/code|user-{os.getuid()}|{place}"
    assert place.stat().st_mode & 0o777 == 0o700
    assert shown == "52.6 s \\u2502 caf\\xe9"
    # A folder that others may write into is not taken: own code is imported from there.
    place.chmod(0o777)
    other = ask(tmp_path, PYTHONUTF8="1")[0]
    assert other.startswith(f"{tmp_path}/shardline-home-") and not other.startswith(f"{place}/")


@pytest.mark.parametrize(
    ("given", "spared"),
    [
        ({}, None),
        ({"http_proxy": "http://p:1"}, "localhost,127.0.0.1,::1"),
        ({"HTTPS_PROXY": "http://p:1", "NO_PROXY": " .a.com, localhost"}, ".a.com,localhost,127.0.0.1,::1"),
    ],
)
def test_no_proxy_is_asked_for_this_machine(given: dict[str, str], spared: str | None) -> None:
    environment = dict(given)
    spare_loopback(environment)
    assert environment == (given if spared is None else {**given, "no_proxy": spared, "NO_PROXY": spared})
    everything = {"http_proxy": "http://p:1", "no_proxy": "*"}
    spare_loopback(everything)
    assert everything["no_proxy"] == "*"
