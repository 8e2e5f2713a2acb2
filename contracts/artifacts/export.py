"""What the export stage leaves: graphs, engines, what they need to be used, and the proof."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

import google_crc32c
from pydantic import Field

from contracts import storage
from contracts.artifacts.document import Contract, Document, FileEntry
from contracts.artifacts.evaluation import Headline
from contracts.artifacts.signature import Signature
from contracts.config.stages import Runtime
from contracts.errors import DataError

# A fault that changes one answer in seven is seen by one of so many with a probability of 95 %: (6/7)^20 = 0.046.
LEAST_OTHER_ANSWERS = 20

Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
Status = Literal["passed", "failed", "not decidable", "not run"]
Figure = float | int | str | bool | None


class Gate(Document):
    """One condition that an export must meet, and what was found."""

    name: str
    """parity, top1, batch, sizes, evaluation, metric, speed, program, served, `engine TARGET` (engine sm89); those of
    `shardline verify` are checksum, program, served, `engine TARGET`."""
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
    answers: int | None = None
    """Number of answers that were compared: of each sample one, or one for each of its places."""
    reference_others: int | None = None
    """Those of them of which the reference's is not its most frequent one."""
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
    """Number of different classes that the reference predicts."""
    answers: int | None = None
    """Number of answers that were compared; None where no output is compared as classes."""
    reference_others: int | None = None
    """Those of them of which the reference's is not its most frequent one: with few, agreement says nothing."""
    passed: bool | None = None
    """None when nothing ran."""
    outputs: dict[str, OutputParity] = Field(default={})
    """By output, where there are several, or several answers a sample."""

    @property
    def has_few_answers(self) -> bool:
        """Whether agreement with the reference says nothing, since nearly all of its answers are one."""
        return self.reference_others is not None and self.reference_others < LEAST_OTHER_ANSWERS


class Attempt(Document):
    """One precision that was tried, and what became of it."""

    precision: str
    kept_fp32: list[str] = Field(default=[])
    """Modules of the model that were kept in fp32."""
    outcome: Literal["kept", "failed"]
    reason: str = ""
    """The gates that failed, with their figures."""


class ShippedFile(FileEntry):
    """A file of an export. A crc32c finds damage; whoever changes a file on purpose can keep it, but not the sha256."""

    sha256: Sha256

    @classmethod
    def of(cls, folder_uri: str, name: str) -> ShippedFile:
        """Describe the file `name` below `folder_uri`, which is read once."""
        return ShippedFile(name=name, **read_hashes(storage.join(folder_uri, *name.split("/")))._asdict())

    def damage(self, folder_uri: str, *, copy: Path | None = None) -> str | None:
        """Read the file and return what is wrong with it, or None.

        Args:
            folder_uri: Folder of the document.
            copy: File that what was read is written to.
        """
        try:
            found = read_hashes(self.uri(folder_uri), copy=copy)
        except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
            return f"{self.name} is missing"
        for kind, value in found._asdict().items():
            if value != getattr(self, kind):
                return f"{self.name} has {kind} {value}, its manifest says {getattr(self, kind)}"
        return None


class GraphEntry(ShippedFile):
    """An ONNX file."""

    precision: str
    kept_fp32: list[str] = Field(default=[])
    """Modules that compute in fp32 in an fp16 graph."""


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


NO_SERVER = "loads in Triton"
"""Of `Served.unproven`."""


class Served(Document):
    """The model that Triton loads, the settings that it loads it with, and how far these are proven.

    The gates of the shipping precision ran this file with these settings, on the provider that was there.
    """

    runtime: Runtime
    model: str
    """Path of the file below the export's folder; one of its graphs or engines."""
    sha256: Sha256
    """Of the file."""
    config: str
    """Path of config.pbtxt below the export's folder."""
    config_sha256: Sha256
    graph_level: int | None = None
    """ONNX Runtime's optimisation level as Triton's configuration has it (trainer/export/bundle/triton_config.py); None
    for a plan."""
    ran: str
    """What ran the file in the gates: package, version, provider and level."""
    gpu: str = ""
    """Compute capability (sm89) of the GPU that ran it there; empty: none did. For other GPUs it proves nothing: each
    kind has a plan of its own."""
    unproven: list[str] = Field(default=[])
    """What no gate has run, in words: a GPU's provider, fp16 arithmetic, the server itself."""

    def hashes(self) -> dict[str, str]:
        """Return the sha256 of the model and of its configuration, by path."""
        return {self.model: self.sha256, self.config: self.config_sha256}

    @property
    def is_proven(self) -> bool:
        """Whether the gates ran all of it but a server."""
        return not self.lacks

    @property
    def lacks(self) -> list[str]:
        """What no gate has run, but that a server loads it: no server is ever run here, and that holds nothing back."""
        return [what for what in self.unproven if what != NO_SERVER]

    def in_words(self) -> str:
        """Return file, hash and what ran it."""
        return f"{self.model} (sha256 {self.sha256[:12]}) ran by {self.ran}"


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
    p99_ms: float | None
    """None: of fewer than 100 calls there is none."""
    images_per_s: float
    """Samples a second: a CPU's over the time of its calls, one after the other; a GPU's over calls that are queued
    without waiting for each."""
    repeats: int
    cold_s: float | None = None
    """Seconds from opening it to its first answer, compilation included; of the first batch size that it ran."""


def two_figures(latency: Iterable[Latency]) -> list[tuple[Latency, Latency]]:
    """Return for each runner and precision its smallest batch, for latency, and its batch of the highest throughput."""
    by_runner: dict[tuple[str, str, str], list[Latency]] = {}
    for one in latency:
        by_runner.setdefault((one.runner, one.precision, one.device), []).append(one)
    return [
        (min(found, key=lambda one: one.batch), max(found, key=lambda one: one.images_per_s))
        for found in by_runner.values()
    ]


Container = Literal["tensor", "tuple", "dict"]
"""What a network returns its outputs in."""


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
    """proven: what is served ran as it is served, and every engine ran and passed; otherwise `shardline verify` on the
    engines' GPUs may complete the proof (contracts.proof says how far it is)."""
    opset: int
    task: str
    """Name of the task that was learnt."""
    signature: Signature
    """Of the model."""
    container: Container = "tensor"
    """What the network returns its outputs in."""
    task_calibration: dict[str, Any] = Field(default={})
    """Result of the task's `calibrate`, as the checkpoint has it."""
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
    metrics: dict[str, dict[str, float]] = Field(default={})
    """The task's metrics, and `loss`, of the exported graphs on the test split: by precision, then by name; `torch`
    beside them."""
    headline: Headline
    """Of the task."""
    test_samples: int
    """Samples of the test split."""
    proof_samples: int | None = None
    """How many of them the gates ran, drawn by class; None where they ran all. Metrics are of these."""
    proof_seed: int | None = None
    """What they were drawn by."""
    served: Served
    """What Triton loads."""
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

    @property
    def measured_samples(self) -> int:
        """Samples of the test split that the metrics are of."""
        return self.proof_samples or self.test_samples

    @property
    def headline_values(self) -> dict[str, float]:
        """The headline metric by precision."""
        metric = self.headline.metric
        return {name: values[metric] for name, values in self.metrics.items() if metric in values}

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
        hashes = {entry.name: entry.sha256 for entry in self.shipped_files()}
        for name, sha256 in self.served.hashes().items():
            if hashes.get(name) != sha256:
                return f"the manifest's {name} is not the one that the gates ran"
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
    """What `shardline verify` found on a GPU: it completes the proof of that target's engine, or of what is served.

    It lies beside the manifest as verified/TARGET.json, or as verified/served.GPU.json of the ONNX file that Triton
    loads: for one kind of GPU, as each has a plan of its own.
    """

    kind: Literal["verification"] = "verification"
    export_sha256: Sha256
    """Hash of the manifest."""
    engine_sha256: Sha256
    """Of the engine, or of the served ONNX file."""
    target: str
    """Compute capability that an engine is for (sm89), or `served.` and that of the GPU which ran the ONNX file."""
    device: str
    """Name of the GPU that ran it."""
    gates: list[Gate]
    latency: list[Latency] = Field(default=[])


class ContentHash(NamedTuple):
    """Size and hashes of a content."""

    bytes: int
    crc32c: str
    sha256: str


def read_hashes(uri: str, *, copy: Path | None = None) -> ContentHash:
    """Return size, crc32c and sha256 of a file or object, which is read once, in pieces.

    Args:
        uri: Of the file or object.
        copy: File that what was read is written to.
    """
    digest, crc, num_bytes = hashlib.sha256(), 0, 0
    with storage.open_read(uri) as stream, open(copy or os.devnull, "wb") as target:
        while piece := stream.read(1 << 22):
            digest.update(piece)
            crc = google_crc32c.extend(crc, piece)
            num_bytes += len(piece)
            target.write(piece)
    return ContentHash(num_bytes, f"{crc:08x}", digest.hexdigest())


def hash_content(uri: str) -> str:
    """Return the sha256 of a file or object."""
    return read_hashes(uri).sha256
