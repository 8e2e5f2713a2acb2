"""RunConfig: everything that a user can set, by section.

Values are resolved in contracts/config/load.py (defaults < YAML < `section.key=value`); no other module reads settings.
Every model is frozen and refuses unknown keys, so a typing mistake is found before anything is spent.
"""

from __future__ import annotations

import warnings
from typing import Any

from pydantic import field_validator, model_validator

from contracts.config.base import Section, refusal
from contracts.config.cloud import CloudSection, DataflowSection, ImagesSection, VertexSection
from contracts.config.data import DataSection
from contracts.config.resources import MachineSection, ResourcesSection, Strategy
from contracts.config.run import CodeSection, InspectSection, RunSection, ScheduleSection, TaskSection
from contracts.config.sharding import (
    CLASS_KINDS,
    FILE_KINDS,
    SPLITS,
    FieldKind,
    FieldSection,
    ShardingSection,
    SplitFractions,
)
from contracts.config.stages import ExportSection, ProfileSection, RegisterSection, read_off
from contracts.config.training import (
    CheckpointSection,
    EarlyStoppingSection,
    ModelSection,
    ParallelSection,
    TrainSection,
)

# The metaclass, abc.ABCMeta, has a method of this name, which models do not use.
warnings.filterwarnings("ignore", 'Field name "register" in "RunConfig" shadows')


class RunConfig(Section):
    """The whole configuration of a line."""

    run: RunSection = RunSection()
    task: TaskSection = TaskSection()
    code: CodeSection = CodeSection()
    sharding: ShardingSection = ShardingSection()
    data: DataSection = DataSection()
    model: ModelSection = ModelSection()
    train: TrainSection = TrainSection()
    parallel: ParallelSection = ParallelSection()
    checkpoint: CheckpointSection = CheckpointSection()
    profile: ProfileSection = ProfileSection()
    export: ExportSection = ExportSection()
    register: RegisterSection = RegisterSection()
    resources: ResourcesSection = ResourcesSection()
    inspect: InspectSection = InspectSection()
    cloud: CloudSection = CloudSection()
    dataflow: DataflowSection = DataflowSection()
    vertex: VertexSection = VertexSection()
    schedule: ScheduleSection = ScheduleSection()

    @field_validator("profile", mode="before")
    @classmethod
    def _read_off(cls, value: object) -> object:
        return read_off(value)

    @model_validator(mode="after")
    def _slot_fits_batch(self) -> RunConfig:
        slot = self.parallel.slot_size
        if slot != "auto" and slot > self.train.global_batch_size:
            raise refusal(
                f"parallel.slot_size {slot} is larger than train.global_batch_size {self.train.global_batch_size}",
                allowed="a slot of at most the global batch",
                todo="set parallel.slot_size lower, or leave it out",
            )
        return self

    @model_validator(mode="after")
    def _registry_takes_export(self) -> RunConfig:
        if self.register.upload and self.export.runtime == "tensorrt_rtx":
            raise refusal(
                "register.upload: true with export.runtime: tensorrt_rtx, whose engine Triton does not load",
                allowed="export.runtime tensorrt, onnx or auto for the model registry",
                todo="set export.runtime=onnx, or register.upload=false",
            )
        return self


# What each stage is given: whole sections, or some of their keys. What it is not given cannot change its result, nor
# the key of a cache. Profile and train refuse, before they spend anything, shards that the export would refuse.
_RANKS = {
    "ranks": True,
    "threads": True,
    "nodes": True,
    "port": True,
    "max_attempts": True,
    "setup_timeout_s": True,
    "hang_timeout_s": True,
    "stop_budget_s": True,
    "max_hours": True,
    "max_cost_usd": True,
    "price_usd_per_h": True,
}
# Fields of train that decide how long a step takes, and what is tried.
SPEED_FIELDS = {
    "global_batch_size",
    "optimizer",
    "clip_grad_norm",
    "ema_decay",
    "precision",
    "channels_last",
    "compile",
    "activation_checkpointing",
}
_MODEL: dict[str, Any] = {"run": True, "task": True, "code": True, "data": True, "model": True}
_TRAINED = {
    **_MODEL,
    "train": True,
    "parallel": True,
    "checkpoint": True,
    "export": {"precision": True},
    "resources": _RANKS,
    "inspect": True,
}
STAGE_KEYS: dict[str, dict[str, Any]] = {
    "shard": {
        "run": {"name": True, "root": True},
        "sharding": True,
        "resources": {"beam_runner": True, "beam_workers": True},
        "cloud": {
            **dict.fromkeys(("project", "region", "billing_project", "service_account", "kms_key", "labels"), True),
            "images": {"cpu": True},
        },
        "dataflow": True,
    },
    "profile": {
        **_TRAINED,
        # All of `train`: a finished training of this configuration is looked for by its own fingerprint.
        "profile": True,
    },
    "train": _TRAINED,
    "export": {**_MODEL, "export": True},
    # The gate before production, and on Vertex AI the upload.
    "register": {
        **_MODEL,
        "run": {"name": True, "root": True},
        "export": {"allow_unproven": True},
        "register": {"tolerance": True},
        "cloud": {
            **dict.fromkeys(("project", "region", "kms_key", "labels"), True),
            "images": {"serving": True},
        },
    },
}
STAGES = ("shard", "profile", "train", "export")
