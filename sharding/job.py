"""The planned job: the inputs of the shards, and the names of their files.

Every file name of a job contains a key: a hash of the fingerprint and of the versions of the libraries that determine
the bytes. So a file name determines its bytes in every attempt and run, and existing files need not be rewritten. Each
worker computes the key itself: a late worker with other libraries writes other names, which no manifest of this job
lists.

Below OUTPUT/.work, until the manifest is published:

    plan-REVISION-FINGERPRINT.json   the planned job; the first one published counts
    listing-ATTEMPT/                 the parts of the listing, and the deleted rows of an increment
    KEY/record-NNNNNN                the result of a finished shard (ShardResult), published after its files
"""

from __future__ import annotations

import functools
import tempfile
import uuid
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from pydantic import Field

from contracts import storage
from contracts.artifacts import Document, DuplicateGroup, ShardEntry, find_damage
from contracts.artifacts.shards import index_name
from contracts.config import SPLITS, ShardingSection
from contracts.errors import ConfigError, TryAgain
from contracts.fingerprint import fingerprint
from records.decode import library_versions
from records.statistics import ChannelSums, Tally
from sharding.fields import Fields
from sharding.images import Checks
from sharding.names import WORK_NAME, decode_name
from sharding.plan import Plan

# Increased when the same fingerprint gives other bytes: changes of plan, order, framing or rejection.
REVISION = 4
KEY_DIGITS = 8
# In the output's folder: the final error of the work (contracts.errors.ErrorDocument).
REFUSAL_NAME = "refusal.json"
# In the folder of the listing: the tokenizer that the configuration names; deleted rows of the parent.
TOKENIZER_NAME = "tokenizer.json"
DELETED_ROWS_NAME = "gone.npy"
# Rejected files that the manifest lists; more are only counted.
MAX_REJECTED = 10_000


class SourceChanged(TryAgain):
    """A file of the source vanished or changed since it was listed: repeating the work does not help."""


class ShardResult(Document):
    """Result of one finished shard, or the merged result of several."""

    shards: list[ShardEntry]
    """Shards with at least one sample; `first` is not set."""
    samples_by_class: dict[str, dict[int, int]] = Field(default={})
    """Number of samples by split and label."""
    source_bytes: dict[str, int] = Field(default={})
    """Bytes of the source files of the samples, by split."""
    rejected: list[tuple[str, str]] = Field(default=[])
    """Encoded path and reason of the first `MAX_REJECTED` rejected files, sorted."""
    num_rejected: int = 0
    channel_sums: ChannelSums = ChannelSums()
    """Over pixels of images of the training split."""
    tally: Tally = Field(default_factory=Tally)


def merge_results(results: list[ShardResult]) -> ShardResult:
    """Add up results."""
    by_class: dict[str, dict[int, int]] = {split: {} for split in SPLITS}
    source_bytes = dict.fromkeys(SPLITS, 0)
    for result in results:
        for split, counts in result.samples_by_class.items():
            for label, count in counts.items():
                by_class[split][label] = by_class[split].get(label, 0) + count
        for split, size in result.source_bytes.items():
            source_bytes[split] += size
    return ShardResult(
        shards=[shard for result in results for shard in result.shards],
        samples_by_class=by_class,
        source_bytes=source_bytes,
        rejected=sorted(rejection for result in results for rejection in result.rejected)[:MAX_REJECTED],
        num_rejected=sum(result.num_rejected for result in results),
        channel_sums=sum((result.channel_sums for result in results), ChannelSums()),
        tally=sum((result.tally for result in results), Tally()),
    )


class Increment(Document):
    """Samples and shards that an increment reuses from its parent."""

    parent: str
    """Fingerprint of the parent, and name of its folder, beside the output."""
    kept: ShardResult
    """The parent's samples that stay; `shards` is empty."""
    vanished: list[int]
    """Labels of classes without a sample in the source."""
    num_kept_parts: int
    """Number of parts, after those of the listing, of kept samples that have the size of a new one."""
    num_kept: int
    """Number of the parent's samples that stay."""
    copies: list[DuplicateGroup]
    """Groups of copies in the parent's manifest, restricted to kept samples."""
    parent_sha256: str
    """Hash of the parent's manifest."""
    num_new: int
    num_changed: int
    num_gone: int


class PlannedJob(Document):
    """The job document in the work folder: all that a launcher or a worker needs to continue it."""

    fingerprint: str
    made_from: dict[str, str]
    source_uri: str
    classes: list[str]
    """As in the manifest."""
    multi_label: bool
    vocabularies: dict[str, list[str]]
    """Class names of each further field of classes, encoded as in `classes`."""
    sharding: ShardingSection
    plan: Plan
    listing: str
    """Name of the folder in the work folder that holds the listing."""
    num_parts: int
    num_files: int
    source_bytes: int
    summed_share: float
    """Share of the training images whose pixels are summed up."""
    ignored: list[str]
    num_ignored: int
    warnings: list[str]
    increment: Increment | None = None
    """None where every sample is written."""


def plan_uri(output_uri: str, fingerprint: str) -> str:
    """Return the URI of a planned job; the fingerprint keeps jobs of one --output folder apart."""
    return storage.join(output_uri, WORK_NAME, f"plan-{REVISION}-{fingerprint}.json")


def read_planned(output_uri: str, fingerprint: str) -> PlannedJob | None:
    """Return a planned job; None if it is not planned, or finished."""
    try:
        return PlannedJob.model_validate_json(storage.read_bytes(plan_uri(output_uri, fingerprint)))
    except (FileNotFoundError, NotADirectoryError):
        return None


@dataclass(frozen=True)
class JobHandle:
    """Reference to a planned job that is serialised with the graph; its size is constant."""

    output_uri: str
    fingerprint: str
    listing: str
    """As `PlannedJob.listing`; distinguishes successive jobs of one process."""
    revision: int = REVISION
    billing_project: str = ""
    """As `cloud.billing_project`: a worker's environment does not name it."""


@dataclass(frozen=True)
class Job:
    """A planned job, opened in a process."""

    output_uri: str
    planned: PlannedJob

    @functools.cached_property
    def key(self) -> str:
        """Part of the names of all files that this process writes."""
        return fingerprint({"fingerprint": self.planned.fingerprint, **made_with()})[:KEY_DIGITS]

    @functools.cached_property
    def fields(self) -> Fields:
        """The fields of the samples."""
        return Fields(self.planned.sharding)

    @functools.cached_property
    def checks(self) -> Checks:
        """Checks and conversions of every image."""
        return Checks.of(self.planned.sharding)

    @functools.cached_property
    def places(self) -> dict[str, dict[str, int]]:
        """Place of each class by field and name; the label's field is not among them."""
        fields = self.planned.vocabularies.items()
        return {field: {name: place for place, name in enumerate(names)} for field, names in fields}

    @functools.cached_property
    def classes(self) -> tuple[bytes, ...]:
        """Names of the classes as the source has them."""
        return tuple(map(decode_name, self.planned.classes))

    @property
    def has_labels(self) -> bool:
        """Whether the index holds a label of each sample."""
        return bool(self.planned.classes) and not self.planned.multi_label

    @property
    def listing_uri(self) -> str:
        """URI of the folder that holds the listing."""
        return storage.join(self.output_uri, WORK_NAME, self.planned.listing)

    @property
    def records_uri(self) -> str:
        """URI of the folder that holds the records of finished shards."""
        return storage.join(self.output_uri, WORK_NAME, self.key)

    @property
    def shown_source(self) -> str:
        """Name of the source in error messages."""
        return f"sharding.source {storage.display(self.planned.source_uri)}"

    @property
    def parent_uri(self) -> str:
        """URI of the parent's folder, beside the output."""
        assert self.planned.increment is not None
        return storage.join(self.output_uri.rpartition("/")[0], self.planned.increment.parent)

    def stem_of(self, shard: int) -> str:
        """Return the name of a shard without its suffix."""
        return self.planned.plan.name_of(shard, self.key)

    def record_uri(self, shard: int) -> str:
        """Return where the record of a shard is."""
        return storage.join(self.records_uri, f"record-{shard:06d}")

    def part_uri(self, number: int) -> str:
        """Return where a part of the listing is."""
        return storage.join(self.listing_uri, f"part-{number:05d}.parquet")

    def read_record(self, shard: int) -> ShardResult | None:
        """Return the result of a finished shard with intact files; None: the shard must be written."""
        try:
            result = ShardResult.model_validate_json(storage.read_bytes(self.record_uri(shard)))
        except FileNotFoundError:
            return None
        if self.find_damage(result.shards) is None:
            return result
        for entry in result.shards:
            self.discard_shard(shard, entry.name)
        return None

    def find_damage(self, shards: Iterable[ShardEntry]) -> str | None:
        """Return the first damage of shard files: a wrong size, or in a bucket a wrong checksum; None if intact."""
        files = [file for entry in shards for file in (entry, entry.index)]
        return find_damage(self.output_uri, files, checksums=not storage.is_local(self.output_uri))

    def discard_shard(self, shard: int, name: str) -> None:
        """Delete the file `name` of a shard, its index and its record, so that it is written again."""
        for uri in (storage.join(self.output_uri, name), storage.join(self.output_uri, index_name(name))):
            storage.delete(uri)
        storage.delete(self.record_uri(shard))

    def count_records(self) -> int:
        """Return the number of finished shards."""
        return sum(name.startswith("record-") for name in storage.list_names(self.records_uri))


@functools.cache
def made_with() -> dict[str, str]:
    """Return the versions of all libraries that determine the bytes, in this process."""
    return {"sharding": str(REVISION), **library_versions()}


@functools.lru_cache(maxsize=2)
def open_job(handle: JobHandle) -> Job:
    """Read the planned job, once a process.

    Raises:
        ConfigError: The worker has another version of this package than the launcher.
        FileNotFoundError: The job is finished and its work folder deleted.
    """
    if handle.revision != REVISION:
        raise ConfigError(
            f"the job was planned by revision {handle.revision} of sharding, the worker has revision {REVISION}",
            allowed="workers with the version of the package that plans",
            todo="build the worker's image anew (cloud.images.cpu) from the version that you submit with",
        )
    content = storage.read_bytes(plan_uri(handle.output_uri, handle.fingerprint))
    planned = PlannedJob.model_validate_json(content)
    storage.bill(handle.billing_project, planned.source_uri)
    return Job(handle.output_uri, planned)


def scratch_file(output_uri: str) -> Path:
    """Return the path of a new temporary file: in a local output's folder, else in the system's temporary folder."""
    if storage.is_local(output_uri):
        folder = storage.local_path(output_uri)
        folder.mkdir(parents=True, exist_ok=True)
    else:
        folder = Path(tempfile.gettempdir())
    return folder / f"{storage.TEMPORARY_PREFIX}{uuid.uuid4().hex}"
