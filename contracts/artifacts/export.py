"""What the export stage leaves: graphs, engines, what they need to be used, and the proof."""

from __future__ import annotations

import hashlib
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, SerializerFunctionWrapHandler, model_serializer

from contracts import storage
from contracts.artifacts.document import Contract, Document, FileEntry
from contracts.artifacts.evaluation import FORMER_HEADLINE, FORMER_TASK, Headline
from contracts.artifacts.signature import OutputSpec, Signature, TensorSpec
from contracts.errors import DataError

# Fields that came after release 0.1.0, with their defaults: they are left out there, so that seals of documents that
# lack them stay right.
_SINCE_0_1: dict[str, Any] = {
    "task": FORMER_TASK,
    "signature": None,
    "accuracy": {},
    "metrics": {},
    "headline": FORMER_HEADLINE,
}

Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
Status = Literal["passed", "failed", "not decidable", "not run"]
Figure = float | int | str | bool | None


class Gate(Document):
    """One condition that an export must meet, and what was found."""

    name: str
    """parity, top1, batch, range, reference, accuracy, coverage, bundle, `engine TARGET` (engine sm89); those of
    `shardline verify` are checksum, repository, bundle, `engine TARGET`."""
    precision: str
    """Precision of the graph that it is about."""
    status: Status
    ran: str
    """What computed the figures, with its version; or `not run: ...`, with the reason."""
    figures: dict[str, Figure] = Field(default={})
    """What was measured, by name."""
    limits: dict[str, float] = Field(default={})
    """What the figures must keep to, by the figure's name."""
    reason: str = ""
    """Why it failed, is not decidable, or did not run."""


class OutputParity(Document):
    """How far one output of an exported graph is from torch's."""

    relative_error: float
    """Largest absolute difference over the range of the reference."""
    min_cosine: float
    """Smallest cosine of a sample's numbers with the reference's; of fewer than five numbers a sample, the cosine over
    all samples."""
    top1_agreement: float | None = None
    """Share of answers that are the reference's, of an output that is compared as classes."""
    reference_classes: int | None = None
    """Number of different answers of the reference."""
    many_answers: bool = False
    """Whether a sample has more than one answer (an image's pixels)."""


class Parity(Document):
    """How far an exported graph is from torch on the same inputs: of several outputs, the worst one."""

    ran: str
    """What computed the outputs, with its version; or `not run: ...`."""
    samples: int = 0
    relative_error: float | None = None
    """Largest absolute difference over the range of the reference."""
    min_cosine: float | None = None
    """Smallest cosine of a sample's outputs with the reference's."""
    top1_agreement: float | None = None
    """Share of answers that are the reference's; None where no output is compared as classes."""
    reference_classes: int | None = None
    """Number of different classes that the reference predicts: with fewer than five, agreement on them says nothing."""
    passed: bool | None = None
    """None when nothing ran."""
    outputs: dict[str, OutputParity] = Field(default={})
    """By output, where there are several, or several answers a sample."""

    @model_serializer(mode="wrap")
    def _as_before(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        return _left_out(handler(self), {"outputs": {}})


class Attempt(Document):
    """One precision that was tried, and what became of it."""

    precision: str
    kept_fp32: list[str] = Field(default=[])
    """Nodes that were kept in fp32."""
    outcome: Literal["kept", "failed"]
    reason: str = ""
    """The gates that failed, with their figures."""


class ShippedFile(FileEntry):
    """A file of an export. A crc32c finds damage; whoever changes a file on purpose can keep it, but not the sha256."""

    sha256: Sha256

    @classmethod
    def of(cls, folder_uri: str, name: str) -> ShippedFile:
        """Describe the file `name` below `folder_uri`; it is read twice, for its crc32c and its sha256."""
        entry = FileEntry.of(folder_uri, name)
        return ShippedFile(**entry.model_dump(), sha256=hash_content(entry.uri(folder_uri)))


class GraphEntry(ShippedFile):
    """An ONNX file."""

    precision: str
    kept_fp32: list[str] = Field(default=[])
    """Nodes of an fp16 graph that compute in fp32."""


class EngineTensor(Document):
    """An input or output of an engine."""

    mode: Literal["input", "output"]
    name: str
    dtype: str
    """Type in the builder's terms (float, half)."""
    shape: list[int]
    """-1: the batch."""


class EngineEntry(ShippedFile):
    """An engine file: all that is known of it was taken from the build, since only a GPU opens it.

    Its sha256 is the file's: two builds of one graph may be different bytes.
    """

    onnx_sha256: Sha256
    """Of the graph that it was built from."""
    builder: str
    """Package and version that built it."""
    precision: str
    target: Annotated[str, Field(pattern=r"^sm[0-9]{2,3}$")]
    """Compute capability it was built for (sm89); also the name of its verification."""
    gpus: list[str] = Field(default=[])
    """Names of GPUs with this compute capability."""
    min_batch: int
    opt_batch: int
    max_batch: int
    tensors: list[EngineTensor] = Field(default=[])
    build_s: float
    """Seconds of the build, its process's start included."""
    peak_bytes: int
    """Largest resident memory of the build's process."""


class Calibration(Document):
    """The training images whose activations were looked at."""

    samples: int
    seed: int
    shards_fingerprint: str
    sha256: Sha256
    """Hash over the keys of the samples, in order."""


class Latency(Document):
    """How long a batch takes."""

    runner: str
    """What ran it: engine, torch eager, torch.compile, onnxruntime; with version and device."""
    precision: str
    device: str
    batch: int
    p50_ms: float
    p90_ms: float
    p99_ms: float
    images_per_s: float
    repeats: int


class ExportManifest(Contract):
    """The exported graphs, the engines, and the proof."""

    FORMAT_VERSION: ClassVar[int] = 2

    kind: Literal["export"] = "export"
    format_version: int = 2
    precision: str
    """What ships: of the engines, and of `predict`."""
    asked_precision: str
    """What the configuration asked for."""
    tried: list[Attempt]
    """In the order in which they were tried; the last one ships."""
    verdict: Literal["proven", "unproven"]
    """proven: every engine ran and passed; otherwise `shardline verify` on their GPUs completes the proof
    (contracts.proof says how far it is)."""
    opset: int
    task: str = FORMER_TASK
    """Name of the task that was learnt."""
    signature: Signature | None = None
    """Of the model; None in documents of release 0.1.0 (`model_signature` is never None)."""
    inputs: dict[str, list[str | int]]
    """Name and shape of each input; `batch` is dynamic."""
    outputs: dict[str, list[str | int]]
    graphs: list[GraphEntry]
    """fp32 first, the one that ships last."""
    engines: list[EngineEntry]
    """One for each target, all of the precision that ships."""
    gates: list[Gate]
    parity: dict[str, dict[str, Parity]]
    """By what ran: `onnx` (ONNX Runtime without graph optimisation) by precision, `engine` by target."""
    accuracy: dict[str, float] = Field(default={})
    """In documents of release 0.1.0: the metric accuracy, by precision (`headline_values` has it of every document)."""
    metrics: dict[str, dict[str, float]] = Field(default={})
    """The task's metrics, and `loss`, of the exported graphs on the test split: by precision, then by name; `torch`
    beside them."""
    headline: Headline = Headline.model_validate(FORMER_HEADLINE)
    """Of the task."""
    test_samples: int
    coverage: dict[str, dict[str, float]] = Field(default={})
    """By precision: the shares of weight bytes and of operators that have it."""
    calibration: Calibration | None = None
    latency: list[Latency] = Field(default=[])
    latency_left_out: dict[str, str] = Field(default={})
    """What the bench did not measure, and why, by runner."""
    checkpoint_sha256: str
    """parameters_sha256 of the checkpoint."""
    shards_fingerprint: str
    """Of the shards that it was trained on; their test split is the proof's."""
    made_with: dict[str, str]
    """Versions of the packages that made it."""
    steps: dict[str, dict[str, float]] = Field(default={})
    """Seconds and peak resident bytes of each step's process, by step."""
    files: list[ShippedFile]
    """All other files: labels, preprocessing, predict.py, weights, the model card, the Triton repository."""
    seal: str = ""
    """Hash of the rest of this document: targets and profiles have no file whose hash would show that they changed."""

    @model_serializer(mode="wrap")
    def _as_before(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        return _left_out(handler(self), _SINCE_0_1)

    @property
    def model_signature(self) -> Signature:
        """The signature of the model; of release 0.1.0 that of its classifiers."""
        if self.signature is not None:
            return self.signature
        return Signature(
            inputs={name: TensorSpec(dtype="float32", shape=shape) for name, shape in self.inputs.items()},
            outputs={
                name: OutputSpec(dtype="float32", shape=shape, compare="classes")
                for name, shape in self.outputs.items()
            },
        )

    @property
    def headline_values(self) -> dict[str, float]:
        """The headline metric by precision."""
        metric = self.headline.metric
        found = {name: values[metric] for name, values in self.metrics.items() if metric in values}
        return found or self.accuracy

    def sealed(self) -> ExportManifest:
        """Return the document with its seal."""
        return self.model_copy(update={"seal": self._digest()})

    @property
    def is_sealed(self) -> bool:
        """Whether nothing was changed since it was sealed."""
        try:
            return self.seal == self._digest()
        except ValueError:  # a NaN, which no stage writes
            return False

    def _digest(self) -> str:
        return self.model_copy(update={"seal": ""}).sha256

    def find_contradiction(self) -> str | None:
        """Return what is wrong with the document itself, or None: unless it is None, nothing in it can be trusted."""
        if not self.is_sealed:
            return "the manifest was changed after it was written"
        precisions = {entry.precision for entry in self.graphs}
        missing = [name for name in ("fp32", self.precision) if name not in precisions]
        if missing:
            return f"the manifest has no graph of {missing[0]}"
        return None if "fp32" in self.headline_values else f"the manifest has no {self.headline.metric} of fp32"

    def shipped_files(self) -> list[ShippedFile]:
        """Return everything that ships."""
        return [*self.files, *self.graphs, *self.engines]

    def owned_files(self) -> list[FileEntry]:
        """Return everything that ships."""
        return [*self.shipped_files()]

    def graph(self, precision: str | None = None) -> GraphEntry:
        """Return the graph of a precision; without one, the graph that ships.

        Raises:
            DataError: There is none.
        """
        wanted = precision or self.precision
        for entry in self.graphs:
            if entry.precision == wanted:
                return entry
        raise DataError(
            f"the manifest has no graph of {wanted}",
            allowed=", ".join(entry.precision for entry in self.graphs) or "an export with graphs",
            todo="copy the whole folder again, or export again",
        )


class Verification(Contract):
    """What `shardline verify` found on a GPU: it completes the proof of that target's engine.

    It lies beside the manifest as verified/TARGET.json.
    """

    kind: Literal["verification"] = "verification"
    export_sha256: Sha256
    """Hash of the manifest."""
    engine_sha256: Sha256
    target: str
    device: str
    """Name of the GPU that ran it."""
    gates: list[Gate]
    latency: list[Latency] = Field(default=[])


def _left_out(values: dict[str, Any], defaults: dict[str, Any]) -> dict[str, Any]:
    """Return values without those that are at their defaults."""
    return {name: value for name, value in values.items() if name not in defaults or value != defaults[name]}


def hash_content(uri: str) -> str:
    """Return the sha256 of a file or object, read in pieces."""
    digest = hashlib.sha256()
    with storage.open_read(uri) as stream:
        while piece := stream.read(1 << 22):
            digest.update(piece)
    return digest.hexdigest()
