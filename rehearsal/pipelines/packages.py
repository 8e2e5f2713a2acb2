"""`pip install` in the commands of lightweight components: never executed; what is installed here counts as present.

kfp writes such lines into a shell's script before the component's own program (kfp/dsl/component_factory.py).
"""

from __future__ import annotations

import importlib.metadata
import re
import shlex
from collections.abc import Iterator, Sequence

from packaging.requirements import InvalidRequirement, Requirement

# Up to what ends a command of a shell; a quoted word may hold the same characters.
_INSTALL = re.compile(r"""(?:python3? -m )?pip3? install((?:(?:[ \t]|\\\n)+(?:'[^']*'|"[^"]*"|[^\s'"&|;\\]+))+)""")
# What kfp writes around them: pip itself, and an environment of their own, in which nothing of this one is found.
_AROUND = re.compile(
    r"python3? -m ensurepip(?: --user)?|apt-get install python3-pip"
    r'|python3 -m venv "\$tmp/venv" --system-site-packages\n\. "\$tmp/venv/bin/activate"'
)
# What follows is a script, not the text of a program that speaks of pip.
_SCRIPT_FLAG = re.compile(r"-[a-z]*c")
_WITH_VALUE = ("--index-url", "--extra-index-url", "--trusted-host", "--find-links", "-i", "-f", "-t", "--target")


def skip_installs(words: Sequence[str]) -> list[str]:
    """Return a command in which a line that installs packages does nothing."""
    if _INSTALL.fullmatch(shlex.join(words)):
        return ["true"]
    scripts = set(_scripts(words))
    return [
        _AROUND.sub("true", _INSTALL.sub("true", word)) if index in scripts else word
        for index, word in enumerate(words)
    ]


def find_absent(words: Sequence[str]) -> list[str]:
    """Return the packages that a command installs and that are not installed here, as it names them."""
    texts = [shlex.join(words)] if _INSTALL.fullmatch(shlex.join(words)) else [words[i] for i in _scripts(words)]
    return [package for text in texts for match in _INSTALL.finditer(text) for package in _absent(match.group(1))]


def _scripts(words: Sequence[str]) -> list[int]:
    """Return where a command has a shell's script: after `sh -c`, and again after a shell within it."""
    places = range(2, len(words))
    return [i for i in places if words[i - 2].endswith("sh") and _SCRIPT_FLAG.fullmatch(words[i - 1])]


def _absent(arguments: str) -> Iterator[str]:
    words = iter(shlex.split(arguments))
    for word in words:
        if word in ("-r", "--requirement", "-e", "--editable"):
            yield f"{word} {next(words, '')}"
        elif word in _WITH_VALUE:
            next(words, None)
        elif not word.startswith("-") and not _is_installed(word):
            yield word


def _is_installed(text: str) -> bool:
    try:
        wanted = Requirement(text)
    except InvalidRequirement:
        # A path, or a URL without a name.
        return False
    if wanted.marker is not None and not wanted.marker.evaluate():
        return True
    try:
        importlib.metadata.distribution(wanted.name)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True
