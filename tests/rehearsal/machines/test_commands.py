"""What containers find first in PATH: one Python, and installers that install nothing, however they are called."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from rehearsal.machines.commands import with_commands, write_commands

PREFIX = f"{sys.prefix}\n"


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    # No index is reached in any case.
    return with_commands({**os.environ, "PIP_NO_INDEX": "1"}, write_commands(tmp_path_factory.mktemp("com mands")))


def run(script: str, environment: dict[str, str], folder: Path) -> tuple[int, str, str]:
    done = subprocess.run(
        ["sh", "-c", script], env=environment, cwd=folder, capture_output=True, text=True, timeout=60, check=False
    )
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize(
    "command",
    [
        "pip install {}",
        "(pip3.11 --quiet install {})",
        "uv pip install --system {}",
        "uv pip install 'pydantic>=99' {} 2>&1 >/dev/null | cat >&2; exit $(test {} = pydantic; echo $?)",
        "python -u -I -m pip install {}",
        'python3 -m venv --prompt p "$PWD/v v" && . "$PWD/v v/bin/activate" && "$PWD/v v/bin/pip" install {}',
    ],
)
def test_what_is_here_counts_and_the_rest_is_refused_by_name(
    environment: dict[str, str], tmp_path: Path, command: str
) -> None:
    # Of a version that is nowhere: which one is installed is not looked at.
    assert run(command.format("pydantic", "pydantic"), environment, tmp_path) == (0, "", "")
    code, out, err = run(command.format("no-such-one", "no-such-one"), environment, tmp_path)
    assert (code, out) == (1, "") and err.startswith("no-such-one is not installed here: install it")


@pytest.mark.parametrize("command", ["pip uninstall -y pydantic", "uv sync"])
def test_nothing_is_removed_or_fetched(environment: dict[str, str], tmp_path: Path, command: str) -> None:
    code, _, err = run(command, environment, tmp_path)
    assert code == 1 and "refused in a rehearsal" in err


@pytest.mark.parametrize("name", ["python", "python3.12"])
def test_each_python_is_this_one(environment: dict[str, str], tmp_path: Path, name: str) -> None:
    assert run(f"{name} -Iu -c 'import sys; print(sys.prefix)'", environment, tmp_path) == (0, PREFIX, "")
    (tmp_path / "a b.py").write_text("import sys; print(sys.argv[1:])")
    assert run(f"{name} 'a b.py' -m pip '' 'x  y'", environment, tmp_path) == (0, "['-m', 'pip', '', 'x  y']\n", "")
    assert run(f"echo 'print(7)' | {name} -", environment, tmp_path) == (0, "7\n", "")


def test_the_script_that_kfp_writes(environment: dict[str, str], tmp_path: Path) -> None:
    """kfp/dsl/component_factory.py, with and without an environment of its own."""
    script = (
        'if ! [ -x "$(command -v pip)" ]; then\n python3 -m ensurepip || python3 -m ensurepip --user || '
        'apt-get install python3-pip\nfi\ntmp=$(mktemp -d)\npython3 -m venv "$tmp/venv" --system-site-packages\n'
        '. "$tmp/venv/bin/activate"\nPIP_DISABLE_PIP_VERSION_CHECK=1 python3 -m pip install --quiet '
        "--no-warn-script-location 'pydantic<2' \"pytest\"  &&  python3 -m pip install --quiet pydantic && echo ran"
    )
    assert run(f"python3 -m ensurepip && {script}", environment, tmp_path) == (0, "ran\n", "")
