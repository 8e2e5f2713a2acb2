"""The files of an export, each compared with its manifest before it is used; those in a bucket are copied first.

Here: `CheckedFolder`. It reads every byte of a file that is asked for, and nothing of the others.
"""

from __future__ import annotations

import tempfile
from contextlib import ExitStack
from pathlib import Path

from contracts import storage
from contracts.artifacts import ExportManifest
from contracts.errors import DataError


class CheckedFolder:
    """A finished export. Use it as a context: what was copied out of a bucket is deleted at its end.

    Args:
        uri: Its folder.

    Attributes:
        document: Its manifest.

    Raises:
        DataError: There is no manifest, or it was changed.
    """

    def __init__(self, uri: str) -> None:
        self._uri = uri
        self.document = ExportManifest.load(uri)
        if contradiction := self.document.find_contradiction():
            raise self.damaged(contradiction)
        self._entries = {entry.name: entry for entry in self.document.shipped_files()}
        self._copies: Path | None = None
        self._stack = ExitStack()

    def __enter__(self) -> CheckedFolder:
        if not storage.is_local(self._uri):
            self._copies = Path(self._stack.enter_context(tempfile.TemporaryDirectory(prefix="shardline-export-")))
        return self

    def __exit__(self, *exception: object) -> None:
        self._stack.close()

    def take(self, name: str) -> Path:
        """Return the path of a file on this machine, which is as the manifest says.

        Raises:
            DataError: It is not, or the manifest has no such file.
        """
        entry = self._entries.get(name)
        if entry is None:
            raise self.damaged(f"its manifest has no {name}")
        uri = entry.uri(self._uri)
        path = self._copies / entry.name if self._copies is not None else storage.local_path(uri)
        if self._copies is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
        if damage := entry.damage(self._uri, copy=path if self._copies is not None else None):
            raise self.damaged(damage)
        return path

    def damaged(self, what: str) -> DataError:
        """Return the error of an export that something is wrong with."""
        return DataError(
            f"the export in {storage.display(self._uri)} is damaged: {what}",
            allowed="an export as its stage left it",
            todo="copy the whole folder again, or run the export stage again with --fresh",
        )
