"""How busy a machine's processors and its network are, as Linux counts it; elsewhere nothing is told."""

from __future__ import annotations

import time
from pathlib import Path

_STAT, _NETWORK = Path("/proc/stat"), Path("/proc/net/dev")
# Of the first line of /proc/stat, proc_stat(5): the first eight are all of the time, of which two were idle.
_FIELDS, _IDLE = 8, (3, 4)
# Of an interface's line in /proc/net/dev, proc_pid_net(5).
_RECEIVED, _SENT = 0, 8
_LOOPBACK = "lo"
_MIB = 1 << 20


class MachineGauges:
    """What a machine did between two readings: all of it, whichever process asked for it; loopback is not counted."""

    def __init__(self) -> None:
        self._processors, self._bytes, self._at = _read_processors(), _read_network(), time.monotonic()

    def values(self) -> dict[str, float]:
        """Return scalars by name, since the last call or the start.

        `machine/cpu_percent`: share of all cores' time that was not idle, in [0, 100]; `machine/received_mib_per_s`,
        `machine/sent_mib_per_s`: of all interfaces together.
        """
        before, before_bytes, before_at = self._processors, self._bytes, self._at
        self._processors, self._bytes, self._at = _read_processors(), _read_network(), time.monotonic()
        found, took_s = {}, self._at - before_at
        if before is not None and self._processors is not None and (spent := self._processors[1] - before[1]) > 0:
            # The kernel's count of idle time may go back a little.
            busy = (self._processors[0] - before[0]) / spent
            found["machine/cpu_percent"] = 100 * min(1.0, max(0.0, busy))
        if before_bytes is not None and self._bytes is not None and took_s > 0:
            for name, was, now in zip(("received", "sent"), before_bytes, self._bytes, strict=True):
                # An interface that has gone takes its count along.
                found[f"machine/{name}_mib_per_s"] = max(0, now - was) / _MIB / took_s
        return found


def _read_processors() -> tuple[int, int] | None:
    """Return the time of all cores that was not idle, and all of it, in ticks; None: not Linux."""
    try:
        ticks = [int(word) for word in _STAT.read_text().split("\n", 1)[0].split()[1 : _FIELDS + 1]]
    except (OSError, ValueError):
        return None
    return (sum(ticks) - sum(ticks[place] for place in _IDLE), sum(ticks)) if len(ticks) == _FIELDS else None


def _read_network() -> tuple[int, int] | None:
    """Return the bytes received and sent by all interfaces but loopback; None: not Linux."""
    received = sent = 0
    try:
        for line in _NETWORK.read_text().splitlines():
            name, colon, counts = line.partition(":")
            if colon and name.strip() != _LOOPBACK:
                words = counts.split()
                received, sent = received + int(words[_RECEIVED]), sent + int(words[_SENT])
    except (OSError, ValueError, IndexError):
        return None
    return received, sent
