"""Arguments and options that many commands share."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from contracts.config import RunConfig
    from pipelines.plan import Plan
    from pipelines.submission_rules import Asked

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


def plan_of(
    config: RunConfig, prices: Path | None, profile: str | None, asked: Asked | None = None, *, online: bool = False
) -> Plan:
    """Return the plan that compile, submit and schedule go by, with which nothing is wrong.

    Raises:
        ConfigError: Its first problem.
    """
    from pipelines.plan import make_plan, outline
    from pipelines.plan_inputs import read_inputs

    if online:
        # What rules alone refuse needs no credentials.
        outline(config, read_inputs(config, prices=prices), asked).require()
    inputs = read_inputs(config, prices=prices, profile=profile, online=online)
    return make_plan(config, inputs, asked, online=online).require()
