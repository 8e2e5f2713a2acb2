"""The command line that every stage has; what the options mean is in contracts/stage.py."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from contracts import storage

_FLAGS = ("fresh", "debug")
_SWITCHES = (*_FLAGS, "locate", "where", "dry-run", "end-with-parent")
_PATHS = ("write-uri", "write-finished", "launch")
_PLACES = ("config", "config-sha256", "config-json", "root", "output", "line", "run", "shards", "profile", "checkpoint")
_WORDS = ("attempt", "events", "machine", "software", "expect")


def parse_options(stage: str, arguments: Sequence[str] | None) -> argparse.Namespace:
    """Take the command line of a stage apart.

    Args:
        stage: Its name.
        arguments: The words; None: those of the process.

    Returns:
        The options; `looks` says whether nothing is to be written, `root` is set where a line is given.
    """
    parser = argparse.ArgumentParser(prog=f"stage {stage}", allow_abbrev=False)
    for name in (*_PLACES, *_WORDS):
        parser.add_argument(f"--{name}")
    for name in _PATHS:
        parser.add_argument(f"--{name}", type=Path)
    for name in _SWITCHES:
        parser.add_argument(f"--{name}", action="store_true")
    parser.add_argument("--launched-at", type=float)
    parser.add_argument("--data-date", default="")
    parser.add_argument("--flags", default="", help="words out of fresh and debug, as one text")
    options = parser.parse_args(arguments)
    for word in options.flags.split():
        if word not in _FLAGS:
            parser.error(f"--flags {word}: one of {', '.join(_FLAGS)}")
        setattr(options, word, True)
    if options.line is not None:
        if options.root is not None or options.output is not None:
            parser.error("--line beside --root or --output: one of them")
        options.root = storage.join(options.line.rstrip("/"), stage)
    options.looks = options.locate or options.where or options.dry_run
    return options
