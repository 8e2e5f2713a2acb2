"""A network of machines, and what runs on them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from rehearsal.machines.metadata import Identity
from rehearsal.machines.network import Host, Network
from rehearsal.machines.processes import clean_environment

LIMIT_S = 120.0
IDENTITY = Identity(
    project="p123-tp",
    project_number="123456789012",
    zone="us-central1-a",
    machine_type="g2-standard-12",
    email="trainer@acme.iam.gserviceaccount.com",
    token=lambda: "token-of-this-rehearsal",
)


class Machines:
    """Runs Python on machines."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.refused: list[str] = []

    def run(self, host: Host, *command: str, **environment: str) -> tuple[int | None, list[str]]:
        """Run a command to its end; return its code and its lines."""
        lines: list[str] = []
        tree = host.start(command, environment=clean_environment(environment), folder=self.folder, on_line=lines.append)
        return tree.wait(LIMIT_S), lines


@pytest.fixture
def machines(tmp_path: Path) -> Machines:
    return Machines(tmp_path)


@pytest.fixture
def network(machines: Machines) -> Iterator[Network]:
    with Network(refuse=machines.refused.append) as found:
        yield found
