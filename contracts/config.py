"""RunConfig: everything that a user can set, by section.

Values are resolved in contracts/resolve.py (defaults < YAML < `section.key=value`); no other module reads settings.
Every model is frozen and refuses unknown keys, so a typing mistake is found before anything is spent.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, field_validator, model_validator
from pydantic_core import PydanticCustomError

Auto = Literal["auto"]


def _refuse_bool(value: object) -> object:
    if isinstance(value, bool):
        raise PydanticCustomError("float_type", "a number")
    return value


# Not strict, since YAML reads 1e-3 as text; but true is no number, though Python says 1.
# It stands behind the bounds, which then are those of a float.
NotBool = BeforeValidator(_refuse_bool)
Fraction = Annotated[float, Field(ge=0, le=1), NotBool]
# Strict: true is no whole number, though Python says 1.
PositiveInt = Annotated[int, Field(strict=True, ge=1)]

SPLITS = ("train", "validation", "test")

# Beam runners that people ask for, and why they are no choice (docs/decisions/0001-beam-runners.md).
REFUSED_RUNNERS = {
    "dask": "Beam's DaskRunner reports DONE with wrong data: a second sink is skipped, finish_bundle's output is lost",
    "direct": "Beam's DirectRunner tries Prism first, which it downloads, and falls back silently: use fnapi",
    "prism": "Beam's PrismRunner is a binary that Beam downloads: start its job service yourself and use portable",
    "flink": "give the job service of Flink as resources.beam_job_endpoint and use portable",
    "spark": "give the job service of Spark as resources.beam_job_endpoint and use portable",
}


class Section(BaseModel):
    """Base of the sections: immutable, strict about keys, documented by the strings below the fields."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, use_attribute_docstrings=True)


class RunSection(Section):
    """Where a line lives and what its randomness starts from."""

    name: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9_-]{0,62}$")] = "line"
    """Name of the line: lower-case letters, digits, '-' and '_'."""
    root: str = "runs"
    """Folder or URI that holds lines; this line's files are below root/name."""
    seed: Annotated[int, Field(strict=True, ge=0, lt=2**63)] = 0
    """Start of all randomness: shards, order of samples, initial weights, augmentation."""


class SplitFractions(Section):
    """Share of the samples in each split, decided by a hash of the sample's relative path."""

    train: Fraction = 0.8
    validation: Fraction = 0.1
    test: Fraction = 0.1

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


class ShardingSection(Section):
    """From raw images to shards."""

    source: str = ""
    """Folder or URI with one folder of images per class, or a manifest that lists them (.csv, .jsonl or .parquet): in
    the simple form of the columns below, or in a form that Vertex AI imports."""
    uri_column: Annotated[str, Field(min_length=1)] = "uri"
    """Column (or key) of a manifest that holds the image's URI or its path relative to the manifest's folder."""
    label_column: Annotated[str, Field(min_length=1)] = "label"
    """Column (or key) of a manifest that holds the class: text or a whole number, or a list of these; in a CSV a list
    is written as JSON: `["a", "b"]`."""
    split_column: Annotated[str, Field(min_length=1)] = "split"
    """Column (or key) of a manifest that holds train, validation, test, or nothing for a split by hash; optional."""
    label_separator: str | None = None
    """Text between the labels of one cell, e.g. `|`; setting it makes the labels of the source lists."""
    group_by: str = ""
    """What must not straddle a split: a column of the manifest; for class folders and Vertex AI's forms a regular
    expression whose one group is found in the path, e.g. `(patient\\d+)`. Unset: every image is a group of its own."""
    format: Literal["webdataset", "tfrecord"] = "webdataset"
    """Format of the shards: WebDataset tar files or TFRecord files of tf.train.Example."""
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
    duplicates: Literal["warn", "fail", "drop"] = "warn"
    """What is done about images with the same bytes: named in the manifest and a warning; an error; or all but one left
    out, by writing the shards a second time. Of copies in several splits test keeps its own, then validation."""
    incremental: bool = False
    """Whether shards of an earlier state of the source are reused, so that only what is new or changed is written."""
    compact_share: Fraction = 0.2
    """Share of a reused shard's samples that may be gone from the source; above it the shard is written again."""
    convert: ConvertSection = ConvertSection()
    """What is changed in images; needs verify=decode."""
    resize: Annotated[int, Field(strict=True, ge=8, le=16384)] | None = None
    """Shorter side in pixels that larger images are shrunk to; needs verify=decode. Unset: images keep their size."""
    jpeg_quality: Annotated[int, Field(strict=True, ge=1, le=100)] = 90
    """JPEG quality of images that convert or resize has changed, where their source was lossy (JPEG, WebP)."""

    @model_validator(mode="after")
    def _changes_need_pixels(self) -> ShardingSection:
        if self.verify != "decode" and (self.resize or self.convert != ConvertSection()):
            raise ValueError(f"convert and resize need verify=decode, not {self.verify}")
        return self


class AugmentSection(Section):
    """Changes of training images beyond crop and flip; all off by default. All are keyed by sample."""

    rand_augment_ops: Annotated[int, Field(strict=True, ge=0, le=14)] = 0
    """RandAugment: operations drawn for each image; 0: none."""
    rand_augment_magnitude: Annotated[int, Field(strict=True, ge=0, le=30)] = 9
    """RandAugment: strength of the operations, of 30."""
    brightness: Annotated[float, Field(ge=0, le=10), NotBool] = 0.0
    """Colour jitter: brightness is multiplied by a factor from [max(0, 1 - value), 1 + value]."""
    contrast: Annotated[float, Field(ge=0, le=10), NotBool] = 0.0
    """Colour jitter: contrast, likewise."""
    saturation: Annotated[float, Field(ge=0, le=10), NotBool] = 0.0
    """Colour jitter: saturation, likewise."""
    hue: Annotated[float, Field(ge=0, le=0.5), NotBool] = 0.0
    """Colour jitter: hue is turned by a share of the circle from [-value, value]."""
    mixup_alpha: Annotated[float, Field(ge=0, le=100), NotBool] = 0.0
    """Mixup: both parameters of the Beta distribution that shares are drawn from; 0: off."""
    cutmix_alpha: Annotated[float, Field(ge=0, le=100), NotBool] = 0.0
    """CutMix: likewise. With mixup on as well, a coin decides for each image which of the two is done."""


class DataSection(Section):
    """How samples are read and turned into model input."""

    image_size: Annotated[int, Field(strict=True, ge=8, le=4096)] = 224
    """Side of the square model input, in pixels."""
    mean: Annotated[list[Fraction], Field(min_length=3, max_length=3)] | None = None
    """Mean of the red, green and blue channel in [0, 1]; unset: that of the training split."""
    std: Annotated[list[Annotated[float, Field(gt=0, le=1), NotBool]], Field(min_length=3, max_length=3)] | None = None
    """Standard deviation of the channels in (0, 1]; unset: that of the training split."""
    crop: Literal["center", "random_resized"] = "center"
    """Crop of training images; evaluation always takes the centre."""
    horizontal_flip: bool = False
    """Whether training images are mirrored with probability 1/2."""
    decode: Literal["scaled", "full"] = "scaled"
    """Training JPEGs at the smallest of 1/1, 1/2, 1/4 and 1/8 that is no smaller than the crop needs, or whole.
    Evaluation always decodes the whole image."""
    transform: Annotated[str, Field(pattern=r"^([\w.]+:\w+)?$")] = ""
    """`module:callable` that maps a training image [S, S, 3] uint8, cropped and flipped, to another; it may draw from
    python's, numpy's and torch's global generators, which are seeded for each sample. Unset: none."""
    augment: AugmentSection = AugmentSection()
    """Augmentation, in this order: RandAugment, colour jitter, mixup or CutMix."""
    augment_device: Literal["cpu", "gpu"] = "cpu"
    """Where RandAugment and colour jitter are computed: by image in the loader processes, or by slot on the GPU."""
    on_bad_sample: Literal["fail", "replace"] = "fail"
    """What a damaged or undecodable training sample does: ends training, or is replaced by the next of its class."""
    order: Literal["auto", "full", "blocks"] = "auto"
    """Order of an epoch: `full`, a permutation of all samples; `blocks`, a permutation that reads long runs of bytes;
    `auto`: full for local files, blocks for a bucket. What a training began with holds to its end."""
    sampling: Literal["all", "balanced"] = "all"
    """Which samples an epoch takes: every one once, or equally many of each class (as many samples in all)."""
    canonical_streams: Annotated[int, Field(strict=True, ge=1, le=4096)] = 48
    """With order=blocks: streams that the samples are cut into. Ranks read no byte twice if their number divides it."""
    range_bytes: Annotated[int, Field(strict=True, ge=1024)] = 16 << 20
    """With order=blocks: size of the ranges that shards are cut into, in bytes."""
    block_bytes: Annotated[int, Field(strict=True, ge=1024)] = 32 << 20
    """With order=blocks: size of the blocks in which each stream is permuted, in bytes."""
    num_workers: Annotated[int, Field(strict=True, ge=0, le=256)] | Auto = "auto"
    """Loader processes per rank; `auto` takes the profile's choice."""
    prefetch_factor: Annotated[int, Field(strict=True, ge=1, le=64)] = 4
    """Slots that each loader process prepares ahead."""
    cache_dir: str = ""
    """Folder on a disk of this machine that keeps what was read from a bucket, from epoch to epoch and run to run; all
    processes of the machine may share it. Needs cache_bytes. Unset: what is read lies in memory."""
    cache_bytes: Annotated[int, Field(strict=True, ge=0)] = 0
    """Most bytes of shards in `cache_dir` (the index is not counted); 0: no cache on disk."""
    memory_bytes: Annotated[int, Field(strict=True, ge=1024)] = 4 << 30
    """Without a cache on disk: most bytes of a bucket's shards that lie in this machine's memory, for all its ranks."""

    @model_validator(mode="after")
    def _cache_has_a_place(self) -> DataSection:
        if bool(self.cache_dir) != (self.cache_bytes > 0):
            raise ValueError("cache_dir and cache_bytes are set together, or not at all")
        return self

    @model_validator(mode="after")
    def _balanced_needs_full(self) -> DataSection:
        if self.sampling == "balanced" and self.order == "blocks":
            raise ValueError("sampling=balanced needs order=full: a class is spread over all shards")
        return self


class ModelSection(Section):
    """The network."""

    architecture: str = "resnet"
    """A model type of transformers with an image-classification head (resnet, vit, ...), or `module:callable`."""
    arguments: dict[str, Any] = {}
    """Fields of the transformers configuration, or keyword arguments of the callable."""


class TrainSection(Section):
    """Optimisation. What is set here is never changed by the profile."""

    global_batch_size: PositiveInt = 256
    """Samples per optimizer step, over all ranks."""
    epochs: PositiveInt = 10
    """Passes over the training split."""
    learning_rate: Annotated[float, Field(gt=0), NotBool] = 1e-3
    """Peak learning rate of AdamW."""
    weight_decay: Annotated[float, Field(ge=0), NotBool] = 0.01
    """Decoupled weight decay; biases and normalisation weights are exempt."""
    warmup_fraction: Annotated[float, Field(ge=0, lt=1), NotBool] = 0.05
    """Share of all steps with a linearly rising learning rate; a cosine to 0 follows."""


class ParallelSection(Section):
    """How a step is spread over ranks."""

    strategy: Literal["ddp"] = "ddp"
    """DistributedDataParallel."""
    slot_size: PositiveInt | Auto = "auto"
    """Samples per forward pass; the global batch is cut into slots of this size. `auto` takes the profile's choice."""


class CheckpointSection(Section):
    """When checkpoints are written and which are kept. The best by validation accuracy is always kept."""

    every_steps: PositiveInt | None = None
    """Optimizer steps between checkpoints, besides the one at the end of each epoch; unset: only that one."""
    keep_last: PositiveInt = 2
    """Number of newest checkpoints kept."""


class ProfileSection(Section):
    """What the profiling run tries."""

    slot_sizes: Annotated[list[PositiveInt], Field(min_length=1)] | Auto = "auto"
    """Slot sizes to measure; `auto`: an even share of the global batch per rank, and its half and quarter."""
    num_workers: Annotated[list[Annotated[int, Field(strict=True, ge=0, le=256)]], Field(min_length=1)] | Auto = "auto"
    """Numbers of loader processes to measure; `auto`: 0, 1, 2, ... doubling up to the cores of a rank."""
    window_s: Annotated[float, Field(ge=0.05, le=60), NotBool] = 0.5
    """Length of one measurement, in seconds; each point is measured three times."""


class ExportSection(Section):
    """From the best checkpoint to an engine."""

    precision: Literal["fp32", "fp16"] = "fp16"
    """Precision carried by the ONNX graph that the engine is built from."""
    opset: Annotated[int, Field(strict=True, ge=20, le=24)] = 20
    """ONNX opset."""
    opt_batch: PositiveInt = 8
    """Batch size that the engine is tuned for."""
    max_batch: PositiveInt = 64
    """Largest batch size that the engine accepts; the smallest is 1."""

    @model_validator(mode="after")
    def _ordered(self) -> ExportSection:
        if self.opt_batch > self.max_batch:
            raise ValueError(f"opt_batch {self.opt_batch} is larger than max_batch {self.max_batch}")
        return self


class ResourcesSection(Section):
    """What the stages run on. Nothing here changes a result."""

    ranks: PositiveInt | Auto = "auto"
    """Training processes on this machine; `auto`: one per GPU, without a GPU two."""
    beam_runner: Literal["fnapi", "portable", "dataflow"] = "fnapi"
    """What the shard stage runs on: this machine, a Beam job service (Flink, Spark, ...), or Dataflow."""
    beam_workers: Annotated[int, Field(strict=True, ge=1, le=1024)] | Auto = "auto"
    """Worker processes of `fnapi`; `auto`: one per core where the work outweighs their start, else none."""
    read_threads: Annotated[int, Field(strict=True, ge=0, le=256)] | Auto = "auto"
    """Source files that a worker reads at a time; `auto`: 64 from a bucket, 0 from a file system; 0: one by one."""
    beam_job_endpoint: str = ""
    """HOST:PORT of the job service; needed by `portable`."""
    beam_environment_type: Literal["EXTERNAL", "DOCKER", "PROCESS", "LOOPBACK"] = "EXTERNAL"
    """How the job service of `portable` starts its workers."""
    beam_environment_config: str = ""
    """HOST:PORT of the worker pool (EXTERNAL), an image (DOCKER) or a JSON object (PROCESS)."""
    beam_silence_s: Annotated[float, Field(ge=5, le=3600), NotBool] = 20
    """Seconds without a sign of life from a worker of `portable` after which the job is given up (exit code 75)."""
    beam_idle_s: Annotated[float, Field(ge=5, le=86400)] = 300
    """Seconds in which no worker of `portable` is at work (they start, the service shuffles, or they are gone) after
    which the job is given up (exit code 75)."""
    beam_options: list[str] = []
    """Further flags for Beam, e.g. `--parallelism=8`; they come last and win."""

    @field_validator("beam_runner", mode="before")
    @classmethod
    def _refuse_runners(cls, value: object) -> object:
        key = str(value).lower().removesuffix("runner")
        if key in REFUSED_RUNNERS:
            raise ValueError(f"fnapi, portable or dataflow ({value} is refused: {REFUSED_RUNNERS[key]})")
        return value


class DataflowSection(Section):
    """What a Dataflow job of the shard stage runs on."""

    worker_image: str = ""
    """Container image of the workers: Beam and this project installed."""
    machine_type: str = "n1-standard-4"
    """Compute Engine machine type of the workers."""
    max_workers: Annotated[int, Field(strict=True, ge=1, le=4000)] = 32
    """Most worker machines that the job may grow to."""
    disk_gb: Annotated[int, Field(strict=True, ge=30, le=65536)] = 50
    """Disk of a worker, in GB: it holds the shards being written."""
    flexrs: bool = False
    """Flexible resource scheduling: cheaper machines, and a start that may wait for up to six hours."""
    temp_location: str = ""
    """gs:// folder for temporary files; unset: BUCKET/dataflow/temp beside the output."""
    staging_location: str = ""
    """gs:// folder for the staged graph; unset: `temp_location`."""


class VertexSection(Section):
    """Where in Google Cloud the line runs. Nothing here changes a result."""

    project: str = ""
    """Project id."""
    region: str = ""
    """Region of all jobs: that of the bucket."""
    network: str = ""
    """VPC network of the workers; unset: `default`."""
    subnetwork: str = ""
    """Subnetwork of the workers: regions/REGION/subnetworks/NAME."""
    public_ips: bool = True
    """Whether workers get addresses outside of the network."""
    service_account: str = ""
    """E-mail address of the account that workers act as; unset: the project's default."""
    kms_key: str = ""
    """Customer-managed encryption key: projects/P/locations/L/keyRings/R/cryptoKeys/K."""
    labels: dict[str, str] = {}
    """Labels of all jobs, for the bill."""
    dataflow: DataflowSection = DataflowSection()


class RunConfig(Section):
    """The whole configuration of a line."""

    run: RunSection = RunSection()
    sharding: ShardingSection = ShardingSection()
    data: DataSection = DataSection()
    model: ModelSection = ModelSection()
    train: TrainSection = TrainSection()
    parallel: ParallelSection = ParallelSection()
    checkpoint: CheckpointSection = CheckpointSection()
    profile: ProfileSection = ProfileSection()
    export: ExportSection = ExportSection()
    resources: ResourcesSection = ResourcesSection()
    vertex: VertexSection = VertexSection()

    @model_validator(mode="after")
    def _slot_fits_batch(self) -> RunConfig:
        slot = self.parallel.slot_size
        if slot != "auto" and slot > self.train.global_batch_size:
            raise ValueError(
                f"parallel.slot_size {slot} is larger than train.global_batch_size {self.train.global_batch_size}"
            )
        return self


# The sections that each stage is given. What a stage does not get cannot change its result.
STAGE_SECTIONS: dict[str, tuple[str, ...]] = {
    "shard": ("run", "sharding", "resources", "vertex"),
    "profile": ("run", "data", "model", "train", "parallel", "profile", "resources"),
    "train": ("run", "data", "model", "train", "parallel", "checkpoint", "resources"),
    "export": ("run", "data", "model", "export", "resources"),
}
STAGES = tuple(STAGE_SECTIONS)
