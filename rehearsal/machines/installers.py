"""`pip`, `uv pip`, `ensurepip` and `venv` in containers: nothing is installed, what this machine has counts.

python -m rehearsal.machines.installers FOLDER pip|uv|ensurepip|venv ARGUMENTS      FOLDER: that of commands.py

What is not installed ends the command with 1, by its name. Versions are not looked at: images are not opened.
"""

from __future__ import annotations

import importlib.metadata
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from packaging.requirements import InvalidRequirement, Requirement

# Options of `pip` and `pip install`, and of `uv pip install`, that take the next word: https://pip.pypa.io/en/stable/cli/pip_install,
# https://docs.astral.sh/uv/reference/cli/#uv-pip-install. Of those that name files nothing is known here.
_OF_FILES = ("-r", "--requirement", "--requirements", "-e", "--editable", "--group")
_WITH_VALUE = (
    *("-c", "--constraint", "--constraints", "-t", "--target", "--platform", "--python-version", "--implementation"),
    *("--abi", "--root", "--prefix", "--src", "--upgrade-strategy", "-C", "--config-settings", "--config-setting"),
    *("--global-option", "--no-binary", "--only-binary", "--progress-bar", "--root-user-action", "--report"),
    *("-i", "--index-url", "--extra-index-url", "-f", "--find-links", "--index", "--default-index"),
    *("--index-strategy", "--build-constraint", "-b", "--python", "-p", "--log", "--proxy", "--retries", "--timeout"),
    *("--exists-action", "--trusted-host", "--cert", "--client-cert", "--cache-dir", "--use-feature"),
    *("--use-deprecated", "--keyring-provider", "--resolution", "--prerelease", "--link-mode", "--directory"),
)
_ONLY_READ = ("", "check", "debug", "freeze", "help", "inspect", "list", "show")


def read_pip(arguments: Sequence[str]) -> tuple[str, list[str]]:
    """Return the command that pip is given ("": none), and the other words that are no options, files as `-r FILE`."""
    words, found = iter(arguments), list[str]()
    files = []
    for word in words:
        if word in _OF_FILES:
            files.append(f"{word} {next(words, '')}")
        elif word.startswith(tuple(f"{option}=" for option in _OF_FILES if option.startswith("--"))):
            files.append(word)
        elif word in _WITH_VALUE:
            next(words, None)
        elif not word.startswith("-"):
            found.append(word)
    return (found[0] if found else ""), [*found[1:], *files]


def find_absent(arguments: Sequence[str]) -> list[str]:
    """Return the packages that `pip ARGUMENTS` installs and that are not installed here, as it names them."""
    command, wanted = read_pip(arguments)
    return [text for text in wanted if not _is_installed(text)] if command == "install" else []


def _is_installed(text: str) -> bool:
    try:
        wanted = Requirement(text)
    except InvalidRequirement:
        # A file, a path, or a URL without a name.
        return False
    if wanted.marker is not None and not wanted.marker.evaluate():
        return True
    try:
        importlib.metadata.distribution(wanted.name)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


def _folders(arguments: Sequence[str]) -> Iterator[Path]:
    words = iter(arguments)
    for word in words:
        if word in ("--prompt", "--python", "-p"):
            next(words, None)
        elif not word.startswith("-"):
            yield Path(word)


def _make_environment(commands: Path, folder: Path) -> None:
    """Make a virtual environment in which everything is that this one has: `activate` does nothing."""
    programs = folder / "bin"
    programs.mkdir(parents=True, exist_ok=True)
    (programs / "activate").touch()
    for program in commands.iterdir():
        if not (programs / program.name).exists():
            (programs / program.name).symlink_to(program)


def main(words: Sequence[str]) -> int:
    """Run a command; return its exit code."""
    commands, name, *arguments = words
    if name == "uv":
        name, *arguments = arguments or [""]
    if name == "ensurepip":
        return 0
    if name == "venv":
        for folder in list(_folders(arguments)) or [Path(".venv")]:
            _make_environment(Path(commands), folder)
        return 0
    command, _ = read_pip(arguments)
    if name == "pip" and command == "install":
        absent = find_absent(arguments)
        for package in absent:
            sys.stderr.write(f"{package} is not installed here: install it, the rehearsal never does\n")
        return 1 if absent else 0
    if name == "pip" and command in _ONLY_READ:
        os.execv(sys.executable, [sys.executable, "-m", "pip", *arguments])
    sys.stderr.write(f"{name} {command}: refused in a rehearsal, which installs and removes nothing\n")
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
