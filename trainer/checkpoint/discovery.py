"""Which checkpoints there are, and the newest that counts.

    checkpoints/attempt-000002.json              create-only: what attempt 2 resumed from
    checkpoints/step-00000120.000002/            a checkpoint of attempt 2
        manifest.json, model.safetensors, ...

A create-only manifest does not keep out a process that was thought dead: cut off at step 130, it commits freely while
its successor works from step 120. So every attempt takes the next number, with a record of what it resumed from, before
it saves anything. A checkpoint counts if no later attempt resumed from an earlier step: what the successor left behind
is behind for good.
"""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from pydantic import ValidationError

from contracts import storage
from contracts.artifacts import MANIFEST_NAME, CheckpointManifest, find_damage
from contracts.artifacts.document import Document
from contracts.errors import DataError, UserError

_CHECKPOINT = re.compile(r"step-(\d{8,15})\.(\d{6})")
_RECORD = re.compile(r"attempt-(\d{6})\.json")
# A manifest names a few files; what is longer is none.
_MAX_DOCUMENT_BYTES = 64 << 20


class Superseded(UserError):
    """A later attempt works on the same folder."""


class AttemptRecord(Document):
    """What an attempt resumed from."""

    attempt: str
    """Id of the attempt, as its events carry it."""
    resumed_from: str | None
    """Folder name of the checkpoint; None: a start from the beginning."""
    step: int
    """Its step; 0 from the beginning."""
    process: str
    """Random: no two records are equal, so of two processes that take a number one loses."""


@dataclass(frozen=True)
class CheckpointFolder:
    """A folder that is named as a checkpoint's."""

    uri: str
    step: int
    attempt: int


@dataclass(frozen=True)
class FoundCheckpoint:
    """What discovery came to."""

    uri: str
    manifest: CheckpointManifest | None
    """None: there is no valid checkpoint."""
    skipped: list[str]
    """What was passed over, and why."""


@dataclass(frozen=True)
class Listing:
    """What is in a folder of checkpoints at one moment."""

    places: list[CheckpointFolder]
    """Newest step first; of one step the latest attempt first."""
    resumed_at: dict[int, int]
    """Step at which each attempt resumed, by its number; -1 where its record cannot be read."""
    damaged_records: list[str]

    @property
    def newest_attempt(self) -> int:
        """Number of the latest attempt; 0 when there was none."""
        return max(self.resumed_at, default=0)

    def left_behind_by(self, place: CheckpointFolder) -> int | None:
        """Return the number of an attempt that resumed from before a checkpoint; None if the checkpoint counts."""
        for number, step in sorted(self.resumed_at.items()):
            if number > place.attempt and 0 <= step < place.step:
                return number
        return None


def checkpoint_name(step: int, attempt: int) -> str:
    """Return the folder name of a checkpoint."""
    return f"step-{step:08d}.{attempt:06d}"


def list_checkpoints(folder_uri: str, known: dict[str, int] | None = None) -> Listing:
    """Look at a folder of checkpoints; other names in it are passed over.

    Args:
        folder_uri: The folder.
        known: Steps of records that were read before, by name; records never change. Taken in and added to.
    """
    known = {} if known is None else known
    places, resumed_at, damaged = [], {}, []
    for name in storage.list_names(folder_uri):
        if match := _CHECKPOINT.fullmatch(name):
            places.append(CheckpointFolder(storage.join(folder_uri, name), int(match[1]), int(match[2])))
        elif match := _RECORD.fullmatch(name):
            if name not in known:
                record = _read_record(storage.join(folder_uri, name))
                known[name] = -1 if record is None else record.step
            resumed_at[int(match[1])] = known[name]
            if known[name] < 0:
                damaged.append(name)
    places.sort(key=lambda place: (place.step, place.attempt), reverse=True)
    return Listing(places, resumed_at, damaged)


def find_newest(folder_uri: str, listing: Listing, *, on_piece: Callable[[], object] = lambda: None) -> FoundCheckpoint:
    """Return the newest checkpoint that counts and whose files are whole, crc32c compared.

    Args:
        folder_uri: Where the listing was made.
        listing: What is there.
        on_piece: Called after each piece of a file that is read for its crc32c.
    """
    found = find_first(listing, listing.places, on_piece=on_piece)
    unread = [f"{storage.display(storage.join(folder_uri, name))} cannot be read" for name in listing.damaged_records]
    return replace(found, skipped=unread + found.skipped)


def find_first(
    listing: Listing,
    places: Iterable[CheckpointFolder],
    *,
    groups: Sequence[str] = (),
    on_piece: Callable[[], object] = lambda: None,
) -> FoundCheckpoint:
    """Return the first of some checkpoints that counts and whose files are whole.

    Args:
        listing: What is there.
        places: What may be taken, the first choice first.
        groups: Groups of tensors that will be read: their crc32c is compared, of other files only the size; empty: all.
        on_piece: Called after each piece of a file that is read for its crc32c.
    """
    skipped: list[str] = []
    for place in places:
        manifest, why = read_checkpoint(place)
        if why is None and manifest is not None:
            number = listing.left_behind_by(place)
            if number is None:
                used = [file for group in groups or manifest.groups for file in manifest.files_of(group)]
                why = find_damage(place.uri, manifest.files, checksums=False)
                why = why or find_damage(place.uri, used, on_piece=on_piece)
            else:
                why = f"attempt {number} resumed from step {listing.resumed_at[number]}, so later steps of attempt "
                why += f"{place.attempt} do not count"
        if why is None:
            return FoundCheckpoint(place.uri, manifest, skipped)
        skipped.append(f"{storage.display(place.uri)}: {why}")
    return FoundCheckpoint("", None, skipped)


def read_checkpoint(place: CheckpointFolder) -> tuple[CheckpointManifest | None, str | None]:
    """Return (manifest, None), or (None, what is wrong with it)."""
    uri = storage.join(place.uri, MANIFEST_NAME)
    try:
        if storage.info(uri).size > _MAX_DOCUMENT_BYTES:
            return None, f"its {MANIFEST_NAME} is longer than {_MAX_DOCUMENT_BYTES} bytes"
        manifest = CheckpointManifest.load(place.uri)
    except (FileNotFoundError, NotADirectoryError):
        return None, f"it has no {MANIFEST_NAME}: it was not finished"
    except DataError as error:
        return None, error.given
    except RecursionError:
        return None, f"its {MANIFEST_NAME} is nested too deeply"
    if (manifest.step, manifest.attempt) != (place.step, place.attempt):
        return None, f"its {MANIFEST_NAME} is of step {manifest.step}, attempt {manifest.attempt}"
    if not manifest.files:
        return None, f"its {MANIFEST_NAME} names no files"
    return manifest, None


def require_same_inputs(uri: str, manifest: CheckpointManifest, made_from: dict[str, str]) -> None:
    """Refuse a checkpoint that another model, other shards or another configuration have led to.

    Raises:
        DataError: It names the inputs that differ.
    """
    changed = sorted(name for name in made_from if manifest.made_from.get(name, made_from[name]) != made_from[name])
    if changed:
        raise DataError(
            f"checkpoint {storage.display(uri)} was made from another {', '.join(changed)}",
            allowed="a checkpoint of the same model, shards and training",
            todo="take another folder, or train again with --fresh",
        )


def record_attempt(folder_uri: str, attempt: str, found: FoundCheckpoint) -> int:
    """Take the next number, leaving the record of what this attempt resumes from; return the number."""
    name = found.uri.rpartition("/")[2] or None
    step = found.manifest.step if found.manifest is not None else 0
    record = AttemptRecord(attempt=attempt, resumed_from=name, step=step, process=uuid.uuid4().hex)
    content = record.model_dump_json(indent=1).encode() + b"\n"
    number = list_checkpoints(folder_uri).newest_attempt
    while True:
        number += 1
        try:
            storage.publish(storage.join(folder_uri, f"attempt-{number:06d}.json"), content)
        except storage.AlreadyPublished:
            continue
        return number


def require_newest(folder_uri: str, listing: Listing, number: int) -> None:
    """Refuse to go on with an attempt that a later one has superseded.

    Args:
        folder_uri: Where the listing was made.
        listing: What is there now.
        number: Of this attempt.

    Raises:
        Superseded: A later attempt has begun.
    """
    newest = listing.newest_attempt
    if newest <= number:
        return
    record = _read_record(storage.join(folder_uri, f"attempt-{newest:06d}.json"))
    # The id of a run's attempt begins with the id of the run.
    run = "another run" if record is None else f"run {record.attempt.partition('.')[0]}"
    raise Superseded(
        f"attempt {newest} has begun since, at step {listing.resumed_at[newest]}: {run} trains the same, and what this "
        "process writes counts no more",
        allowed="one run at a time in a training folder",
        todo=f"wait for {run}, or cancel it; the same command then finds its weights, or goes on from its checkpoints",
    )


def _read_record(uri: str) -> AttemptRecord | None:
    try:
        content = storage.read_bytes(uri) if storage.info(uri).size <= _MAX_DOCUMENT_BYTES else b""
        return AttemptRecord.model_validate(json.loads(content))
    except (ValueError, ValidationError, RecursionError, FileNotFoundError):
        return None
