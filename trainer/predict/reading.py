"""How samples come to a predict.py: as arguments, lines, JSON lines and tables. It lies beside predict.py.

Here: `read_samples`; `Asked`, which is one sample; `BadInput`, what all shared files raise; and `require_packages`.
serving.py says what the options are. Python 3.10 is all it needs.
"""

from __future__ import annotations

import argparse
import csv
import json
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from importlib import import_module
from types import MappingProxyType
from typing import Any, NamedTuple

EXIT_BAD_INPUT = 2
JSON_SUFFIXES = (".jsonl", ".ndjson")


class BadInput(Exception):
    """Something that was given cannot be used; the message says what was found, what is allowed and what to do."""

    def __init__(self, found: str, *, allowed: str, todo: str) -> None:
        super().__init__(f"{found}\n  allowed: {allowed}\n  to do: {todo}")


def require_packages(packages: Mapping[str, str]) -> None:
    """Import what a predict.py needs; end the program with exit code 2 where something is not installed.

    A file of the export that is called like a package is not taken for it: the folder, first in sys.path, is left out.

    Args:
        packages: Distributions by the module that each brings.
    """
    folder, missing = sys.path.pop(0), []
    for module, name in packages.items():
        try:
            import_module(module)
        except ImportError as error:
            missing.append(f"{name} ({error})")
    sys.path.insert(0, folder)
    if missing:
        found = BadInput(
            f"{sys.executable} has no {', '.join(missing)}",
            allowed=f"a Python with {', '.join(packages.values())} and onnxruntime",
            todo=f"{sys.executable} -m pip install {' '.join(packages.values())} onnxruntime",
        )
        sys.stderr.write(f"error: {found}\n")
        raise SystemExit(EXIT_BAD_INPUT)


class BadSample(Exception):
    """A sample cannot be used; the message is the reason, without the sample's name."""


class Asked(NamedTuple):
    """A sample that is asked about."""

    name: str
    """In messages and answers."""
    value: Any
    """A path or a text; an exception: why there is none."""


@dataclass(frozen=True)
class Kind:
    """Samples of one kind."""

    noun: str
    """In messages: images."""
    argument: str
    """What an argument of the command is: IMAGE."""
    allowed: str
    """What a sample may be, in words."""
    column: str
    """Column of a table that holds a sample."""
    key: str | None = None
    """Entry of an answer in JSON that names the sample; None: it is not named."""


def read_samples(
    options: argparse.Namespace, kind: Kind, expand: Callable[[str], Iterator[Asked]]
) -> Iterator[Asked | None]:
    """Yield the samples that options name, in their order; None asks for the answers to those before.

    Args:
        options: Of the command.
        kind: Of the samples.
        expand: Yields the samples that an argument names.

    Raises:
        BadInput: A file cannot be read, or lacks the column.
    """
    for argument in options.samples:
        yield from expand(argument)
    if options.lines is not None:
        with _open(options.lines, options.copies) as stream:
            for number, line in enumerate(stream, start=1):
                yield _checked(f"line {number}", line.rstrip("\r\n"), kind)
    if options.json_lines is not None:
        yield from _read_json(options.json_lines, kind, options.copies, flushes=True)
    if options.manifest is not None:
        table = read_table(options.manifest, kind, column=options.column, copies=options.copies)
        yield from table


def read_table(
    name: str,
    kind: Kind,
    *,
    column: str | None = None,
    copies: Mapping[str, str] = MappingProxyType({}),
) -> Iterator[Asked | None]:
    """Yield the samples of a table: a CSV file with a header, or a JSON object a line.

    Args:
        name: Of the file; - is standard input, JSON lines.
        kind: Of the samples.
        column: That holds the sample; None: the kind's own.
        copies: Where files lie that are not on this machine, by name.
    """
    if name == "-" or name.lower().endswith(JSON_SUFFIXES):
        yield from _read_json(name, kind, copies, column=column)
    elif name.lower().endswith(".csv"):
        yield from _read_csv(name, kind, copies, column)
    else:
        raise BadInput(
            f"{name} is of no known form",
            allowed=f".csv, {', '.join(JSON_SUFFIXES)}, or - for JSON lines from standard input",
            todo="name the file by what it holds",
        )


def _read_csv(name: str, kind: Kind, copies: Mapping[str, str], column: str | None) -> Iterator[Asked]:
    csv.field_size_limit(1 << 30)
    wanted = column or kind.column
    with _open(name, copies) as stream:
        try:
            reader = csv.reader(stream, strict=True)
            header = next(reader, [])
            if header.count(wanted) != 1:
                raise BadInput(
                    f"the header of {name} has {header.count(wanted)} columns {wanted!r}",
                    allowed="one of them",
                    todo="add the column, correct its name, or name another with --column",
                )
            for number, cells in enumerate((cells for cells in reader if cells), start=1):
                where = f"{name}, row {number}"
                if len(cells) != len(header):
                    yield Asked(where, BadSample(f"it has {len(cells)} cells, the header {len(header)}"))
                    continue
                yield _checked(where, cells[header.index(wanted)], kind)
        except csv.Error as error:
            raise BadInput(f"{name} cannot be read: {error}", allowed="a CSV file", todo="correct it") from None


def _read_json(
    name: str,
    kind: Kind,
    copies: Mapping[str, str],
    *,
    column: str | None = None,
    flushes: bool = False,
) -> Iterator[Asked | None]:
    wanted, number = column or kind.column, 0
    with _open(name, copies) as stream:
        for line in stream:
            if not line.strip():
                if flushes:
                    yield None
                continue
            number += 1
            where = f"{'' if name == '-' else name + ', '}row {number}"
            try:
                value = json.loads(line)
            except (ValueError, RecursionError):
                yield Asked(where, BadSample("the line is no JSON"))
                continue
            yield _checked(where, value.get(wanted) if isinstance(value, dict) else value, kind, wanted)


def _checked(where: str, value: Any, kind: Kind, column: str | None = None) -> Asked:
    """Return a sample that is a text: its own name."""
    if not isinstance(value, str):
        return Asked(where, BadSample(f"it is no text, and no object with a text {column!r}"))
    try:
        # What was no UTF-8 came as surrogates, and is good enough for a path.
        return Asked(value if kind.key else shorten(value), value)
    except UnicodeEncodeError:
        return Asked(where, BadSample("the line is no UTF-8"))


def shorten(text: str, most: int = 60) -> str:
    """Return a text on one line that tells it from others."""
    line = " ".join(text[: 4 * most].split())
    return line if len(line) <= most else f"{line[: most - 1]}…"


def _open(name: str, copies: Mapping[str, str]) -> Any:
    """Return a context with the lines of a file."""
    if name == "-":
        sys.stdin.reconfigure(encoding="utf-8", errors="surrogateescape", newline="\n")  # type: ignore[union-attr]
        return nullcontext(sys.stdin)
    try:
        # Lines end as the file says: a text may hold line ends of other systems.
        newline = "" if name.lower().endswith(".csv") else "\n"
        return open(copies.get(name, name), encoding="utf-8-sig", errors="surrogateescape", newline=newline)
    except OSError as error:
        raise BadInput(
            f"{name} cannot be read: {error.strerror}", allowed="a file of samples, or -", todo="correct the path"
        ) from None
