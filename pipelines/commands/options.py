"""Arguments and options that many commands share."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Literal

import typer

ConfigPath = Annotated[Path, typer.Argument(metavar="CONFIG", help="YAML file.", show_default=False)]
Overrides = Annotated[
    list[str] | None,
    typer.Argument(metavar="SECTION.KEY=VALUE", help="Values that win over the file.", show_default=False),
]
Debug = Annotated[bool, typer.Option("--debug", help="Show tracebacks.")]
RunId = Annotated[
    str, typer.Option(metavar="ID", help="Id of the run; the same id twice is the same run [default: made].")
]
Yes = Annotated[bool, typer.Option("--yes", help="Do it without a question.")]

Format = Annotated[
    Literal["table", "json", "yaml"] | None, typer.Option("-o", "--format", help="How it is printed [default: table].")
]


def is_document(form: str | None) -> bool:
    """Whether JSON or YAML is asked for."""
    return form in ("json", "yaml")


def as_document(content: str, form: str | None) -> str:
    """Return a JSON document as it is, or as YAML where that is asked for."""
    if form == "yaml":
        import json

        import yaml

        content = yaml.safe_dump(json.loads(content), sort_keys=True, allow_unicode=True, width=120).rstrip()
    return content


def print_document(content: str, form: str | None) -> None:
    """Print a JSON document, as YAML where that is asked for."""
    print(as_document(content, form))


def ask(what: str, *, yes: bool) -> bool:
    """Return whether the user wants something done.

    Args:
        what: As in "make these".
        yes: Whether --yes was given.

    Raises:
        ConfigError: There is no terminal to ask on.
    """
    from contracts.errors import ConfigError

    if yes:
        return True
    if not sys.stdin.isatty():
        raise ConfigError(
            "nothing was changed: there is no terminal to ask on",
            allowed="a terminal, or --yes",
            todo="read the list above, then run it again with --yes",
        )
    return typer.confirm(f"{what}?")
