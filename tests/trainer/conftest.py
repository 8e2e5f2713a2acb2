"""What all tests of the trainer need."""

import random
import socket
from collections.abc import Iterator

import pytest

from contracts.own_code import append_code
from tests.conftest import OWN_CODE
from tests.support.traced import HOOKS
from trainer.parallel.process_group import Rank


@pytest.fixture(autouse=True, scope="session")
def _hooks_of_tests() -> Iterator[None]:
    """Let ranks be traced and held where a test asks for it (tests/support/hooks.py)."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in HOOKS.items():
            patch.setenv(name, value)
        yield


@pytest.fixture(autouse=True)
def _own_code_of_tests() -> None:
    """Let this process import the tests' networks as a rank imports the user's."""
    append_code(OWN_CODE)


@pytest.fixture(scope="module")
def rank() -> Iterator[Rank]:
    """The only rank of a group, for the tests of a module."""
    from tests.trainer.one_rank import one_rank

    with one_rank() as rank:
        yield rank


@pytest.fixture
def port() -> int:
    """A free port with free ones above it, below those that the kernel gives to anybody who asks."""
    while True:
        first = random.randrange(10000, 32000)
        try:
            for offset in range(17):
                with socket.create_server(("", first + offset)):
                    pass
        except OSError:
            continue
        return first
