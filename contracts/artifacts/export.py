"""What the export stage leaves: the graphs, the engine, and the proof."""

from __future__ import annotations

from typing import Literal

from contracts.artifacts.document import Contract, Document, FileEntry


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
