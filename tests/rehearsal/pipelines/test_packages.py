"""`pip install` in a component's command: found, named where it is not here, and never executed."""

from __future__ import annotations

import subprocess

import pytest

from rehearsal.pipelines.packages import find_absent, skip_installs


@pytest.mark.parametrize(
    ("line", "absent"),
    [
        ("python3 -m pip install 'pydantic>=1' pytest && run", []),
        ("pip install --quiet --no-warn-script-location 'kfp==2.14.6' '--no-deps' && run", []),
        ("pip install 'typing-extensions>=3.7.4,<5; python_version<\"3.9\"' && run", []),
        # What is installed counts as present, whatever version the line asks for.
        ("pip3 install pydantic==0.1", []),
        ("python -m pip install 'no-such-one[extra]>=2' no-such-two; run", ["no-such-one[extra]>=2", "no-such-two"]),
        ("pip install 'no-such-one; python_version<\"3\"'", []),
        ("pip install --index-url https://a/simple --trusted-host a pydantic no-such-one", ["no-such-one"]),
        ("pip install 'kfp @ git+https://h/kfp.git&subdirectory=sdk' ./folder", ["./folder"]),
        ("pip install -r requirements.txt && run", ["-r requirements.txt"]),
        ("pip install 'a' \\\n && run", ["a"]),
        ("echo pip && run", []),
    ],
)
def test_what_is_absent_is_named(line: str, absent: list[str]) -> None:
    assert find_absent(["sh", "-c", line]) == absent


def test_what_only_speaks_of_pip_is_left_alone() -> None:
    words = ["sh", "-ec", "run", "# pip install no-such-one\nprint('pip install x')"]
    assert find_absent(words) == [] and skip_installs(words) == words


def test_a_command_that_is_nothing_else() -> None:
    assert find_absent(["pip", "install", "no-such-one>=2"]) == ["no-such-one>=2"]
    assert skip_installs(["python3", "-m", "pip", "install", "pydantic"]) == ["true"]


def test_the_rest_of_a_script_runs() -> None:
    script = (
        'if ! [ -x "$(command -v no-such-pip)" ]; then\n python3 -m ensurepip || python3 -m ensurepip --user || '
        "apt-get install python3-pip\nfi\nPIP_DISABLE_PIP_VERSION_CHECK=1 python3 -m pip install --quiet 'x<2' \"y\"  "
        '&&  python3 -m pip install --quiet z && "$0" "$@"'
    )
    words = skip_installs(["sh", "-c", script, "echo", "ran"])
    assert not any(text in words[2] for text in ("pip install", "ensurepip", "apt-get"))
    assert subprocess.run(words, check=True, capture_output=True, text=True).stdout == "ran\n"
