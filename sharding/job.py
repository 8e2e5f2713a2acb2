"""What all workers of a job share: what decides the bytes of the shards, and the names of their files.

Every file of a job carries a key in its name: a hash of the fingerprint and of the versions of what decides bytes. So
a name decides its bytes: whoever writes a name, in whichever attempt or run, writes the same content, and what is there
already is done. The key is made where the bytes are made, by the worker: a late worker with other libraries writes
under other names, which no manifest of this job lists.

Below OUTPUT/.work, until the manifest is there:

    plan-REVISION-FINGERPRINT.json    the planned job; whoever plans second takes what is there
    listing-ATTEMPT/            the listing in parts, and where the shards are cut
    KEY/verdict-..., record-..., summary-...    what is done, in this order: verdict, shard, record, summary, manifest
"""

from __future__ import annotations

import functools
import tempfile
import uuid
from bisect import bisect_right
from dataclasses import dataclass, field
from pathlib import Path

from pydantic import Field

from contracts import storage
from contracts.artifacts import Document
from contracts.config import SPLITS, ShardingSection
from contracts.errors import ConfigError, TryAgain
from contracts.fingerprint import fingerprint
from records.convert import library_versions
from records.index_parts import ROW
from records.statistics import ChannelSums, Tally
from sharding.limits import decode_name
from sharding.plan import Plan
from sharding.sources.fields import Fields
from sharding.sources.parts import PART_REFERENCES
from sharding.write.check import Checks

# Counts up when the same fingerprint would give other bytes: the plan, the order, the framing, what is rejected.
REVISION = 2
KEY_DIGITS = 8
# In the output's folder: what a job needs until its manifest is there.
WORK_NAME = ".work"
# In the output's folder: the error that ended the work for good (contracts.errors.ErrorDocument).
REFUSAL_NAME = "refusal.json"
CUTS_NAME = "cuts"
# The tokenizer that the configuration names, in the folder of the listing.
TOKENIZER_NAME = "tokenizer.json"
# Places in the parent's index that become tombstones.
GONE_NAME = "gone"
# Shards whose records are combined into one part of the index, and samples that they may have together.
GROUP_SHARDS = 256
GROUP_SAMPLES = 4_000_000


class SourceChanged(TryAgain):
    """A file of the source vanished or changed since it was listed: repeating the work does not help."""


@functools.cache
def made_with() -> dict[str, str]:
    """Return the versions of what decides bytes in this process."""
    return {"sharding": str(REVISION), **library_versions()}


def make_work_key(output_fingerprint: str) -> str:
    """Return the key of a job's files, as this process would write them."""
    return fingerprint({"fingerprint": output_fingerprint, **made_with()})[:KEY_DIGITS]


@dataclass(frozen=True)
class Job:
    """What every worker needs to know."""

    fingerprint: str
    source_uri: str
    output_uri: str
    classes: tuple[bytes, ...]
    shard_format: str
    seed: int = 0
    multi_label: bool = False
    """Whether the labels of a sample are a list."""
    checks: Checks = field(default_factory=Checks)
    """What is looked at in every image, and what is done to it."""
    summed_share: float = 1.0
    """Share of the training images whose pixels are summed up (records/statistics.py)."""
    read_threads: int = 0
    """Files, or requests to a bucket, that are under way at a time; 0: each when it is needed."""
    file_timeout_s: int = 120
    """Seconds that looking at one file may take."""
    fields: Fields | None = None
    """The named fields; None where samples are an image and a label."""
    vocabularies: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """Names of the classes of each field of classes but the label, as in the manifest."""

    @functools.cached_property
    def places(self) -> dict[str, dict[str, int]]:
        """Places of the names in `vocabularies`."""
        return {name: {one: place for place, one in enumerate(names)} for name, names in self.vocabularies.items()}

    @property
    def has_labels(self) -> bool:
        """Whether the index holds a label of each sample."""
        return bool(self.classes) and not self.multi_label

    @property
    def key(self) -> str:
        """Part of the names of all files that this process writes."""
        return make_work_key(self.fingerprint)

    @property
    def work_uri(self) -> str:
        """Folder of what the job needs until its manifest is there."""
        return storage.join(self.output_uri, WORK_NAME)


@dataclass(frozen=True)
class ShardRecord:
    """What is known about one planned shard after it was written."""

    shard: int
    """Number in the plan."""
    name: str
    """File name; no such file is there when every image was rejected."""
    shard_bytes: int
    crc32c: str
    rows: bytes
    """[n] of records.index_parts.ROW: where each sample lies in the file."""
    labels: bytes
    """[n] of <i4; NO_LABEL where a sample may have several, or there are no classes."""
    sources: bytes
    """[n] of <u8: what each sample was made of (Reference.identity)."""
    contents: bytes
    """[n] of <u8: crc32c (upper half) and size (lower half) of the first file of each sample as it is stored."""
    source_bytes: int
    rejected: tuple[tuple[bytes, str], ...]
    """Path and reason of each file that was left out."""
    channel_sums: ChannelSums
    """Over the pixels of its images, or of some of them; only of the training split."""
    tally: Tally = field(default_factory=Tally)
    """Its images, counted."""
    label_counts: tuple[int, ...] = ()
    """Number of its samples of each class; only where a sample may have several."""

    @property
    def num_samples(self) -> int:
        """Number of its samples."""
        return len(self.rows) // ROW.itemsize


class Append(Document):
    """What an increment takes over from its parent."""

    parent: str
    """Fingerprint of the parent, and name of its folder, beside the output."""
    samples_by_class: list[list[int]]
    """Of the samples that stay, for each split."""
    source_bytes: list[int]
    """Of the samples that stay, for each split."""
    vanished: list[int]
    """Labels of classes that the source has no image of any more."""
    num_kept: int
    """Number of samples that stay."""
    num_compared: int
    """Number of these that new files may be copies of: references to them follow those of the listing."""
    num_compared_parts: int | None = None
    """Number of files of references that follow those of the listing; None: as many as `PART_REFERENCES` gives."""
    num_new: int
    num_changed: int
    num_gone: int

    @property
    def is_empty(self) -> bool:
        """Whether the source has the very samples of the parent."""
        return not self.num_new and not self.num_changed and not self.num_gone

    @property
    def compared_parts(self) -> int:
        """Number of files of references that follow those of the listing."""
        if self.num_compared_parts is not None:
            return self.num_compared_parts
        return -(-self.num_compared // PART_REFERENCES)


class PlannedJob(Document):
    """A job as it lies in the work folder: all that a launcher or a worker needs to go on with it."""

    revision: int
    fingerprint: str
    made_from: dict[str, str]
    source_uri: str
    classes: list[str]
    """As in the manifest."""
    multi_label: bool
    vocabularies: dict[str, list[str]] = Field(default={})
    """Names of the classes of each field of classes but the label, written likewise."""
    sharding: ShardingSection
    seed: int
    listing: str
    """Name of the folder in the work folder that holds the listing."""
    num_parts: int
    num_files: int
    source_bytes: int
    training_files: int
    ignored: list[str]
    num_ignored: int
    warnings: list[str]
    append: Append | None = None
    """None where every sample is written."""

    def listing_uri(self, output_uri: str) -> str:
        """Return the URI of the folder that holds the listing."""
        return storage.join(output_uri, WORK_NAME, self.listing)


def plan_uri(output_uri: str, fingerprint: str) -> str:
    """Return where a planned job is: a folder that the user has named may hold what is left of other work."""
    return storage.join(output_uri, WORK_NAME, f"plan-{REVISION}-{fingerprint}.json")


def read_planned(output_uri: str, fingerprint: str) -> PlannedJob | None:
    """Return a planned job; None where nobody has planned it, or it is finished and cleaned up."""
    try:
        return PlannedJob.model_validate_json(storage.read_bytes(plan_uri(output_uri, fingerprint)))
    except (FileNotFoundError, NotADirectoryError):
        return None


@dataclass(frozen=True)
class JobHandle:
    """What the graph holds of a job, whatever its size."""

    output_uri: str
    fingerprint: str
    listing: str
    """As `PlannedJob.listing`: it tells jobs apart that one process works for, one after another."""
    revision: int
    summed_share: float
    read_threads: int
    file_timeout_s: int = 120
    billing_project: str = ""
    """As `cloud.billing_project`: a worker's environment does not name it."""

    @property
    def work_uri(self) -> str:
        """Folder of what the job needs until its manifest is there."""
        return storage.join(self.output_uri, WORK_NAME)


@dataclass(frozen=True)
class OpenJob:
    """A job in the process that works for it."""

    job: Job
    planned: PlannedJob
    plan: Plan
    groups: tuple[range, ...]
    """The shards of each part of the index: consecutive ones of one split."""

    def stem_of(self, shard: int) -> str:
        """Return the name of a shard without its suffix."""
        return self.plan.name_of(shard, self.job.key)

    def group_of(self, shard: int) -> int:
        """Return the number of the group that a shard is in."""
        return bisect_right([group.start for group in self.groups], shard) - 1


def make_groups(plan: Plan, num_files: int) -> tuple[range, ...]:
    """Return the groups of shards whose records are combined: consecutive ones of one split, of about one size."""
    samples = -(-num_files // max(1, plan.total_shards))
    most = max(1, min(GROUP_SHARDS, GROUP_SAMPLES // max(1, samples)))
    groups = []
    first = 0
    for count in plan.num_shards:
        groups += [range(at, min(at + most, first + count)) for at in range(first, first + count, most)]
        first += count
    return tuple(groups)


@functools.lru_cache(maxsize=2)
def open_job(handle: JobHandle) -> OpenJob:
    """Read the planned job and its plan, once a process.

    Raises:
        ConfigError: The worker has another version of this package than whoever planned the job.
        FileNotFoundError: The job is finished, and cleaned up.
    """
    if handle.revision != REVISION:
        raise ConfigError(
            f"the job was planned by revision {handle.revision} of sharding, the worker has revision {REVISION}",
            allowed="workers with the version of the package that plans",
            todo="build the worker's image anew (cloud.images.cpu) from the version that you submit with",
        )
    planned = PlannedJob.model_validate_json(storage.read_bytes(plan_uri(handle.output_uri, handle.fingerprint)))
    storage.bill(handle.billing_project, planned.source_uri)
    plan = Plan.from_bytes(storage.read_bytes(storage.join(planned.listing_uri(handle.output_uri), CUTS_NAME)))
    job = Job(
        planned.fingerprint,
        planned.source_uri,
        handle.output_uri,
        tuple(decode_name(name) for name in planned.classes),
        planned.sharding.shard_format,
        planned.seed,
        planned.multi_label,
        Checks.of(planned.sharding),
        handle.summed_share,
        handle.read_threads,
        handle.file_timeout_s,
        Fields.of(planned.sharding),
        {name: tuple(names) for name, names in planned.vocabularies.items()},
    )
    assert sum(plan.num_shards) == plan.total_shards and len(plan.num_shards) == len(SPLITS)
    return OpenJob(job, planned, plan, make_groups(plan, planned.num_files))


def scratch_file(output_uri: str) -> Path:
    """Return the path of a new temporary file: beside the output, where publishing is a link; for a bucket, here."""
    if storage.is_local(output_uri):
        folder = storage.local_path(output_uri)
        folder.mkdir(parents=True, exist_ok=True)
    else:
        folder = Path(tempfile.gettempdir())
    return folder / f"{storage.TEMPORARY_PREFIX}{uuid.uuid4().hex}"
