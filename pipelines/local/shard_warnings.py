"""What was remarked about a source when it was sharded: said again by every command that uses the shards."""

from __future__ import annotations

import json

from contracts import storage
from contracts.artifacts import MANIFEST_NAME
from contracts.result import find_result


def read_warnings(shards_uri: str) -> list[str]:
    """Return the warnings of finished shards; none where there is no manifest, or one of an earlier version.

    Args:
        shards_uri: Their folder. Only the document is read, not its table of shards.
    """
    try:
        values = json.loads(storage.read_bytes(storage.join(shards_uri, MANIFEST_NAME)))
    except (FileNotFoundError, NotADirectoryError, ValueError):
        # Who reads the shards themselves says that they are damaged.
        return []
    found: list[str] = values.get("warnings", [])
    return found


def read_warnings_of_run(line: str, run_id: str) -> list[str]:
    """Return the warnings of the shards that a run made or reused; none before it has."""
    made = find_result(line, run_id, "shard")
    return read_warnings(made.uri) if made is not None else []
