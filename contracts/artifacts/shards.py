"""Manifest of the shard stage: splits, classes, shard files and rejected files."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator
from itertools import accumulate
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import AfterValidator, Field, NonNegativeInt, PrivateAttr, model_validator

from contracts.artifacts.document import Contract, Crc32c, Document, FileEntry, FileName, SiblingName
from contracts.config import SPLITS, FieldKind
from contracts.config.sharding import find_image, find_label


class SplitEntry(Document):
    """One split of the data: a contiguous range of all samples."""

    first: NonNegativeInt
    """Place of the split's first sample among all samples."""
    samples: NonNegativeInt
    source_bytes: NonNegativeInt
    """Bytes of the source files."""
    samples_by_class: list[NonNegativeInt]
    """Number of samples of each class, in the order of `ShardManifest.classes`."""


class ImageStatistics(Document):
    """Formats and colour modes of the source images, sizes of the stored images."""

    formats: dict[str, int]
    """Number of images by format."""
    modes: dict[str, int]
    """Number of images by colour mode, in Pillow's terms; empty with verify=none."""
    width: list[int] | None
    """Smallest and largest, in pixels; None with verify=none."""
    height: list[int] | None


class ShardEntry(FileEntry):
    """One shard file, and its index."""

    split: str
    first: NonNegativeInt
    """Place of the shard's first sample among all samples."""
    samples: NonNegativeInt
    """Samples of it that are in the index."""
    tombstones: NonNegativeInt = 0
    """Samples in the file that were deleted or changed in the source; the index omits them."""
    index: FileEntry
    """Its index, NAME.idx.npy (records/index.py): beside the shard, or in the folder of a later increment."""


class Shards(Document):
    """The shards of a manifest in columns; `shards[number]` and iteration give `ShardEntry`.

    Columns are compact: a document of 100,000 shards has 5 MB. A column of folders or tombstones without a value is an
    empty list.
    """

    num_shards: dict[str, NonNegativeInt]
    """Number of shards of each split; shards follow each other in the order train, validation, test."""
    name: list[FileName]
    """File name of each."""
    bytes: list[NonNegativeInt]
    crc32c: list[Crc32c]
    samples: list[NonNegativeInt]
    index_bytes: list[NonNegativeInt]
    index_crc32c: list[Crc32c]
    folder: list[SiblingName] = Field(default=[])
    """As `FileEntry.folder`, of the shards."""
    index_folder: list[SiblingName] = Field(default=[])
    """As `FileEntry.folder`, of their indices."""
    tombstones: list[NonNegativeInt] = Field(default=[])

    _first: list[int] = PrivateAttr(default_factory=list)

    @property
    def first(self) -> list[int]:
        """Place of each shard's first sample among all samples."""
        return self._first

    def model_post_init(self, _: Any) -> None:
        """Add up the samples."""
        self._first = list(accumulate(self.samples, initial=0))[:-1]

    @model_validator(mode="after")
    def _check_lengths(self) -> Self:
        count = len(self.name)
        columns = (self.bytes, self.crc32c, self.samples, self.index_bytes, self.index_crc32c)
        optional = (self.folder, self.index_folder, self.tombstones)
        if any(len(column) != count for column in columns) or any(len(values) not in (0, count) for values in optional):
            raise ValueError("columns of different lengths")
        if sum(self.num_shards.values()) != count or set(self.num_shards) != set(SPLITS):
            raise ValueError(f"the splits have other shards than the {count} that are listed")
        return self

    @classmethod
    def of(cls, entries: Iterable[ShardEntry]) -> Shards:
        """Return shards, in the order of their splits, as columns."""
        shards = list(entries)

        def optional(values: list[Any]) -> list[Any]:
            return values if any(values) else []

        return cls(
            num_shards={split: sum(entry.split == split for entry in shards) for split in SPLITS},
            name=[entry.name for entry in shards],
            bytes=[entry.bytes for entry in shards],
            crc32c=[entry.crc32c for entry in shards],
            samples=[entry.samples for entry in shards],
            index_bytes=[entry.index.bytes for entry in shards],
            index_crc32c=[entry.index.crc32c for entry in shards],
            folder=optional([entry.folder for entry in shards]),
            index_folder=optional([entry.index.folder for entry in shards]),
            tombstones=optional([entry.tombstones for entry in shards]),
        )

    def numbers_of(self, split: str) -> range:
        """Return the numbers of the shards of a split."""
        first = sum(self.num_shards[name] for name in SPLITS[: SPLITS.index(split)])
        return range(first, first + self.num_shards[split])

    def locate(self, place: int) -> tuple[int, int]:
        """Return the number of the shard that holds a sample, and the sample's row in its index.

        Args:
            place: Of the sample among all samples.
        """
        shard = bisect_right(self._first, place) - 1
        return shard, place - self._first[shard]

    def __len__(self) -> int:
        return len(self.name)

    def __getitem__(self, number: int) -> ShardEntry:
        at = range(len(self))[number]
        name = self.name[at]
        # The columns are checked already.
        index = FileEntry.model_construct(
            name=index_name(name),
            bytes=self.index_bytes[at],
            crc32c=self.index_crc32c[at],
            folder=self.index_folder[at] if self.index_folder else "",
        )
        return ShardEntry.model_construct(
            name=name,
            bytes=self.bytes[at],
            crc32c=self.crc32c[at],
            folder=self.folder[at] if self.folder else "",
            split=next(split for split in SPLITS if at in self.numbers_of(split)),
            first=self._first[at],
            samples=self.samples[at],
            tombstones=self.tombstones[at] if self.tombstones else 0,
            index=index,
        )

    def __iter__(self) -> Iterator[ShardEntry]:  # type: ignore[override]
        return (self[number] for number in range(len(self)))


def index_name(shard_name: str) -> str:
    """Return the file name of a shard's index."""
    return f"{shard_name.rpartition('.')[0] or shard_name}.idx.npy"


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

    content: str
    """Hash of 64 bits of their content, crc32c and crc32 of it, as hex digits."""
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

    FORMAT_VERSION: ClassVar[int] = 4

    kind: Literal["shards"] = "shards"
    format_version: int = 4
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
    shards: Shards
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
    verify: Literal["decode", "none"] = "decode"
    """How images were checked."""
    images: ImageStatistics | None = None
    """What the shard files hold, tombstones included."""
    prepared: Prepared | None = None
    """None where samples have no image, or the shards were made elsewhere."""
    duplicates: Duplicates | None = None
    """Samples with the same content; None where nobody looked for them."""
    tokenizer: TokenizerEntry | None = None
    """The tokenizer of `sharding.tokenizer`; None where it is not set."""
    parent: str | None = None
    """Fingerprint of the manifest whose shards are reused: a folder beside this one; None where all were written."""
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
    def count_rejected(self) -> int:
        """Number of files that were left out by their content."""
        return len(self.rejected) if self.num_rejected is None else self.num_rejected

    @property
    def count_ignored(self) -> int:
        """Number of files and folders that are no images by their name."""
        return len(self.ignored) if self.num_ignored is None else self.num_ignored

    def owned_files(self) -> list[FileEntry]:
        """Return the shards, their indices and the tokenizer."""
        files: list[FileEntry] = [file for entry in self.shards for file in (entry, entry.index)]
        return files if self.tokenizer is None else [*files, self.tokenizer]
