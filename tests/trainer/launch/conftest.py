"""Ports of this machine."""

import random
import socket

import pytest

from trainer.launch.torchrun import STORE_PORTS


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
