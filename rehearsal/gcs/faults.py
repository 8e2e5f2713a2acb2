"""Fault injection by rules: errors, latency, bandwidth.

A rule counts matching requests and decides only by this count and its seed, not by time: the same requests in the same
order get the same faults.
"""

from __future__ import annotations

import hashlib
import threading
from dataclasses import dataclass
from fnmatch import fnmatchcase

from pydantic import BaseModel, ConfigDict, Field

from rehearsal.servers.http import Wire


class Rule(BaseModel):
    """Requests and their effects. If several rules match, latencies add up and the first fault applies."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    method: str = "*"
    """HTTP method; * stands for any text here and below."""
    bucket: str = "*"
    object: str = "*"
    """Name of the object as a pattern (a/* matches a/b/c); listings have the empty name."""
    operation: str = "*"
    """Name in the access log: objects.get, objects.media, uploads, ..."""
    nth: tuple[int, ...] = ()
    """Only these of the matching requests, counted from 1; empty: all."""
    limit: int | None = None
    """Maximum number of effects."""
    probability: float = Field(default=1.0, ge=0, le=1)
    seed: int = 0
    """Random seed of `probability`."""

    latency_s: float = Field(default=0.0, ge=0)
    """Delay before the first byte of the answer."""
    bytes_per_s: float | None = Field(default=None, gt=0)
    """Speed limit of this request's stream, in both directions."""
    status: int | None = Field(default=None, ge=400, le=599)
    """Answer with this error instead (503, 429, 403, ...)."""
    retry_after_s: int | None = None
    """Retry-After header of that answer."""
    reset: bool = False
    """Reset the connection instead of an answer."""
    after: bool = False
    """Execute the request first, so that only its answer is lost (with `status` or `reset`)."""
    reset_at: int | None = Field(default=None, ge=0)
    """Reset the connection after this many bytes of the answer's body."""
    read_at_most: int | None = Field(default=None, ge=0)
    """Reset the connection after this many bytes of the request's body, which count as received."""
    truncate_at: int | None = Field(default=None, ge=0)
    """Close the connection after this many bytes of the answer's body."""
    quietly: bool = False
    """With `truncate_at`: Content-Length matches the sent bytes, so that only a checksum detects it."""
    corrupt_at: int | None = Field(default=None, ge=0)
    """Flip a bit of this byte of the answer's body."""


@dataclass
class Effect:
    """Combined effect of the rules on a request."""

    latency_s: float = 0.0
    bytes_per_s: float | None = None
    fault: Rule | None = None

    def wire(self) -> Wire:
        """Return the transmission of the answer."""
        fault = self.fault or Rule()
        return Wire(self.bytes_per_s, fault.truncate_at, fault.quietly, fault.reset_at, fault.corrupt_at)


@dataclass
class _Counter:
    rule: Rule
    matched: int = 0
    hits: int = 0


class Faults:
    """The rules of a server."""

    def __init__(self) -> None:
        self._counters: list[_Counter] = []
        self._lock = threading.Lock()

    @property
    def rules(self) -> list[Rule]:
        """The rules in force."""
        with self._lock:
            return [counter.rule for counter in self._counters]

    def set(self, *rules: Rule) -> None:
        """Replace all rules; their counts start at zero."""
        with self._lock:
            self._counters = [_Counter(rule) for rule in rules]

    def hits(self) -> list[int]:
        """Return the number of effects per rule."""
        with self._lock:
            return [counter.hits for counter in self._counters]

    def decide(self, method: str, operation: str, bucket: str, name: str) -> Effect:
        """Count a request and return its effect."""
        effect = Effect()
        with self._lock:
            for counter in self._counters:
                rule = counter.rule
                texts = ((method, rule.method), (operation, rule.operation), (bucket, rule.bucket), (name, rule.object))
                if not all(fnmatchcase(text, pattern) for text, pattern in texts):
                    continue
                counter.matched += 1
                if not _applies(rule, counter):
                    continue
                counter.hits += 1
                effect.latency_s += rule.latency_s
                if rule.bytes_per_s is not None:
                    effect.bytes_per_s = min(rule.bytes_per_s, effect.bytes_per_s or rule.bytes_per_s)
                if effect.fault is None and _is_fault(rule):
                    effect.fault = rule
        return effect


def _applies(rule: Rule, counter: _Counter) -> bool:
    if rule.nth and counter.matched not in rule.nth:
        return False
    if rule.limit is not None and counter.hits >= rule.limit:
        return False
    if rule.probability == 1:
        return True
    digest = hashlib.sha256(f"{rule.seed}/{counter.matched}".encode()).digest()
    return int.from_bytes(digest[:8]) < rule.probability * 2**64


def _is_fault(rule: Rule) -> bool:
    numbers = (rule.status, rule.reset_at, rule.read_at_most, rule.truncate_at, rule.corrupt_at)
    return rule.reset or any(number is not None for number in numbers)
