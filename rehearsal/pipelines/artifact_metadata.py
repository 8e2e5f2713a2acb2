"""How much metadata an artifact may have, whoever makes it: a client's request, or a task of a pipeline.

https://cloud.google.com/vertex-ai/docs/reference/rest/v1/projects.locations.metadataStores.artifacts
"""

from __future__ import annotations

from typing import Any

from google.protobuf import json_format

# Of an artifact, in its JSON form.
METADATA_LIMIT = 200_000


def find_excess(metadata: Any) -> str:
    """Return by how much metadata are too large, in words; empty: they are not.

    Args:
        metadata: A google.protobuf.Struct.
    """
    count = len(json_format.MessageToJson(metadata, indent=None))
    return "" if count <= METADATA_LIMIT else f"it has {count:,} bytes, and {METADATA_LIMIT:,} are allowed"
