"""`pip install` in the commands of components, found before a run: what is not installed here is named.

What is found is a courtesy: nothing is installed in any case (rehearsal/machines/installers.py), and a command that is
put together while it runs fails there. kfp writes such lines into a shell's script before the component's own program
(kfp/dsl/component_factory.py).
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence

from rehearsal.machines import installers

_PIP = re.compile(r"pip3?(\.\d+)?")
_PYTHON = re.compile(r"python[\d.]*")
# What follows is a script, not the text of a program that speaks of pip.
_SCRIPT_FLAG = re.compile(r"-[a-z]*c")
# Between commands, and around words of a command: https://pubs.opengroup.org/onlinepubs/9699919799/utilities/V3_chap02.html
_OPERATORS = "();<>|&\n"
_BEFORE_A_COMMAND = {"!", "{", "if", "then", "elif", "else", "while", "until", "do", "exec", "time", "command", "env"}
# One in a quoted word ends the search early.
_COMMENT = re.compile(r"(?m)(?:^|(?<=\s))#.*$")
_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=.*", re.DOTALL)


def find_absent(words: Sequence[str]) -> list[str]:
    """Return the packages that a command installs and that are not installed here, as it names them."""
    scripts = [words[i] for i in range(2, len(words)) if _is_script(words[i - 2 : i])]
    if scripts:
        return [package for text in scripts for command in _commands(text) for package in find_absent(command)]
    return installers.find_absent(_arguments_of_pip(words))


def _is_script(before: Sequence[str]) -> bool:
    """Return whether the two words before one say that it is a shell's script."""
    return before[0].endswith("sh") and _SCRIPT_FLAG.fullmatch(before[1]) is not None


def _arguments_of_pip(words: Sequence[str]) -> list[str]:
    """Return what follows pip in a command that starts it; nothing where it starts something else."""
    left = list(words)
    while left and (left[0] in _BEFORE_A_COMMAND or _ASSIGNMENT.fullmatch(left[0])):
        left.pop(0)
    name = left.pop(0).rpartition("/")[2] if left else ""
    if _PYTHON.fullmatch(name):
        while left and left[0].startswith("-") and left[0] != "-m":
            left.pop(0)
        name = left[1] if left[:1] == ["-m"] and len(left) > 1 else ""
        left = left[2:]
    if name == "uv":
        name, left = (left[0] if left else ""), left[1:]
    return left if _PIP.fullmatch(name) else []


def _commands(text: str) -> Iterator[list[str]]:
    """Yield the commands of a shell's script, without redirections; up to what is no script."""
    text = _COMMENT.sub("", text.replace("\\\n", " "))
    lexer = shlex.shlex(text, posix=True, punctuation_chars=_OPERATORS)
    lexer.whitespace, lexer.whitespace_split, lexer.commenters = " \t\r", True, ""
    found: list[str] = []
    try:
        for token in lexer:
            if not token or set(token) - set(_OPERATORS):
                found.append(token)
            elif set(token) & set("<>"):
                # Its file, and a number of a stream before it, are no words of the command.
                next(lexer, None)
                if found and found[-1].isdecimal():
                    found.pop()
            else:
                yield found
                found = []
    except ValueError:
        # A quote without an end, of a here-document.
        return
    yield found
