"""Arguments and options that many commands share."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

ConfigPath = Annotated[Path, typer.Argument(metavar="CONFIG", help="YAML file.", show_default=False)]
Overrides = Annotated[
    list[str] | None,
    typer.Argument(metavar="SECTION.KEY=VALUE", help="Values that win over the file.", show_default=False),
]
Debug = Annotated[bool, typer.Option("--debug", help="Show tracebacks.")]
Prices = Annotated[
    Path | None, typer.Option("--prices", metavar="FILE", help="YAML with your own prices (docs/plan.md).")
]
ProfileUri = Annotated[
    str | None, typer.Option("--profile", metavar="URI", help="Profile report that the time is taken from.")
]
RunId = Annotated[
    str, typer.Option(metavar="ID", help="Id of the run; the same id twice is the same run [default: made].")
]
Template = Annotated[
    str, typer.Option(metavar="URI", help="A compiled pipeline instead: file, gs:// or Artifact Registry.")
]

Yes = Annotated[bool, typer.Option("--yes", help="Do it without a question.")]

Format = Annotated[
    Literal["table", "json", "yaml"] | None, typer.Option("-o", "--format", help="How it is printed [default: table].")
]
AsJson = Annotated[bool, typer.Option("--json", hidden=True, help="The former name of -o json.")]


def is_document(form: str | None, as_json: bool) -> bool:
    """Whether JSON or YAML is asked for; warns of the former option."""
    if as_json:
        former("--json", "-o json")
    return as_json or form in ("json", "yaml")


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


def former(name: str, now: str) -> None:
    """Warn of a name that goes in the next release."""
    print(f"warning: {name} is {now} now; the former name goes in the next release", file=sys.stderr, flush=True)


def describes(app: typer.Typer, command: Callable[..., None], where: str) -> None:
    """Add a command as `describe`, and by its former name `show` with a warning."""

    @functools.wraps(command)
    def show(*arguments: Any, **options: Any) -> None:
        former(f"shardline {where} show", f"shardline {where} describe")
        command(*arguments, **options)

    app.command("describe")(command)
    app.command("show", hidden=True)(show)


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
