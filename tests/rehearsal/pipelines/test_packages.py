"""`pip install` in a component's command, named before a run where the package is not here."""

from __future__ import annotations

import pytest

from rehearsal.pipelines.packages import find_absent


@pytest.mark.parametrize(
    ("line", "absent"),
    [
        ("python3 -m pip install 'pydantic>=1' pytest && run", []),
        ("pip install --quiet --no-warn-script-location 'kfp==2.14.6' '--no-deps' && run", []),
        ("pip install 'typing-extensions>=3.7.4,<5; python_version<\"3.9\"' && run", []),
        ("python -m pip install 'no-such-one[extra]>=2' no-such-two; run", ["no-such-one[extra]>=2", "no-such-two"]),
        ("pip install --index-url https://a/simple --trusted-host a pydantic no-such-one", ["no-such-one"]),
        ("pip install 'kfp @ git+https://h/kfp.git&subdirectory=sdk' ./folder", ["./folder"]),
        ("pip install -r requirements.txt && run", ["-r requirements.txt"]),
        # What stands around it is none of its words.
        ("pip install pydantic no-such-one >/dev/null 2>&1", ["no-such-one"]),
        ("if ! pip install no-such-one; then exit 1; fi", ["no-such-one"]),
        ("bash -c 'pip install no-such-one'", ["no-such-one"]),
        # However pip is called.
        ("pip --proxy http://p --no-input install -t there no-such-one", ["no-such-one"]),
        ("uv pip install --system no-such-one", ["no-such-one"]),
        ("python -u -I -m pip install no-such-one", ["no-such-one"]),
        ("pip install -e .", ["-e ."]),
        # What only speaks of it.
        ("echo pip install no-such-one", []),
        ("true # pip install it's gone\npip install no-such-one", ["no-such-one"]),
        ("pip uninstall no-such-one && pip download no-such-one", []),
        ("cat <<'END'\nit's here\nEND", []),
    ],
)
def test_what_is_absent_is_named(line: str, absent: list[str]) -> None:
    assert find_absent(["sh", "-c", line]) == absent


def test_what_only_speaks_of_pip_is_left_alone() -> None:
    assert find_absent(["sh", "-ec", "run", "# pip install no-such-one\nprint('pip install x')"]) == []


def test_a_command_that_is_nothing_else() -> None:
    assert find_absent(["pip", "install", "no-such-one>=2"]) == ["no-such-one>=2"]
    assert find_absent(["python3", "-m", "pip", "install", "pydantic"]) == []
