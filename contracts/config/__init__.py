"""RunConfig: everything that a user can set, by section.

Values are resolved in contracts/resolve.py (defaults < YAML < `section.key=value`); no other module reads settings.
Every model is frozen and refuses unknown keys, so a typing mistake is found before anything is spent.
"""

from __future__ import annotations

from pydantic import field_validator, model_validator

from contracts.config.base import Section
from contracts.config.cloud import (
    CloudSection,
    DataflowSection,
    ImagesSection,
    RegisteredModelSection,
    VertexSection,
)
from contracts.config.code import CodeSection
from contracts.config.data import AugmentSection, DataSection
from contracts.config.export import ExportSection
from contracts.config.fields import CLASS_KINDS, FILE_KINDS, FieldKind, FieldSection
from contracts.config.profile import Knob, ProfileSection, read_off
from contracts.config.resources import MachineSection, ResourcesSection, Strategy
from contracts.config.run import InspectSection, RunSection, ScheduleSection
from contracts.config.sharding import SPLITS, ConvertSection, ShardingSection, SplitFractions
from contracts.config.task import TaskSection
from contracts.config.training import (
    CheckpointSection,
    EarlyStoppingSection,
    ModelSection,
    ParallelSection,
    TrainSection,
)

__all__ = [
    "CLASS_KINDS",
    "FILE_KINDS",
    "SPLITS",
    "STAGES",
    "STAGE_SECTIONS",
    "AugmentSection",
    "CheckpointSection",
    "CloudSection",
    "CodeSection",
    "ConvertSection",
    "DataSection",
    "DataflowSection",
    "EarlyStoppingSection",
    "ExportSection",
    "FieldKind",
    "FieldSection",
    "ImagesSection",
    "InspectSection",
    "Knob",
    "MachineSection",
    "ModelSection",
    "ParallelSection",
    "ProfileSection",
    "RegisteredModelSection",
    "ResourcesSection",
    "RunConfig",
    "RunSection",
    "ScheduleSection",
    "ShardingSection",
    "SplitFractions",
    "Strategy",
    "TaskSection",
    "TrainSection",
    "VertexSection",
]


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
            raise ValueError(
                f"parallel.slot_size {slot} is larger than train.global_batch_size {self.train.global_batch_size}"
            )
        return self


# The sections that each stage is given. What a stage does not get cannot change its result. Profile and train get
# `export` to refuse, before they spend anything, shards that the export of the run would refuse.
_TRAINED = ("run", "task", "code", "data", "model", "train", "parallel", "checkpoint")
STAGE_SECTIONS: dict[str, tuple[str, ...]] = {
    "shard": ("run", "sharding", "resources", "cloud", "dataflow"),
    "profile": (*_TRAINED, "profile", "export", "resources", "inspect"),
    "train": (*_TRAINED, "export", "resources", "inspect"),
    "export": ("run", "task", "code", "data", "model", "export", "resources"),
}
STAGES = tuple(STAGE_SECTIONS)
