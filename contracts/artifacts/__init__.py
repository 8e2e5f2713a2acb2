"""The documents that pass between stages, a module a stage; what they have in common is in document.py."""

from __future__ import annotations

from contracts.artifacts.document import MANIFEST_NAME, Contract, Document, FileEntry, OtherVersion, find_damage
from contracts.artifacts.evaluation import (
    EVALUATION_NAME,
    LOSS,
    PREDICTIONS_NAME,
    Baseline,
    Direction,
    EvaluationReport,
    Headline,
)
from contracts.artifacts.export import (
    Attempt,
    EngineEntry,
    ExportManifest,
    Gate,
    GraphEntry,
    Latency,
    ShippedFile,
    Verification,
)
from contracts.artifacts.goodput import GoodputRecord
from contracts.artifacts.profile import (
    ComputePoint,
    Finding,
    Indicators,
    KernelRow,
    LoaderPoint,
    MemorySample,
    OperatorRow,
    ProfileChoice,
    ProfilePoint,
    ProfileReport,
    Settings,
    TraceSummary,
    TrainingEstimate,
)
from contracts.artifacts.run import RunRecord, StageRecord
from contracts.artifacts.shards import (
    Copy,
    DuplicateGroup,
    Duplicates,
    FieldEntry,
    ImageStatistics,
    Prepared,
    Rejected,
    ShardEntry,
    ShardManifest,
    Shards,
    SplitEntry,
    TokenizerEntry,
)
from contracts.artifacts.signature import OutputSpec, Signature, TensorSpec
from contracts.artifacts.training import CheckpointManifest, EarlyStopping, InitialWeights, SampleOrder, tensor_file

MANIFESTS: dict[str, type[Contract]] = {
    "shard": ShardManifest,
    "profile": ProfileReport,
    "train": CheckpointManifest,
    "export": ExportManifest,
}
"""By stage: what its folder holds as MANIFEST_NAME."""
