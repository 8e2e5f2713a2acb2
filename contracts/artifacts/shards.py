"""What the shard stage leaves: the manifest of the shards of a source."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import AfterValidator, Field, NonNegativeInt, SerializerFunctionWrapHandler, field_serializer

from contracts.artifacts.document import Contract, Document, FileEntry
from contracts.artifacts.shard_table import load_table
from contracts.config import SPLITS, FieldKind
from contracts.config.sharding import find_image, find_label


class SplitEntry(Document):
    """One split of the data: a contiguous range of the index."""

    first: NonNegativeInt
    """Place of the split's first sample in the index."""
    samples: NonNegativeInt
    source_bytes: NonNegativeInt
    """Bytes of the source files."""
    samples_by_class: list[NonNegativeInt]
    """Number of samples of each class, in the order of `ShardManifest.classes`."""


class ImageStatistics(Document):
    """What the images are. Formats and modes are those of the source, sizes those of the shards."""

    formats: dict[str, int]
    """Number of images by format."""
    modes: dict[str, int]
    """Number of images by colour mode, in Pillow's terms; empty with verify=none."""
    width: list[int] | None
    """Smallest and largest, in pixels; None with verify=none."""
    height: list[int] | None


class ShardEntry(FileEntry):
    """One shard file."""

    split: str
    first: NonNegativeInt
    """Place of the shard's first sample in the index."""
    samples: NonNegativeInt
    """Samples of it that are in the index."""
    tombstones: NonNegativeInt = 0
    """Samples in the file that are gone from the source, or changed there: the index leaves them out."""
    images: ImageStatistics | None = None
    """What the file holds, tombstones included."""
    changed: dict[str, int] = Field(default={})
    """Number of its images that needed each change, tombstones included."""
    rows_crc32c: Annotated[str, Field(pattern=r"^([0-9a-f]{8})?$")] = ""
    """crc32c of its rows in the index (records/index_parts.py); empty in index version 1."""


class FieldEntry(Document):
    """One field of the samples."""

    kind: FieldKind
    place: NonNegativeInt = 0
    """Place in the order of `sharding.fields`: a document sorts names."""
    classes: list[str] = Field(default=[])
    """Names of the classes of a field of kind class or classes, written as in `ShardManifest.classes`; a value is a
    place in this list. Empty for other kinds."""
    column: str = ""
    """Column of the source that it was read from; empty: of class folders or adopted shards."""


class TokenizerEntry(FileEntry):
    """The tokenizer of a field of text: a file of the library `tokenizers`, in the folder of the shards."""

    field: str
    tokens: int
    """Number of its tokens: identifiers are below it."""
    padding: int
    """Identifier of the token that sequences are padded with."""
    trained: bool
    """Whether the shard stage has trained it on the training split."""


class IndexPart(FileEntry):
    """One file of an index of version 2: the rows of some shards of one split, and their columns."""

    first: NonNegativeInt
    """Place of its first sample in the index."""
    samples: NonNegativeInt


class Rejected(Document):
    """A file that was left out of the shards."""

    path: str
    """Path relative to the source, percent-encoded where it is not plain text; '%' always is."""
    reason: str


class Copy(Document):
    """One of several images with the same bytes."""

    path: str
    """Path in the source, encoded as in `Rejected`."""
    split: str
    label: int


class DuplicateGroup(Document):
    """Images with the same bytes."""

    sha256: str = ""
    """Hash of their content; empty for rows without files."""
    copies: list[Copy]
    """At most 100 of them."""
    num_copies: int | None = None
    """Number of all of them; None: all are in `copies`."""


class Duplicates(Document):
    """What is known about images with the same bytes."""

    groups: int
    copies: int
    """Number of images beyond the first of each group."""
    leaking_groups: int
    """Groups with images in more than one split."""
    listed: list[DuplicateGroup]
    """The groups, those that leak first; at most 1,000."""


class Prepared(Document):
    """What sharding does to the pixels of images. An export's preprocess.json says the same, and predict.py does it."""

    background: str | None
    """Colour that transparent images were laid on: white, black or #rrggbb. None: transparency was dropped."""
    convert: list[str]
    """Kinds of change that were asked for: cmyk, depth, orientation."""
    resize: int | None
    """Shorter side in pixels that larger images were shrunk to."""
    jpeg_quality: int
    max_pixels: int
    """Most pixels of an image; larger ones were rejected."""
    changed: dict[str, int]
    """Number of images that needed each change."""
    made_with: dict[str, str] = Field(default={})
    """Versions of the libraries that made the new bytes; empty where no image was changed. Another version may make
    others, so they are recorded; they are not in the fingerprint."""


def _check_splits(splits: dict[str, SplitEntry]) -> dict[str, SplitEntry]:
    if missing := [name for name in SPLITS if name not in splits]:
        raise ValueError(f"no split {', '.join(missing)}; an empty one has 0 samples")
    return splits


class ShardManifest(Contract):
    """What the shards of a source hold."""

    FORMAT_VERSION: ClassVar[int] = 2

    kind: Literal["shards"] = "shards"
    format_version: int = 2
    format: Literal["webdataset", "tfrecord"]
    seed: int
    classes: list[str]
    """Names of the classes, as text; one that is none is percent-encoded after `percent-encoded:`. A label is a place
    in this list. With `fields`, the classes of the label field: the first of kind class, else of kind classes; empty
    where there is neither."""
    multi_label: bool = False
    """Whether a sample may have several labels: they are in the shards as lists, and the index holds none."""
    fields: dict[str, FieldEntry] = Field(default={})
    """The fields that `sharding.fields` named, by name; empty where samples are an image and a label (see
    `sample_fields`)."""
    splits: Annotated[dict[str, SplitEntry], AfterValidator(_check_splits)]
    """train, validation and test, each of them, also where it is empty."""
    shards: Sequence[ShardEntry]
    """In a document of more than 10,000 shards empty: they are in `shard_table`, and `load` reads them from there."""
    shard_table: FileEntry | None = None
    """The entries of all shards as a packed table; None where they are in the document."""
    index: FileEntry | None = None
    """The packed index of all samples, version 1 (records/index.py); None where it is in parts."""
    index_parts: list[IndexPart] = Field(default=[])
    """The files of an index of version 2, in the order of their rows."""
    rejected: list[Rejected]
    """Files that are no usable images by their content; at most 10,000 of them."""
    num_rejected: int | None = None
    """Number of all of them; None: all are in `rejected`."""
    ignored: list[str] = Field(default=[])
    """Files and folders of the source that are no images by their name, encoded as in `rejected`; at most 10,000."""
    num_ignored: int | None = None
    """Number of all of them; None: all are in `ignored`."""
    warnings: list[str] = Field(default=[])
    """What was remarked about the source; shown again by every run that uses these shards."""
    mean: list[float] | None = None
    """Mean of the red, green and blue channel, in [0, 1], over all pixels of at most 10,000 images of the training
    split; None where no image was decoded."""
    std: list[float] | None = None
    """Standard deviation of the channels over the same pixels."""
    verify: Literal["decode", "header", "none"] = "decode"
    """How images were checked."""
    images: ImageStatistics | None = None
    """What the shard files hold, tombstones included."""
    prepared: Prepared | None = None
    """None where samples have no image, or the shards were made elsewhere."""
    duplicates: Duplicates | None = None
    """None where no two images have the same bytes."""
    tokenizer: TokenizerEntry | None = None
    """The tokenizer of `sharding.tokenizer`; None where it is not set."""
    parent: str | None = None
    """Fingerprint of the manifest whose shards are reused: a folder beside this one; None where all were written."""
    sources: FileEntry | None = None
    """What each sample of the index was made of (sharding/sources/reference.py): an increment needs it."""
    tombstones: FileEntry | None = None
    """Samples that lie in reused shards and are gone, in the form of an index; None where there are none."""
    code_version: str = ""
    """Version of the package that wrote the shards."""
    key: str = ""
    """Part of the names of all files: hash of the fingerprint and of `made_with`; empty of adopted shards."""
    made_with: dict[str, str] = Field(default={})
    """Versions of what decides bytes. They are in no fingerprint: an upgrade is no reason to shard again."""

    @property
    def sample_fields(self) -> dict[str, FieldEntry]:
        """Fields of the samples by name, in the order of the configuration; without `fields` image and label."""
        if self.fields:
            return dict(sorted(self.fields.items(), key=lambda item: item[1].place))
        kind: FieldKind = "classes" if self.multi_label else "class"
        label = FieldEntry(kind=kind, place=1, classes=self.classes)
        return {"image": FieldEntry(kind="image"), "label": label}

    @property
    def label_field(self) -> str | None:
        """Name of the field whose classes are `classes`: the first of kind class, else of kind classes."""
        return find_label({name: entry.kind for name, entry in self.sample_fields.items()})

    @property
    def image_field(self) -> str | None:
        """Name of the first field of kind image: the one that was converted, resized and measured."""
        return find_image({name: entry.kind for name, entry in self.sample_fields.items()})

    @property
    def whole_samples(self) -> bool:
        """Whether the index says where whole samples lie (version 2), not their images alone."""
        return self.index is None

    @property
    def count_rejected(self) -> int:
        """Number of files that were left out by their content."""
        return len(self.rejected) if self.num_rejected is None else self.num_rejected

    @property
    def count_ignored(self) -> int:
        """Number of files and folders that are no images by their name."""
        return len(self.ignored) if self.num_ignored is None else self.num_ignored

    def index_files(self) -> list[FileEntry]:
        """Return the files of the index: one in version 1, the parts in version 2."""
        return list(self.index_parts) if self.index is None else [self.index]

    def owned_files(self) -> list[FileEntry]:
        """Return the shards, the index and what goes with it."""
        others = (self.shard_table, self.sources, self.tombstones, self.tokenizer)
        beside: list[FileEntry] = [entry for entry in others if entry is not None]
        return [*self.shards, *self.index_files(), *beside]

    @field_serializer("shards", mode="wrap")
    def _write_shards(self, shards: Sequence[ShardEntry], write: SerializerFunctionWrapHandler) -> Any:
        """Leave out of the document what is in the table: what was loaded is written as it was."""
        return write([] if self.shard_table is not None else shards)

    @classmethod
    def load(cls, folder_uri: str) -> Self:
        """Read the manifest of a folder (or the document itself, when its own URI is given), and its table of shards.

        Raises:
            DataError: There is no such document, or its table is missing or damaged.
        """
        manifest = super().load(folder_uri)
        if manifest.shard_table is None:
            return manifest
        folder_uri = folder_uri.rpartition("/")[0] if folder_uri.endswith(".json") else folder_uri
        return manifest.model_copy(update={"shards": load_table(folder_uri, manifest.shard_table)})
