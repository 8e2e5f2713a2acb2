"""Section `sharding`: from raw data to shards."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, PlainSerializer, model_validator

from contracts.config.base import Fraction, Section, Seed, refusal

SPLITS = ("train", "validation", "test")
FieldKind = Literal["image", "text", "class", "classes", "number", "bytes", "json"]
# Kinds whose cells hold the URI or path of a file; all others hold their value.
FILE_KINDS: tuple[FieldKind, ...] = ("image", "bytes")
# Kinds whose values are names out of a list that the manifest holds.
CLASS_KINDS: tuple[FieldKind, ...] = ("class", "classes")
# What the path of a row without a file begins with: the rest is a hash.
ROW_PREFIX = "row:"
# It is part of the names of members of a tar, which have less than 100 bytes.
FieldName = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]*$", max_length=40)]


class FieldSection(Section):
    """Where a field of a sample comes from, and what it is."""

    column: Annotated[str, Field(min_length=1)]
    """Column of a CSV or Parquet file, or key of a JSONL file."""
    kind: FieldKind
    """image, bytes: URI or path of a file; text: text; class: one name out of a list; classes: several; number: a
    float; json: any JSON value."""


def read_fields(values: Any) -> Any:
    """Return fields as a mapping by name; a list has `name` in each, and keeps its order in JSON with sorted keys."""
    if not isinstance(values, list) or not all(isinstance(field, dict) for field in values):
        return values
    fields = {field.get("name"): {key: field[key] for key in field if key != "name"} for field in values}
    # A name that is there twice is refused, as a list is.
    return fields if len(fields) == len(values) else values


def list_fields(fields: Mapping[str, FieldSection]) -> list[dict[str, str]]:
    """Return fields as a list, in their order."""
    return [{"name": name, "column": field.column, "kind": field.kind} for name, field in fields.items()]


def find_label(kinds: Mapping[str, FieldKind]) -> str | None:
    """Return the label field of the index: the first of kind class, else of kind classes; `kinds` is ordered."""
    names = [name for kind in CLASS_KINDS for name, field_kind in kinds.items() if field_kind == kind]
    return names[0] if names else None


def find_image(kinds: Mapping[str, FieldKind]) -> str | None:
    """Return the first field of kind image."""
    return next((name for name, kind in kinds.items() if kind == "image"), None)


def find_file(kinds: Mapping[str, FieldKind]) -> str | None:
    """Return the field whose file names a sample: the first of kind image, else of kind bytes; None: rows alone."""
    names = [name for kind in FILE_KINDS for name, field_kind in kinds.items() if field_kind == kind]
    return names[0] if names else None


class SplitFractions(Section):
    """Share of the samples in each split, decided by a hash of the sample's relative path."""

    train: Fraction = 0.8
    """Share that is trained on."""
    validation: Fraction = 0.1
    """Share that evaluations during training are of."""
    test: Fraction = 0.1
    """Share that the finished model is evaluated on."""

    @model_validator(mode="after")
    def _sum_to_one(self) -> SplitFractions:
        total = self.train + self.validation + self.test
        if abs(total - 1) > 1e-6:
            raise ValueError(f"the fractions of train, validation and test sum to {total:g}, not to 1")
        if self.train == 0:
            raise ValueError("the fraction of train is 0: there would be nothing to train on")
        return self


class TokenizerSection(Section):
    """The tokenizer of the first field of kind text: a file of the library `tokenizers`, or one trained here.

    A trained one is a byte-level BPE on the first 100 MiB of the training split: no text is unknown to it.
    """

    file: str = ""
    """URI or path of a tokenizer.json, or of a folder of transformers that has one. Unset: one is trained."""
    vocabulary: Annotated[int, Field(strict=True, ge=300, le=1 << 20)] = 8000
    """Most tokens of a trained one, the 256 bytes and the special tokens among them."""


class ShardingSection(Section):
    """From raw images to shards."""

    source: str = ""
    """Folder or URI with one folder of images per class, or a manifest that lists them (.csv, .jsonl or .parquet).
    {date} in it stands for the day that a schedule fired for, YYYY-MM-DD; without one, for today (UTC)."""
    fields: Annotated[
        dict[FieldName, FieldSection],
        Field(max_length=64),
        BeforeValidator(read_fields),
        PlainSerializer(list_fields, when_used="json"),
    ] = {}
    """Fields of a sample by name: column (or key) and kind of each. The first image is changed and measured. Without a
    field of kind image or bytes the rows of the file are the samples themselves. Unset: `image` in
    column uri, and `label` in column label, a class or, in every row, a list of classes."""
    split_column: Annotated[str, Field(min_length=1)] = "split"
    """Column (or key) of a manifest that holds train, validation, test, or nothing for a split by hash; optional."""
    label_separator: str | None = None
    """Text between the labels of one cell, e.g. `|`; setting it makes the labels of the source lists."""
    group_by: str = ""
    """What must not straddle a split: a column of the manifest; for class folders a regular expression whose one
    group is found in the path, e.g. `(patient\\d+)`. Unset: every image is a group of its own."""
    format: Literal["auto", "webdataset", "tfrecord"] = "auto"
    """Format of the shards: WebDataset tar files or TFRecord files of tf.train.Example; `auto`: WebDataset where a
    field is an image or bytes, else TFRecord."""
    seed: Seed = 0
    """Decides the place of the samples within their split; run.seed does not, so runs of several seeds share shards."""
    splits: SplitFractions = SplitFractions()
    """Share of the samples in each split, where the source does not give their split."""
    target_shard_bytes: Annotated[int, Field(strict=True, ge=1024)] = 128 << 20
    """Size of a shard to aim at, in bytes of the source files."""
    verify: Literal["decode", "none"] = "decode"
    """What is checked of every image on the way: that it decodes, or nothing but its kind by its first bytes (then
    sizes, and mean and std of the channels, are unknown)."""
    max_rejected_fraction: Fraction = 0.01
    """Share of the files that may be unreadable as images before the stage fails."""
    # YAML reads off as false.
    duplicates: Annotated[
        Literal["warn", "fail", "off"], BeforeValidator(lambda value: "off" if value is False else value)
    ] = "warn"
    """What is done about images with the same bytes: named in the manifest and a warning; an error; or they are not
    looked for."""
    stratify: Literal["none", "exact"] = "none"
    """`exact`: each class is divided by the ranks of its samples' hashes, so that small sets get their exact shares; a
    new sample may then move others to another split, so increments refuse it. `none`: by the hashes alone."""
    background: Annotated[str, Field(pattern=r"^(#[0-9a-f]{6}|white|black)$")] = "white"
    """Colour that transparent images are laid on, with verify=decode: white, black or #rrggbb."""
    max_pixels: Annotated[int, Field(strict=True, ge=1, le=1 << 32)] = (1 << 30) // 4 // 3
    """Most pixels (width times height) of an image, with verify=decode; larger ones are rejected. Decoding
    takes 3 bytes per pixel, of 16 bits per channel up to 9. The default is 89 megapixels."""
    incremental: bool = False
    """Whether shards of an earlier state of the source are reused, so that only what is new or changed is written."""
    compare: Literal["times", "content"] = "times"
    """How a changed local file is known: by its size and modification time; or by its size and crc32c, which is read
    once and remembered by inode, size and time. Objects have generations."""
    max_class_shift: Fraction | None = None
    """Most that the classes' shares of the training split may differ from those of the run before: half the sum of all
    differences (total variation distance). Unset: a warning from 0.1 on, and from 200 samples. Runs of a whole line are
    compared."""
    new_classes: Literal["warn", "fail"] = "warn"
    """What is done about classes that the run before did not have: a warning, or an error."""
    tokenizer: TokenizerSection | None = None
    """The tokenizer that lies with the shards, for tasks that read text. Unset: none."""
    convert: Annotated[
        list[Literal["cmyk", "depth", "orientation"]], AfterValidator(lambda names: sorted(set(names)))
    ] = []
    """What is changed in images, once, while sharding: `cmyk` becomes RGB; `depth` of 16 bits a channel becomes 8;
    `orientation`: pixels are turned as their EXIF orientation says (otherwise nothing heeds it, in training neither).
    An image that needs no change keeps its bytes. Needs verify=decode."""
    resize: Annotated[int, Field(strict=True, ge=8, le=16384)] | None = None
    """Shorter side in pixels that larger images are shrunk to; needs verify=decode. Unset: images keep their size."""

    @property
    def sample_fields(self) -> Mapping[str, FieldSection]:
        """Fields of the samples; unset, an image in column uri, and its label or labels in column label."""
        label_kind: FieldKind = "classes" if self.label_separator else "class"
        default = {
            "image": FieldSection(column="uri", kind="image"),
            "label": FieldSection(column="label", kind=label_kind),
        }
        return self.fields or default

    @property
    def shard_format(self) -> Literal["webdataset", "tfrecord"]:
        """Format of the shards, `auto` decided."""
        if self.format != "auto":
            return self.format
        has_files = any(field.kind in FILE_KINDS for field in self.sample_fields.values())
        return "webdataset" if has_files else "tfrecord"

    @property
    def text_field(self) -> str | None:
        """Name of the first field of kind text, which the tokenizer reads."""
        return next((name for name, field in self.fields.items() if field.kind == "text"), None)

    @model_validator(mode="after")
    def _tokenizer_has_text(self) -> ShardingSection:
        if self.tokenizer is not None and self.text_field is None:
            raise refusal(
                "sharding.tokenizer reads a field of kind text, and sharding.fields has none",
                allowed="a field of kind text",
                todo="map a column to it: sharding.fields: {text: {column: ..., kind: text}}; or unset "
                "sharding.tokenizer",
            )
        return self

    @model_validator(mode="after")
    def _increments_are_stable(self) -> ShardingSection:
        if self.incremental and self.stratify != "none":
            raise refusal(
                f"sharding.stratify={self.stratify} beside sharding.incremental",
                allowed="stratify=none with increments: old samples keep their split when new ones come",
                todo="set sharding.stratify=none, or sharding.incremental=false",
            )
        return self

    @model_validator(mode="after")
    def _changes_need_pixels(self) -> ShardingSection:
        if self.verify != "decode" and (self.resize or self.convert):
            raise ValueError(f"convert and resize need verify=decode, not {self.verify}")
        return self
