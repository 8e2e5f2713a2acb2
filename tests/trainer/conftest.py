"""What all tests of the trainer need."""

import random
import socket

import pytest

from contracts.own_code import append_code
from tests.conftest import OWN_CODE
from trainer.launch.torchrun import STORE_PORTS


@pytest.fixture(autouse=True)
def _own_code_of_tests() -> None:
    """Let this process import the tests' networks as a rank imports the user's."""
    append_code(OWN_CODE)


@pytest.fixture
def port() -> int:
    """A free port with free ones above it, below those that the kernel gives to anybody who asks."""
    while True:
        first = random.randrange(10000, 32000)
        try:
            for offset in range(STORE_PORTS + 1):
                with socket.create_server(("", first + offset)):
                    pass
        except OSError:
            continue
        return first
