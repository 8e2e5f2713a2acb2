"""The command line that every stage has; what the options mean is in contracts/stage.py."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from contracts import storage

_FLAGS = ("fresh", "debug")


def parse_options(stage: str, arguments: Sequence[str] | None) -> argparse.Namespace:
    """Take the command line of a stage apart.

    Args:
        stage: Its name.
        arguments: The words; None: those of the process.

    Returns:
        The options; `looks` says whether nothing is to be written, `root` is set where a line is given.
    """
    parser = argparse.ArgumentParser(prog=f"stage {stage}", allow_abbrev=False)
    parser.add_argument("--config")
    parser.add_argument("--config-sha256")
    parser.add_argument("--config-json")
    parser.add_argument("--root")
    parser.add_argument("--output")
    parser.add_argument("--shards")
    parser.add_argument("--profile")
    parser.add_argument("--checkpoint")
    parser.add_argument("--attempt", default=None)
    parser.add_argument("--events", default=None)
    parser.add_argument("--launched-at", type=float, default=None)
    parser.add_argument("--fresh", action="store_true")
    parser.add_argument("--compact", action="store_true")
    parser.add_argument("--locate", action="store_true")
    parser.add_argument("--dry-run", action="store_true")
    parser.add_argument("--prices", default=None)
    parser.add_argument("--end-with-parent", action="store_true")
    parser.add_argument("--debug", action="store_true")
    parser.add_argument("--line")
    parser.add_argument("--run")
    parser.add_argument("--data-date", default="")
    parser.add_argument("--flags", default="", help="words out of fresh and debug, as one text")
    parser.add_argument("--where", action="store_true")
    parser.add_argument("--write-uri", type=Path)
    parser.add_argument("--write-finished", type=Path)
    parser.add_argument("--machine")
    parser.add_argument("--software")
    parser.add_argument("--launch", type=Path)
    parser.add_argument("--expect")
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
