"""One reading of a run: what cannot be read is written down, and reading goes on."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

from contracts import storage
from contracts.artifacts import Contract
from inspection.run.door import HARM, MANIFEST_BYTES, Door, first_line, parse_json
from inspection.run.find import RunPlace
from inspection.run.stages import MOST_CHARACTERS
from inspection.run.view import Missing

T = TypeVar("T")
C = TypeVar("C", bound=Contract)


@dataclass
class Reading:
    """What one reading of a run has found so far."""

    place: RunPlace
    door: Door
    hashes: dict[str, str] = field(default_factory=dict)
    """SHA-256 of each document that was read, by its URI."""
    missing: list[Missing] = field(default_factory=list)
    recorded_line: str = ""
    """Where the run's documents say that the line is."""

    def located(self, uri: str) -> str:
        """Return where something is that a document names: the line may have been moved or copied."""
        if self.recorded_line and uri.startswith(self.recorded_line + "/"):
            return self.place.line + uri[len(self.recorded_line) :]
        return uri

    def inside(self, uri: str) -> bool:
        """Whether something lies in the line: nothing else is read on the word of a document."""
        return self.door.inside(uri)

    def contract(self, kind: type[C], uri: str, most: int = MANIFEST_BYTES) -> C:
        """Return a document of the line.

        Raises:
            ValueError, ShardlineError, OSError: It cannot be read (door.HARM).
        """
        content = self.door.read(uri, most)
        try:
            values = parse_json(content)
        except ValueError as error:
            raise ValueError(f"{storage.display(uri)}: {first_line(error)}") from error
        document = kind.of_values(values, where=storage.display(uri))
        self.hashes[uri] = hashlib.sha256(content).hexdigest()
        return document

    def attempt(self, what: str, read: Callable[[], T]) -> T | None:
        """Return what `read` returns; what goes wrong is written down."""
        try:
            return read()
        except HARM as error:
            text = "it is not there" if isinstance(error, FileNotFoundError) else first_line(error)
            self.missing.append(Missing(what=what, reason=text[:MOST_CHARACTERS]))
            return None
