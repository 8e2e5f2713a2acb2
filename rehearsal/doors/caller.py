"""Who asks a service, and by which door."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Caller:
    """Who asks, and by which door."""

    door: str
    """"rest" or "grpc"."""
    user_agent: str = ""
    host: str = ""
    """By which it asks: a name of Google's, or this machine's address."""
    is_there: Callable[[], bool] = lambda: True
    """False once nobody waits for the answer any more."""
