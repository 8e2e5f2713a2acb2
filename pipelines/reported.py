"""What every command does with its configuration and its errors. Nothing heavy is imported before it is needed."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from contracts.config import RunConfig
    from contracts.errors import ErrorDocument


def load(config: Path, overrides: list[str] | None) -> RunConfig:
    """Return the configuration of a command, with absolute paths."""
    from contracts.config.load import load_config
    from pipelines.place import make_absolute

    return make_absolute(load_config(config, overrides or []))


@contextmanager
def reported(debug: bool) -> Iterator[None]:
    """End the command on an error: its message on stderr, its exit code, a traceback only with --debug."""
    from contracts.errors import EXIT_OK, ErrorDocument, ShardlineError

    try:
        yield
    except BrokenPipeError:
        # Who reads, `head` or a pager, has seen enough: Python must not try to write the rest at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise typer.Exit(EXIT_OK) from None
    except ShardlineError as error:
        # A stage's error is told as the stage left it.
        told = getattr(error, "document", None)
        document = told if isinstance(told, ErrorDocument) else ErrorDocument.of(error, traceback.format_exc())
    except Exception as error:  # noqa: BLE001 - the entry of a process is where everything ends
        document = ErrorDocument.of(error, traceback.format_exc())
        document = document.model_copy(update={"message": f"{document.message}\n  to do: see it whole with --debug"})
    else:
        return
    show_error(document, debug=debug)
    raise typer.Exit(document.exit_code)


def show_error(error: ErrorDocument, *, debug: bool) -> None:
    """Print an error on stderr, and its traceback where it is asked for."""
    if debug and error.traceback:
        print(error.traceback, file=sys.stderr)
    print(f"error: {error.message}", file=sys.stderr, flush=True)


def say(text: str) -> None:
    """Print a line on stderr, at once."""
    print(text, file=sys.stderr, flush=True)
