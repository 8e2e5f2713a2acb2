"""The configuration of a run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from pages.rendering import View


@dataclass(frozen=True)
class ConfigurationSection(View):
    """The configuration as YAML."""

    template: ClassVar[str] = "run/configuration.html.j2"
    title: str
    yaml: str
    left_out: int = 0
    """Characters."""
