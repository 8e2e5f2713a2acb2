"""The documents that pass between stages, a module a stage; what they have in common is in document.py."""

from __future__ import annotations

from contracts.artifacts.document import MANIFEST_NAME, Contract, Document, FileEntry, NewerVersion, find_damage
from contracts.artifacts.evaluation import EVALUATION_NAME, ClassOutcome, EvaluationReport, RocCurve, WorstSample
from contracts.artifacts.export import (
    Attempt,
    Calibration,
    EngineEntry,
    EngineTensor,
    ExportManifest,
    Gate,
    GraphEntry,
    Latency,
    Parity,
    ShippedFile,
    Verification,
    hash_content,
)
from contracts.artifacts.goodput import GoodputRecord
from contracts.artifacts.profile import ProfileChoice, ProfilePoint, ProfileReport
from contracts.artifacts.run import RunRecord, StageRecord
from contracts.artifacts.shards import (
    Copy,
    DuplicateGroup,
    Duplicates,
    ImageStatistics,
    Prepared,
    Rejected,
    ShardEntry,
    ShardManifest,
    SplitEntry,
)
from contracts.artifacts.training import CheckpointManifest, SampleOrder, tensor_file

__all__ = [
    "CONTRACTS",
    "EVALUATION_NAME",
    "MANIFEST_NAME",
    "Attempt",
    "Calibration",
    "CheckpointManifest",
    "ClassOutcome",
    "Contract",
    "Copy",
    "Document",
    "DuplicateGroup",
    "Duplicates",
    "EngineEntry",
    "EngineTensor",
    "EvaluationReport",
    "ExportManifest",
    "FileEntry",
    "Gate",
    "GoodputRecord",
    "GraphEntry",
    "ImageStatistics",
    "Latency",
    "NewerVersion",
    "Parity",
    "Prepared",
    "ProfileChoice",
    "ProfilePoint",
    "ProfileReport",
    "Rejected",
    "RocCurve",
    "RunRecord",
    "SampleOrder",
    "ShardEntry",
    "ShardManifest",
    "ShippedFile",
    "SplitEntry",
    "StageRecord",
    "Verification",
    "WorstSample",
    "find_damage",
    "hash_content",
    "tensor_file",
]

CONTRACTS: dict[str, type[Contract]] = {
    "shards": ShardManifest,
    "profile": ProfileReport,
    "checkpoint": CheckpointManifest,
    "evaluation": EvaluationReport,
    "export": ExportManifest,
    "verification": Verification,
    "run": RunRecord,
}
