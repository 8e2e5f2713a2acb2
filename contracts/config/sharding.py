"""Section `sharding`: from raw images to shards."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, model_validator
from pydantic_core import PydanticCustomError

from contracts.config.base import Fraction, PositiveInt, Section, refusal
from contracts.config.fields import FILE_KINDS, FieldName, FieldSection, order_fields

SPLITS = ("train", "validation", "test")


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


class ConvertSection(Section):
    """What is changed in images, once, while sharding. An image that needs no change keeps its bytes."""

    cmyk: bool = False
    """Whether CMYK becomes RGB."""
    depth: bool = False
    """Whether 16 bits a channel become 8."""
    orientation: bool = False
    """Whether pixels are turned as their EXIF orientation says; otherwise nothing heeds it, in training neither."""


class TokenizerSection(Section):
    """The tokenizer of a field of text: a file of the library `tokenizers`, or one that the shard stage trains.

    A trained one is a byte-level BPE on the training split: no text is unknown to it.
    """

    field: FieldName = "text"
    """Field of kind text."""
    file: str = ""
    """URI or path of a tokenizer.json, or of a folder of transformers that has one. Unset: one is trained."""
    vocabulary: Annotated[int, Field(strict=True, ge=300, le=1 << 20)] = 8000
    """Most tokens of a trained one, the 256 bytes and the special tokens among them."""
    text_bytes: Annotated[int, Field(strict=True, ge=1 << 10, le=4 << 30)] = 100 << 20
    """Most bytes of text that it is trained on: of the first samples of the training split, in their order."""


class ShardingSection(Section):
    """From raw images to shards."""

    source: str = ""
    """Folder or URI with one folder of images per class, or a manifest that lists them (.csv, .jsonl or .parquet) by
    the columns below. {date} in it stands for the day that a schedule fired for, YYYY-MM-DD; without one, for today
    (UTC)."""
    uri_column: Annotated[str, Field(min_length=1)] = "uri"
    """Column (or key) of a manifest that holds the image's URI or its path relative to the manifest's folder."""
    label_column: Annotated[str, Field(min_length=1)] = "label"
    """Column (or key) of a manifest that holds the class: text or a whole number, or a list of these; in a CSV a list
    is written as JSON: `["a", "b"]`."""
    fields: Annotated[dict[FieldName, FieldSection], Field(max_length=64), AfterValidator(order_fields)] = {}
    """Fields of a sample by name: column and kind of each, in place of uri_column and label_column. Without a field of
    kind image or bytes the rows of the file are the samples themselves. Unset: the fields image and label."""
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
    seed: Annotated[int, Field(strict=True, ge=0, lt=2**63)] = 0
    """Decides the place of the samples within their split; run.seed does not, so runs of several seeds share shards."""
    splits: SplitFractions = SplitFractions()
    """Share of the samples in each split, where the source does not give their split."""
    target_shard_bytes: Annotated[int, Field(strict=True, ge=1024)] = 128 << 20
    """Size of a shard to aim at, in bytes of the source files."""
    min_shards: PositiveInt = 1
    """Least number of shards per split (never more than it has samples)."""
    verify: Literal["decode", "header", "none"] = "decode"
    """What is checked of every image on the way: that it decodes, that its header can be read, or nothing but its kind
    by its first bytes (then sizes, and mean and std of the channels, are unknown)."""
    max_rejected_fraction: Fraction = 0.01
    """Share of the files that may be unreadable as images before the stage fails."""
    duplicates: Literal["warn", "fail", "off"] = "warn"
    """What is done about images with the same bytes: named in the manifest and a warning; an error; or they are not
    looked for."""
    stratify: bool = True
    """Whether a class whose hashes leave a split empty gives it the sample nearest to it, where it has enough. Not
    where the source gives splits or groups; in an increment old samples keep their split."""
    background: Annotated[str, Field(pattern=r"^(#[0-9a-f]{6}|white|black)$")] = "white"
    """Colour that transparent images are laid on, with verify=decode: white, black or #rrggbb."""
    max_pixels: Annotated[int, Field(strict=True, ge=1, le=1 << 32)] = (1 << 30) // 4 // 3
    """Most pixels (width times height) of an image, with verify=decode or header; larger ones are rejected. Decoding
    takes 3 bytes per pixel, of 16 bits per channel up to 9. The default is 89 megapixels."""
    file_timeout_s: PositiveInt = 120
    """Seconds that looking at one file may take; a file that took longer twice is rejected."""
    incremental: bool = False
    """Whether shards of an earlier state of the source are reused, so that only what is new or changed is written."""
    tokenizer: TokenizerSection | None = None
    """The tokenizer that lies with the shards, for tasks that read text. Unset: none."""
    convert: ConvertSection = ConvertSection()
    """What is changed in images; needs verify=decode."""
    resize: Annotated[int, Field(strict=True, ge=8, le=16384)] | None = None
    """Shorter side in pixels that larger images are shrunk to; needs verify=decode. Unset: images keep their size."""
    jpeg_quality: Annotated[int, Field(strict=True, ge=1, le=100)] = 90
    """JPEG quality of images that convert or resize has changed, where their source was lossy (JPEG, WebP)."""

    @model_validator(mode="before")
    @classmethod
    def _read_as_meant(cls, values: Any) -> Any:
        """Take `false` for `off`, and refuse a colour that YAML took for a comment."""
        if not isinstance(values, dict):
            return values
        if values.get("duplicates") is False:
            values = {**values, "duplicates": "off"}
        if "background" in values and values["background"] is None:
            raise ValueError(
                'background is empty: # begins a comment in YAML, so a colour stands in quotes ("#ff0000")'
            )
        return values

    @property
    def shard_format(self) -> Literal["webdataset", "tfrecord"]:
        """Format of the shards, `auto` decided."""
        if self.format != "auto":
            return self.format
        has_files = not self.fields or any(field.kind in FILE_KINDS for field in self.fields.values())
        return "webdataset" if has_files else "tfrecord"

    @model_validator(mode="after")
    def _fields_alone_name_columns(self) -> ShardingSection:
        if not self.fields:
            return self
        for name in ("uri_column", "label_column"):
            # By value: a configuration that was written out names every field.
            if getattr(self, name) != type(self).model_fields[name].default:
                raise ValueError(f"{name} is not used beside fields: name the column there, or unset it")
        return self

    @model_validator(mode="after")
    def _tokenizer_has_text(self) -> ShardingSection:
        if self.tokenizer is not None:
            field = self.fields.get(self.tokenizer.field)
            if field is None or field.kind != "text":
                raise _no_text(self.tokenizer.field, self.fields)
        return self

    @model_validator(mode="after")
    def _changes_need_pixels(self) -> ShardingSection:
        if self.verify != "decode" and (self.resize or self.convert != ConvertSection()):
            raise ValueError(f"convert and resize need verify=decode, not {self.verify}")
        return self


def _no_text(name: str, fields: dict[str, FieldSection]) -> PydanticCustomError:
    """Return the error of a tokenizer whose field has no texts."""
    texts = [one for one, field in fields.items() if field.kind == "text"]
    reads = f"sharding.tokenizer reads the field {name!r}"
    todo = f"map a column to it: sharding.fields: {{{name}: {{column: ..., kind: text}}}}; or unset sharding.tokenizer"
    if name in fields:
        given = f"{reads}, which is of kind {fields[name].kind}"
        todo = f"set sharding.fields.{name}.kind=text, or unset sharding.tokenizer"
    elif texts:
        given = f"{reads}, and sharding.fields has none of that name: its field of kind text is {texts[0]!r}"
        todo = f"name the field {name} instead of {texts[0]} (task text_classification reads the field text); "
        todo += f"for a task of your own, set sharding.tokenizer.field={texts[0]}"
    else:
        given = f"{reads}, and sharding.fields has no field of kind text"
    return refusal(given, allowed="a field of kind text", todo=todo)
