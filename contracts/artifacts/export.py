"""Manifest of an export: its graphs, its engine, the gates they passed, and what GPUs verified later."""

from __future__ import annotations

import hashlib
import os
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

Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
Status = Literal["passed", "failed", "not run"]
Figure = float | int | None
Container = Literal["tensor", "tuple", "dict"]
"""Type in which a network returns its outputs."""
PARITY, METRIC, PROGRAM, CHECKSUM = "parity", "metric", "program", "checksum"
"""Names of gates. parity: outputs of a file against torch's; metric: its headline metric against torch's; program:
predict.py on source files; checksum (of `shardline verify` alone): every file against the manifest."""


class Gate(Document):
    """A condition that an export must meet, with the measured figures and their limits."""

    name: str
    """parity, metric, program or checksum."""
    precision: str
    file: str
    """Path of the file that ran, below the export's folder."""
    status: Status
    ran: str
    """Package and version that ran the file."""
    device: str = ""
    """GPU that ran it, as `NVIDIA L4 (sm89)`; empty: the CPU."""
    figures: dict[str, Figure] = Field(default={})
    limits: dict[str, float] = Field(default={})
    """By the figure's name."""
    reason: str = ""
    """Why it failed or did not run."""


class Attempt(Document):
    """A tested precision and its outcome."""

    precision: str
    kept_fp32: list[str] = Field(default=[])
    """Modules that compute in fp32."""
    outcome: Literal["kept", "failed"]
    reason: str = ""
    """The gates that failed, with their figures."""


class ShippedFile(FileEntry):
    """A file of an export: crc32c detects damage, sha256 also deliberate changes."""

    sha256: Sha256

    @classmethod
    def of(cls, folder_uri: str, name: str) -> ShippedFile:
        """Describe the file `name` below `folder_uri`, which is read once."""
        return ShippedFile(name=name, **read_hashes(storage.join(folder_uri, *name.split("/")))._asdict())

    def damage(self, folder_uri: str, *, copy: Path | None = None) -> str | None:
        """Read the file and return its damage, or None.

        Args:
            folder_uri: Folder of the document.
            copy: Path of a copy of the file to write.
        """
        try:
            actual = read_hashes(self.uri(folder_uri), copy=copy)
        except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
            return f"{self.name} is missing"
        for kind, value in actual._asdict().items():
            if value != getattr(self, kind):
                return f"{self.name} has {kind} {value}, its manifest says {getattr(self, kind)}"
        return None


class GraphEntry(ShippedFile):
    """An ONNX file."""

    precision: str
    kept_fp32: list[str] = Field(default=[])
    """Modules that compute in fp32 in an fp16 graph."""


class EngineEntry(ShippedFile):
    """An engine file. Two builds of one graph may be different bytes."""

    onnx_sha256: Sha256
    """Of the graph that it was built from."""
    builder: str
    """Package and version that built it: `tensorrt_rtx 1.7.1`."""
    target: Annotated[str, Field(pattern=r"^sm[0-9]{2,3}$")]
    """Compute capability it was built for (sm89)."""
    opt_batch: int
    max_batch: int
    """The smallest batch is 1."""


class Latency(Document):
    """Latency of the served model per batch, with inputs and outputs in main memory."""

    ran: str
    """Package, version and device."""
    batch: int
    median_ms: float
    calls: int


class ExportManifest(Contract):
    """The exported graphs, the engine, and the gates they passed."""

    FORMAT_VERSION: ClassVar[int] = 4

    kind: Literal["export"] = "export"
    format_version: int = 4
    precision: str
    """Of the served model."""
    asked_precision: str
    """export.precision."""
    tried: list[Attempt]
    """Tested precisions in order; the last one ships, and its gates are `gates`."""
    opset: int
    task: str
    """task.name."""
    signature: Signature
    """Of the model."""
    container: Container = "tensor"
    task_calibration: dict[str, Any] = Field(default={})
    """Result of the task's `calibrate`, as the checkpoint has it."""
    runtime: Runtime
    """Runtime that the served model is for."""
    served: str
    """Path of the served model: the one file that the gates run and the runtime loads."""
    graphs: list[GraphEntry]
    """fp32 first, the one that ships last."""
    engine: EngineEntry | None
    """Of the precision that ships; None with runtime onnx."""
    gates: list[Gate]
    metrics: dict[str, dict[str, float]] = Field(default={})
    """The task's metrics, and `loss`, on the proof's samples: of `torch` and of the graphs by precision, then by
    name."""
    headline: Headline
    """Of the task."""
    test_samples: int
    """Samples of the test split."""
    proof_samples: int
    """Number of them that the gates ran, drawn by class. Metrics are of these."""
    proof_seed: int = 0
    """Seed of the draw."""
    latency: list[Latency] = Field(default=[])
    checkpoint_sha256: str
    """parameters_sha256 of the checkpoint."""
    shards_fingerprint: str
    """Of the shards that it was trained on; their test split is the proof's."""
    made_with: dict[str, str]
    """Versions of packages."""
    steps: dict[str, dict[str, float]] = Field(default={})
    """Seconds and peak resident bytes of each step's process."""
    files: list[ShippedFile]
    """All other files: labels, preprocessing, predict.py, weights, the model card, the Triton repository."""
    seal: str = ""
    """Hash of the rest of this document."""

    @property
    def headline_values(self) -> dict[str, float]:
        """The headline metric by precision."""
        metric = self.headline.metric
        return {name: values[metric] for name, values in self.metrics.items() if metric in values}

    @property
    def served_file(self) -> ShippedFile:
        """Entry of the served model."""
        return next(entry for entry in self.shipped_files() if entry.name == self.served)

    def sealed(self) -> ExportManifest:
        """Return the document with its seal."""
        return self.model_copy(update={"seal": self._digest()})

    def _digest(self) -> str:
        return self.model_copy(update={"seal": ""}).sha256

    def inconsistency(self) -> str | None:
        """Return the inconsistency of the document, or None; an inconsistent document cannot be trusted."""
        try:
            is_sealed = self.seal == self._digest()
        except ValueError:  # a NaN, which no stage writes
            is_sealed = False
        if not is_sealed:
            return "the manifest was changed after it was written"
        precisions = {entry.precision for entry in self.graphs}
        if missing := [name for name in ("fp32", self.precision) if name not in precisions]:
            return f"the manifest has no graph of {missing[0]}"
        if self.served not in {entry.name for entry in self.shipped_files()}:
            return f"the manifest has no {self.served}"
        return None if "fp32" in self.headline_values else f"the manifest has no {self.headline.metric} of fp32"

    def shipped_files(self) -> list[ShippedFile]:
        """Return everything that ships."""
        return [*self.files, *self.graphs, *([] if self.engine is None else [self.engine])]

    def owned_files(self) -> list[FileEntry]:
        """Return everything that ships."""
        return [*self.shipped_files()]

    def graph(self, precision: str | None = None) -> GraphEntry:
        """Return the graph of a precision; without one, the graph that ships.

        Raises:
            DataError: There is none.
        """
        chosen = precision or self.precision
        for entry in self.graphs:
            if entry.precision == chosen:
                return entry
        raise DataError(
            f"the manifest has no graph of {chosen}",
            allowed=", ".join(entry.precision for entry in self.graphs) or "an export with graphs",
            todo="copy the whole folder again, or export again",
        )


class Verification(Contract):
    """Gates of an engine that `shardline verify` ran on a GPU: beside the manifest, as verified/TARGET.json."""

    FORMAT_VERSION: ClassVar[int] = 2

    kind: Literal["verification"] = "verification"
    format_version: int = 2
    export_sha256: Sha256
    """Hash of the manifest."""
    engine_sha256: Sha256
    target: str
    """Compute capability that the engine is for (sm89)."""
    gates: list[Gate]


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
