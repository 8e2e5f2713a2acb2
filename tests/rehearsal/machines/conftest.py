"""Networks of machines: with namespaces, where this machine permits them, and on the loopback."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from rehearsal.machines.metadata import Identity
from rehearsal.machines.namespaces import NamespacesRefused
from rehearsal.machines.network import Host, Mode, Network
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
    """Makes networks that end with the test, and runs Python on their machines."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.made: list[Network] = []
        self.refused: list[str] = []

    def open(self, mode: Mode) -> Network:
        """Open a network; skip the test where this machine does not permit it."""
        try:
            self.made.append(Network(self.folder / "net", refuse=self.refused.append, mode=mode))
        except NamespacesRefused as error:
            pytest.skip(f"no namespaces here: {error}")
        return self.made[-1]

    def run(self, host: Host, *command: str, **environment: str) -> tuple[int | None, list[str]]:
        """Run a command to its end; return its code and its lines."""
        lines: list[str] = []
        tree = host.start(command, environment=clean_environment(environment), folder=self.folder, on_line=lines.append)
        return tree.wait(LIMIT_S), lines


@pytest.fixture
def machines(tmp_path: Path) -> Iterator[Machines]:
    made = Machines(tmp_path)
    yield made
    for network in made.made:
        network.close()


@pytest.fixture
def network(machines: Machines) -> Network:
    """A network with namespaces."""
    return machines.open("namespaces")


@pytest.fixture(params=["namespaces", "loopback"])
def any_network(machines: Machines, request: pytest.FixtureRequest) -> Network:
    return machines.open(request.param)
