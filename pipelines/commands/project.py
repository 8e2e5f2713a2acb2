"""`shardline project plan|apply|export|destroy`."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from pipelines.commands.options import ConfigPath, Debug, Format, Overrides, Yes, ask, print_document
from pipelines.reported import load, reported

if TYPE_CHECKING:
    from contracts.config import RunConfig
    from pipelines.project.client import Client
    from pipelines.project.inspect import Survey

T = TypeVar("T")

project_app = typer.Typer(
    help="What a Google Cloud project needs: APIs, bucket, accounts, roles.",
    no_args_is_help=True,
    rich_markup_mode=None,
)


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.add_typer(project_app, name="project")


@project_app.command()
def plan(
    config: ConfigPath,
    overrides: Overrides = None,
    form: Format = None,
    debug: Debug = False,
) -> None:
    """Show what the project of CONFIG has of what it needs; exit code 1 where something is missing."""
    with reported(debug):
        resolved = load(config, overrides)
        with _open(resolved) as client:
            found = _look(client, resolved)
        if form in ("json", "yaml"):
            import json
            from dataclasses import asdict

            items = [asdict(item) for item in found.items()]
            print_document(json.dumps({"complete": found.is_complete, "items": items}), form)
        else:
            _print_items(found, everything=True)
            _print_quotas(resolved)
    if not found.is_complete:
        raise typer.Exit(1)


@project_app.command()
def apply(config: ConfigPath, overrides: Overrides = None, yes: Yes = False, debug: Debug = False) -> None:
    """Make what is missing in the project of CONFIG, after a question."""
    with reported(debug):
        from pipelines.project.apply import apply as make

        resolved = load(config, overrides)
        with _open(resolved) as client:
            found = _look(client, resolved)
            _print_items(found, everything=False)
            if found.is_complete:
                print("unchanged", flush=True)
                return
            if not ask("make these", yes=yes):
                return
            _explained(lambda: make(client, found, _print))
        print("done; roles of new accounts can take some minutes until every service knows them", flush=True)
        if resolved.project.tensorboard and not resolved.vertex.tensorboard:
            print("set vertex.tensorboard to the name that `gcloud ai tensorboards list` shows", flush=True)


@project_app.command()
def destroy(config: ConfigPath, overrides: Overrides = None, yes: Yes = False, debug: Debug = False) -> None:
    """List what `project apply` has made in the project of CONFIG, and take it away after a question."""
    with reported(debug):
        from pipelines.project.destroy import destroy as take_away
        from pipelines.project.destroy import list_removal

        resolved = load(config, overrides)
        with _open(resolved) as client:
            found = _look(client, resolved)
            removal = _explained(lambda: list_removal(client, found))
            for key in removal.keys:
                print(f"removes  {key}")
            for kept in removal.kept:
                print(f"keeps    {kept}")
            if not removal.keys:
                print("nothing to remove", flush=True)
            elif ask("remove these", yes=yes):
                _explained(lambda: take_away(client, found, removal, _print))


@project_app.command()
def export(
    config: ConfigPath,
    overrides: Overrides = None,
    terraform: Annotated[bool, typer.Option("--terraform", help="Terraform's JSON syntax, for main.tf.json.")] = False,
    gcloud: Annotated[bool, typer.Option("--gcloud", help="A script of gcloud commands.")] = False,
    debug: Debug = False,
) -> None:
    """Print what the project of CONFIG needs, for another tool; asks nobody."""
    with reported(debug):
        from contracts.errors import ConfigError
        from pipelines.project.declaration import declare
        from pipelines.project.gcloud import to_gcloud
        from pipelines.project.terraform import to_terraform

        if terraform == gcloud:
            raise ConfigError(
                "project export " + ("with --terraform and --gcloud" if terraform else "without a form"),
                allowed="--terraform or --gcloud, one of them",
                todo="choose the tool that shall make the project",
            )
        declaration = declare(load(config, overrides))
        print(to_terraform(declaration) if terraform else to_gcloud(declaration))


_print = functools.partial(print, flush=True)


def _open(config: RunConfig) -> Client:
    from pipelines.project.client import Client

    return Client(config.cloud.project, config.cloud.region, say=functools.partial(_print, file=sys.stderr))


def _look(client: Client, config: RunConfig) -> Survey:
    from pipelines.project.declaration import declare
    from pipelines.project.inspect import survey

    declaration = declare(config)
    return _explained(lambda: survey(client, declaration))


def _explained(run: Callable[[], T]) -> T:
    """Run what asks the APIs; their no is told in our terms."""
    from pipelines.project.client import Refused

    try:
        return run()
    except Refused as error:
        raise error.error from error


def _print_items(found: Survey, *, everything: bool) -> None:
    for item in found.items():
        if everything or item.state != "there":
            more = "".join(f"; {text}" for text in (f"costs: {item.cost}" if item.cost else "", item.note) if text)
            print(f"{item.state:8} {item.key}: {item.reason}{more}", flush=True)


def _print_quotas(config: RunConfig) -> None:
    """Print the quotas to ask for, which no program can grant."""
    from pipelines.plan.plan import outline

    for rung in outline(config).rungs:
        for need in rung.quotas:
            print(f"quota    {need.metric} in {rung.region}: {need.amount}; `plan --online` says what there is")
