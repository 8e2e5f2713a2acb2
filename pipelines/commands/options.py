"""Arguments and options that many commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

ConfigPath = Annotated[Path, typer.Argument(metavar="CONFIG", help="YAML file.", show_default=False)]
Overrides = Annotated[
    list[str] | None,
    typer.Argument(metavar="SECTION.KEY=VALUE", help="Values that win over the file.", show_default=False),
]
Debug = Annotated[bool, typer.Option("--debug", help="Show tracebacks.")]
