"""One attempt of the stage on its output: the mark that says whose turn it is, and the files only it may use.

A job can outlive the command that started it (a job service, Dataflow). The next attempt takes the mark over; what the
older job writes from then on is the same bytes under the same names, and it leaves the manifest to its successor.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from contracts import storage
from contracts.artifacts import MANIFEST_NAME

if TYPE_CHECKING:
    from sharding.shard import Job

# Says that this stage writes in the folder, and which attempt of it; deleted once the manifest is there.
WRITING_NAME = ".writing"
# Holds a folder an attempt: the listing, the records of shards, signs of life.
WORK_NAME = ".work"


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
