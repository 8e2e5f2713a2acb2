"""RunConfig: everything that a user can set, by section.

Values are resolved in contracts/config/load.py (defaults < YAML < `section.key=value`); no other module reads settings.
Every model is frozen and refuses unknown keys, so a typing mistake is found before anything is spent.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
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

    def with_keys(self, **sections: Mapping[str, object]) -> RunConfig:
        """Return a copy with other values of some keys, by section; they are not validated."""
        return self.model_copy(
            update={name: getattr(self, name).model_copy(update=dict(keys)) for name, keys in sections.items()}
        )

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
_RANKS = {"ranks", "threads", "nodes", "port", "max_attempts", "setup_timeout_s", "hang_timeout_s", "stop_budget_s"}
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
_MODEL: dict[str, Any] = dict.fromkeys(("run", "task", "code", "data", "model"), True)
_TRAINED = {
    **_MODEL,
    **dict.fromkeys(("train", "parallel", "checkpoint", "inspect"), True),
    "export": {"precision"},
    "resources": _RANKS | {"max_hours", "max_cost_usd", "price_usd_per_h"},
}
_PLACE = {"project", "region", "kms_key", "labels"}
STAGE_KEYS: dict[str, dict[str, Any]] = {
    "shard": {
        "run": {"name", "root"},
        "sharding": True,
        "resources": {"beam_runner", "beam_workers"},
        "cloud": {**dict.fromkeys(_PLACE | {"billing_project", "service_account"}, True), "images": {"cpu"}},
        "dataflow": True,
    },
    # All of `train`: a finished training of this configuration is looked for by its own fingerprint.
    "profile": {**_TRAINED, "profile": True},
    "train": _TRAINED,
    "export": {**_MODEL, "export": True},
    # The gate before production, and on Vertex AI the upload.
    "register": {
        **_MODEL,
        "run": {"name", "root"},
        "export": {"allow_unproven"},
        "register": {"tolerance"},
        "cloud": {**dict.fromkeys(_PLACE, True), "images": {"serving"}},
    },
}
STAGES = ("shard", "profile", "train", "export")
