"""Record of what `project apply` makes: an object of the bucket, written before anything is made.

It is the reason why `project destroy` touches nothing else: what is not in it was there before. The bucket itself is
known by its label. A write names the generation that was read, so that two commands do not overwrite each other.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from contracts.errors import ShardlineError, TryAgain
from pipelines.project.client import Client, Refused

NAME = "shardline-project.json"
_FORMAT = 1
_HTTP_NOT_FOUND, _HTTP_PRECONDITION = 404, 412


@dataclass(frozen=True)
class Made:
    """The keys of resources and grants that are ours."""

    keys: frozenset[str] = frozenset()
    generation: int = 0
    """Of the object; 0: there is none."""


def read_made(client: Client, bucket: str) -> Made:
    """Return the record; an empty one where there is none.

    Raises:
        ShardlineError: It is of a later version.
    """
    try:
        found = client.call("storage", "objects.get", bucket=bucket, object=NAME)
        generation = int(found["generation"])
        content = client.read("storage", "objects.get_media", bucket=bucket, object=NAME, generation=str(generation))
    except Refused as error:
        if error.status == _HTTP_NOT_FOUND:
            return Made()
        raise
    document: dict[str, Any] = json.loads(content)
    if document.get("format") != _FORMAT:
        raise ShardlineError(f"gs://{bucket}/{NAME} has format {document.get('format')}: this program knows {_FORMAT}")
    return Made(frozenset(document["made"]), generation)


def write_made(client: Client, bucket: str, made: Made, keys: frozenset[str]) -> Made:
    """Write the record with other keys, over the one that was read.

    Raises:
        TryAgain: Another command has written it meanwhile.
    """
    from googleapiclient.http import MediaInMemoryUpload

    content = json.dumps({"format": _FORMAT, "made": sorted(keys)}, indent=1).encode()
    media = MediaInMemoryUpload(content, mimetype="application/json")
    target: dict[str, Any] = {"bucket": bucket, "name": NAME, "ifGenerationMatch": str(made.generation)}
    try:
        # One write per second to an object: https://docs.cloud.google.com/storage/quotas#objects
        answer = client.wait(
            f"gs://{bucket}/{NAME}",
            lambda: client.call("storage", "objects.insert", write=True, media_body=media, **target),
        )
    except Refused as error:
        if error.status == _HTTP_PRECONDITION:
            raise TryAgain(
                f"gs://{bucket}/{NAME} was changed meanwhile: another `project` command is at work\n"
                "  to do: run the same command again once it has ended"
            ) from error
        raise
    return Made(keys, int(answer["generation"]))


def delete_made(client: Client, bucket: str) -> None:
    """Delete the record."""
    try:
        client.call("storage", "objects.delete", write=True, bucket=bucket, object=NAME)
    except Refused as error:
        if error.status != _HTTP_NOT_FOUND:
            raise
