"""Groups of the commands in `shardline --help`."""

from __future__ import annotations

from typing import Any

from typer.core import TyperGroup

GROUPS = {
    "Run on this machine": ("run", "shard", "profile", "train", "export", "predict", "verify"),
    "Look at runs": ("runs", "inspect", "report", "tensorboard", "clean"),
    "Google Cloud": (
        *("init", "plan", "compile", "submit", "status", "logs", "cancel", "schedule", "images", "rehearse"),
    ),
    "Data and configuration": ("data", "config"),
}


class GroupedCommands(TyperGroup):
    """The program's commands, by what they are for."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write a section a group; a command of no group comes last."""
        commands = {name: self.get_command(ctx, name) for name in self.list_commands(ctx)}
        named = {name for names in GROUPS.values() for name in names}
        groups = {**GROUPS, "Others": tuple(name for name in commands if name not in named)}
        for title, names in groups.items():
            rows = [
                (name, command.get_short_help_str(limit=formatter.width - 6 - max(map(len, commands))))
                for name in names
                if (command := commands.get(name)) is not None and not command.hidden
            ]
            if rows:
                with formatter.section(title):
                    formatter.write_dl(rows)
