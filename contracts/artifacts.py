"""The documents that pass between stages, and the rule that makes them trustworthy.

A document is the commit: data first, the manifest last and create-only. What has no manifest does not exist. Each
document carries a format version, the hashes of what it was made from, and size and crc32c of the files it speaks for.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from typing import Any, ClassVar, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from contracts import storage
from contracts.errors import DataError

MANIFEST_NAME = "manifest.json"


class NewerVersion(DataError):
    """A document of a format version that this version does not know."""


class Document(BaseModel):
    """Base of the models in a document: frozen and strict."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)


class FileEntry(Document):
    """A file that a document speaks for."""

    name: str
    """Path relative to the document's folder."""
    bytes: int
    """Size in bytes."""
    crc32c: str
    """crc32c of the content, eight hex digits."""

    @classmethod
    def of(cls, folder_uri: str, name: str) -> FileEntry:
        """Describe the file `name` below `folder_uri`; it is read once for its crc32c."""
        uri = storage.join(folder_uri, *name.split("/"))
        return cls(name=name, bytes=storage.size(uri), crc32c=storage.crc32c_of(uri))


class Contract(Document):
    """Base of the five documents."""

    FORMAT_VERSION: ClassVar[int] = 1

    kind: str
    format_version: int = 1
    fingerprint: str
    """Hash of the configuration fields and inputs that decide the content; also the name of the folder."""
    made_from: dict[str, str] = {}
    """Hashes of what went into the fingerprint, by name: enough to see which input differs."""

    def to_json(self) -> bytes:
        """Return the document as JSON with sorted keys: equal documents are equal bytes."""
        # A NaN is no JSON: other readers would refuse the document, so it is not written.
        return (json.dumps(self.model_dump(mode="json"), sort_keys=True, indent=1, allow_nan=False) + "\n").encode()

    def owned_files(self) -> list[FileEntry]:
        """Return every file that the document speaks for."""
        return []

    @property
    def sha256(self) -> str:
        """Hash of the document's bytes."""
        return hashlib.sha256(self.to_json()).hexdigest()

    @classmethod
    def parse(cls, content: bytes, *, where: str) -> Self:
        """Read a document.

        Raises:
            DataError: It is no such document, or one of a newer format version.
        """
        todo = "pass the URI of the folder that the earlier stage printed"
        expected = cls.model_fields["kind"].default
        try:
            values = json.loads(content)
        except ValueError:
            raise DataError(f"{where} is not JSON", allowed=f"a {expected} document", todo=todo) from None
        if not isinstance(values, dict) or values.get("kind") != expected:
            kind = values.get("kind") if isinstance(values, dict) else type(values).__name__
            raise DataError(f"{where} is a {kind!r} document", allowed=f"a {expected} document", todo=todo)
        version = values.get("format_version")
        if not isinstance(version, int) or version > cls.FORMAT_VERSION:
            raise NewerVersion(
                f"{where} has format version {version}",
                allowed=f"versions up to {cls.FORMAT_VERSION}",
                todo="use the version of shardline that wrote it, or a newer one",
            )
        try:
            return cls.model_validate(values)
        except ValidationError as error:
            finding = error.errors(include_url=False)[0]
            place = ".".join(str(part) for part in finding["loc"])
            raise DataError(
                f"{where} is damaged at {place}: {finding['msg']}", allowed=f"a {expected} document", todo=todo
            ) from None

    @classmethod
    def load(cls, folder_uri: str) -> Self:
        """Read the manifest of a folder (or the document itself, when its own URI is given).

        Raises:
            DataError: There is no such document.
        """
        uri = folder_uri if folder_uri.endswith(".json") else storage.join(folder_uri, MANIFEST_NAME)
        try:
            content = storage.read_bytes(uri)
        except (FileNotFoundError, NotADirectoryError):
            expected = cls.model_fields["kind"].default
            raise DataError(
                f"{storage.display(folder_uri)} holds no {MANIFEST_NAME}: nothing finished there",
                allowed=f"the URI of a finished {expected} folder",
                todo="run the stage that writes it, or check the URI",
            ) from None
        return cls.parse(content, where=storage.display(uri))


def find_damage(folder_uri: str, files: Iterable[FileEntry], *, checksums: bool = True) -> str | None:
    """Compare files with their entries; return what is wrong with the first bad one, or None."""
    for entry in files:
        uri = storage.join(folder_uri, *entry.name.split("/"))
        try:
            found = storage.size(uri)
        except (FileNotFoundError, NotADirectoryError):
            return f"{entry.name} is missing"
        if found != entry.bytes:
            return f"{entry.name} has {found} bytes, its manifest says {entry.bytes}"
        if checksums and (found_crc := storage.crc32c_of(uri)) != entry.crc32c:
            return f"{entry.name} has crc32c {found_crc}, its manifest says {entry.crc32c}"
    return None


# --- sharding ---------------------------------------------------------------------------------------------------------


class SplitEntry(Document):
    """One split of the data: a contiguous range of the index."""

    first: int
    """Place of the split's first sample in the index."""
    samples: int
    source_bytes: int
    """Bytes of the source files."""
    samples_by_class: list[int]
    """Number of samples of each class, in the order of `ShardManifest.classes`."""


class ShardEntry(FileEntry):
    """One shard file."""

    split: str
    first: int
    """Place of the shard's first sample in the index."""
    samples: int


class Rejected(Document):
    """A file that was left out of the shards."""

    path: str
    """Path relative to the source, percent-encoded where it is not plain text."""
    reason: str


class Copy(Document):
    """One of several images with the same bytes."""

    path: str
    """Path in the source, encoded as in `Rejected`."""
    split: str
    label: int


class DuplicateGroup(Document):
    """Images with the same bytes; of these, the first is kept where copies are dropped."""

    sha256: str
    """Hash of their content."""
    copies: list[Copy]


class Duplicates(Document):
    """What is known about images with the same bytes."""

    dropped: bool
    """Whether all but one of each group were left out of the shards."""
    groups: int
    copies: int
    """Number of images beyond the first of each group."""
    leaking_groups: int
    """Groups with images in more than one split."""
    listed: list[DuplicateGroup]
    """The groups, those that leak first; at most 1,000."""


class ImageStatistics(Document):
    """What the images are. Formats and modes are those of the source, sizes those of the shards."""

    formats: dict[str, int]
    """Number of images by format."""
    modes: dict[str, int]
    """Number of images by colour mode, in Pillow's terms; empty with verify=none."""
    width: list[int] | None
    """Smallest and largest, in pixels; None with verify=none."""
    height: list[int] | None


class Prepared(Document):
    """What was changed in images while sharding."""

    convert: list[str]
    """Kinds of change that were asked for: cmyk, depth, orientation."""
    resize: int | None
    """Shorter side in pixels that larger images were shrunk to."""
    jpeg_quality: int
    changed: dict[str, int]
    """Number of images that needed each change."""


class ShardManifest(Contract):
    """What the shards of a source hold."""

    kind: Literal["shards"] = "shards"
    format: Literal["webdataset", "tfrecord"]
    seed: int
    classes: list[str]
    """Names of the classes; a label is a place in this list."""
    multi_label: bool = False
    """Whether an image may have several labels: they are in the shards as lists, and the index holds none."""
    splits: dict[str, SplitEntry]
    shards: list[ShardEntry]
    index: FileEntry
    """The packed index of all samples (records/index.py)."""
    rejected: list[Rejected]
    """Files that are no usable images by their content."""
    ignored: list[str] = []
    """Files and folders of the source that are no images by their name, encoded as in `rejected`."""
    mean: list[float] | None = None
    """Mean of the red, green and blue channel, in [0, 1], over all pixels of at most 10,000 images of the training
    split; None where no image was decoded."""
    std: list[float] | None = None
    """Standard deviation of the channels over the same pixels."""
    verify: Literal["decode", "header", "none"] = "decode"
    """How images were checked."""
    images: ImageStatistics | None = None
    prepared: Prepared | None = None
    """None where nothing was to be changed."""
    duplicates: Duplicates | None = None
    """None where no two images have the same bytes."""
    neighbours: list[FileEntry] = []
    """Files for other libraries: an index of each shard in DALI's form, and lists of the shards for WIDS."""
    code_version: str = ""
    """Version of the package that wrote the shards."""

    def owned_files(self) -> list[FileEntry]:
        """Return the shards, the index, and what others read."""
        return [*self.shards, self.index, *self.neighbours]


# --- profile ----------------------------------------------------------------------------------------------------------


class ProfilePoint(Document):
    """One measured configuration."""

    slot_size: int
    num_workers: int
    samples_per_s: float
    """Median over the windows, for one rank."""
    samples_per_s_min: float
    samples_per_s_max: float
    data_time_fraction: float = Field(ge=0, le=1)
    """Share of the step spent waiting for the loader."""


class ProfileChoice(Document):
    """How to cut the global batch, and how to load."""

    slot_size: int
    num_workers: int
    reason: str


class ProfileReport(Contract):
    """What the profiling run measured and chose."""

    kind: Literal["profile"] = "profile"
    model_fingerprint: str
    """Hash of the model section that was measured."""
    shards_fingerprint: str
    hardware: dict[str, str]
    torch_version: str
    ranks: int
    threads_per_rank: int
    global_batch_size: int
    points: list[ProfilePoint]
    choice: ProfileChoice


# --- training ---------------------------------------------------------------------------------------------------------


class CheckpointManifest(Contract):
    """A checkpoint; at the top of a training folder: the best one, which says that training is finished."""

    kind: Literal["checkpoint"] = "checkpoint"
    finished: bool = False
    """True only at the top of a training folder."""
    step: int
    """Optimizer steps taken."""
    position: int
    """Global sample position: samples seen since the start of training. The whole data state."""
    epoch: int
    """Epochs completed."""
    slot_size: int
    """Fixed when training starts; a later profile does not change it."""
    model: dict[str, Any]
    """The model section that built the network."""
    classes: list[str]
    data: dict[str, Any]
    """The evaluation transform: image_size, mean, std."""
    shards_fingerprint: str
    metrics: dict[str, float]
    """validation_accuracy in [0, 1] and validation_loss; at the top also test_accuracy and test_loss."""
    best_step: int
    """Step of the best checkpoint so far, by validation accuracy."""
    best_validation_accuracy: float | None = None
    """None before the first evaluation, and without a validation split."""
    best_validation_loss: float | None = None
    """Decides between checkpoints of equal accuracy."""
    parameters_sha256: str
    """Hash over names and bytes of all parameters and buffers."""
    environment: dict[str, str]
    """What decides the bits besides the configuration: ranks, threads, CPU capability, versions."""
    files: list[FileEntry]
    """model.safetensors and optimizer.safetensors (at the top: the best weights only)."""

    def owned_files(self) -> list[FileEntry]:
        """Return the tensors' files."""
        return self.files


# --- export -----------------------------------------------------------------------------------------------------------


class Parity(Document):
    """How far an exported graph is from torch on the same inputs."""

    ran: str
    """What computed the outputs, with its version; or `not run: ...`."""
    samples: int = 0
    relative_error: float | None = None
    """Largest absolute difference over the range of the reference."""
    min_cosine: float | None = None
    """Smallest cosine of a sample's logits with the reference's."""
    top1_agreement: float | None = None
    passed: bool | None = None
    """None when nothing ran."""


class EngineEntry(FileEntry):
    """The engine file."""

    sha256: str
    builder: str
    """Package and version that built it."""
    precision: str
    targets: list[str]
    """Compute capabilities it was built for."""
    min_batch: int
    opt_batch: int
    max_batch: int


class ExportManifest(Contract):
    """The exported graphs, the engine, and the proof."""

    kind: Literal["export"] = "export"
    precision: str
    opset: int
    inputs: dict[str, list[str | int]]
    """Name and shape of each input; `batch` is dynamic."""
    outputs: dict[str, list[str | int]]
    engine: EngineEntry
    parity: dict[str, dict[str, Parity]]
    """By what ran (`onnx`: ONNX Runtime without graph optimisation; `engine`), then by precision."""
    accuracy: dict[str, float]
    """Share of right answers of the exported graphs on the test split, by precision; `torch` beside them."""
    test_samples: int
    checkpoint_sha256: str
    """parameters_sha256 of the checkpoint."""
    files: list[FileEntry]
    """The graphs, labels and preprocessing; the engine is apart."""

    def owned_files(self) -> list[FileEntry]:
        """Return everything that ships."""
        return [*self.files, self.engine]


# --- a run ------------------------------------------------------------------------------------------------------------


class StageRecord(Document):
    """What one stage of a run did."""

    name: str
    state: Literal["done", "reused", "failed", "not started"]
    wall_s: float = 0.0
    start_s: float = 0.0
    """Part of wall_s spent on process starts and imports."""
    uri: str | None = None
    """Folder of the stage's document."""
    manifest_sha256: str | None = None
    made: str = ""
    """What it made, in words."""


class RunRecord(Contract):
    """One execution of the line."""

    kind: Literal["run"] = "run"
    id: str
    state: Literal["succeeded", "failed"]
    error: str = ""
    started_at: str
    """UTC, ISO 8601."""
    config: dict[str, Any]
    """The resolved configuration."""
    stages: list[StageRecord]
    wall_s: float
    """Whole run: everything from the command's first line to this record."""
    kfp_s: float
    """kfp itself: the orchestrating process and the executors, less the stages they waited for."""
    process_start_s: float
    """Process starts and imports of the stages."""
    results: dict[str, Any]
    """Test accuracy, how the global batch was cut, the engine and its parity."""


CONTRACTS: dict[str, type[Contract]] = {
    "shards": ShardManifest,
    "profile": ProfileReport,
    "checkpoint": CheckpointManifest,
    "export": ExportManifest,
    "run": RunRecord,
}
