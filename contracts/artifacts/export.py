"""What the export stage leaves: graphs, engines, what they need to be used, and the proof."""

from __future__ import annotations

import hashlib
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from contracts import storage
from contracts.artifacts.document import Contract, Document, FileEntry
from contracts.errors import DataError

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
    """Share of samples with the reference's most likely class."""
    reference_classes: int | None = None
    """Number of different classes that the reference predicts: with fewer than five, agreement on them says nothing."""
    passed: bool | None = None
    """None when nothing ran."""


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
    accuracy: dict[str, float]
    """Share of right answers of the exported graphs on the test split, by precision; `torch` beside them."""
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
        return None if "fp32" in self.accuracy else "the manifest has no accuracy of fp32"

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


def hash_content(uri: str) -> str:
    """Return the sha256 of a file or object, read in pieces."""
    digest = hashlib.sha256()
    with storage.open_read(uri) as stream:
        while piece := stream.read(1 << 22):
            digest.update(piece)
    return digest.hexdigest()
