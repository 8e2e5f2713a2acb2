"""One attempt of the stage on its output: the mark that says whose turn it is, and the files only it may use.

A job can outlive the command that started it (a job service, Dataflow). The next attempt takes the mark over; what the
older job writes from then on is the same bytes under the same names, and it leaves the manifest to its successor.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from contracts import storage
from contracts.artifacts import MANIFEST_NAME
from contracts.config import SPLITS
from contracts.errors import ConfigError
from contracts.refusal import REFUSAL_NAME
from sharding.limits import name_some

if TYPE_CHECKING:
    from contracts.stage import Output
    from sharding.write.shard import Job

# Says that this stage writes in the folder, and which attempt of it; deleted once the manifest is there.
WRITING_NAME = ".writing"
# Holds a folder an attempt: the listing, the records of shards, signs of life.
WORK_NAME = ".work"
# Those of an increment hold its generation.
_FILE_NAME = rf"({'|'.join(SPLITS)})(-g\d+)?-\d+"
SHARD_NAME = re.compile(rf"{_FILE_NAME}\.(tar|tfrecord)")
_NEIGHBOUR_NAME = re.compile(rf"{_FILE_NAME}\.idx|wids-({'|'.join(SPLITS)})\.json")


def take_over(output_uri: str, fingerprint: str, attempt: str) -> None:
    """Leave the mark: from now on `attempt` is the one that may commit."""
    storage.replace(storage.join(output_uri, WRITING_NAME), f"{fingerprint} {attempt}\n".encode())


def is_current(job: Job) -> bool:
    """Whether no later attempt has taken over, and the manifest is not yet there. True for a job without an attempt."""
    if not job.attempt:
        return True
    try:
        mark = storage.read_bytes(storage.join(job.output_uri, WRITING_NAME)).decode()
    except FileNotFoundError:
        return False
    return mark.split()[-1:] == [job.attempt]


def clean_up(output_uri: str) -> None:
    """Delete the mark and everything that belongs to attempts."""
    storage.delete_tree(storage.join(output_uri, WORK_NAME), manifest_name=MANIFEST_NAME)
    storage.delete(storage.join(output_uri, WRITING_NAME))


def take_folder(output: Output, attempt: str) -> None:
    """Mark the output as being written, and delete what a killed attempt left there.

    The folder has no manifest, and this process holds its lock. With `--output` it may hold files of the user's own:
    only names that this stage writes are deleted, and only where an attempt of it has left its mark.

    Raises:
        ConfigError: Such names are there without the mark.
    """
    leftovers = _list_leftovers(output.uri)
    mark = storage.join(output.uri, WRITING_NAME)
    if leftovers and not storage.exists(mark):
        raise ConfigError(
            f"{storage.display(output.uri)} holds {name_some(leftovers)} but no manifest: another program's files?",
            allowed="an empty or a new folder",
            todo="choose another --output, or delete these files yourself",
        )
    take_over(output.uri, output.fingerprint, attempt)
    remove_leftovers(output.uri)


def remove_leftovers(uri: str) -> None:
    """Delete what an attempt left in a folder without a manifest."""
    storage.delete_tree(storage.join(uri, WORK_NAME), manifest_name=MANIFEST_NAME)
    for name in _list_leftovers(uri):
        storage.delete(storage.join(uri, name))


def _list_leftovers(uri: str) -> list[str]:
    from records.index import INDEX_NAME
    from sharding.commit.duplicates import DUPLICATES_NAME
    from sharding.increment.reuse import SOURCES_NAME, TOMBSTONES_NAME

    return [
        name
        for name in storage.list_names(uri)
        if SHARD_NAME.fullmatch(name)
        or name.startswith(storage.TEMPORARY_PREFIX)
        or _NEIGHBOUR_NAME.fullmatch(name)
        or name in (INDEX_NAME, SOURCES_NAME, TOMBSTONES_NAME, REFUSAL_NAME, DUPLICATES_NAME)
    ]
