"""Inputs of the export, and their checks before torch starts.

Here: `Inputs`, `check_inputs`, `name_tools`, and for the stages before `check_export_of_run`. The checkpoint says which
model and transform are exported; a configuration or shards that disagree with it are refused.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from contracts import storage
from contracts.artifacts import CheckpointManifest, ShardManifest
from contracts.config import RunConfig
from contracts.config.stages import MIN_CALIBRATION_SAMPLES
from contracts.errors import ConfigError, DataError
from contracts.own_code import code_hash
from contracts.stage import Stage
from trainer.export.runtime import Builder, gpu_target, version_of
from trainer.predict.bundle import kind_of

if TYPE_CHECKING:
    from torch import nn

    from trainer.tasks.task import Task


EXPORT_VERSION = "2"
"""Part of an export's fingerprint: increased with each change of files or verdicts."""
PACKAGES = ("torch", "transformers", "onnx", "onnxscript", "onnxruntime")
"""Packages that make and run graphs; their versions may affect files and verdicts."""


@dataclass(frozen=True)
class Inputs:
    """Inputs of an export."""

    checkpoint_uri: str
    checkpoint: CheckpointManifest
    shards_uri: str
    shards: ShardManifest
    builder: Builder
    config: RunConfig

    def load_task(self) -> Task:
        """Return the task, with the transform that the checkpoint recorded."""
        from trainer.tasks.loading import load_task

        # Other tasks have their transform in task.arguments or in the shards.
        recorded = self.checkpoint.data if kind_of(self.config.task.name) == "images" else {}
        data = self.config.data.model_copy(update=recorded)
        task = load_task(self.config.model_copy(update={"data": data}), self.shards, self.shards_uri)
        task.calibration = self.checkpoint.calibration
        return task

    def load_model(self) -> nn.Module:
        """Return the network with the checkpoint's weights, in evaluation mode.

        Raises:
            DataError: The weights are damaged, or not those of the network.
        """
        from trainer.checkpoint.loading import load_model_state
        from trainer.model.build import build_model

        model = build_model(self.load_task(), self.config)
        try:
            model.load_state_dict(load_model_state(self.checkpoint_uri, self.checkpoint))
        except RuntimeError as error:
            raise DataError(
                f"the tensors in {storage.display(self.checkpoint_uri)} are not those of its model: {error}",
                allowed="a checkpoint written by the train stage",
                todo="train again with --fresh",
            ) from error
        return model.eval()


def name_tools() -> dict[str, str]:
    """Return the tools that an export depends on, by name: packages, export version, GPU."""
    packages = ", ".join(f"{name} {version_of(name)}" for name in PACKAGES)
    gpu = gpu_target()
    # Gates run on the GPU, and may select another precision there.
    return {"packages": packages, "export version": EXPORT_VERSION, **({} if gpu is None else {"gpu": gpu})}


def check_inputs(config: RunConfig, checkpoint: CheckpointManifest, shards: ShardManifest) -> None:
    """Refuse inputs that do not belong together.

    Raises:
        ConfigError: The configuration names another task, model or transform than the checkpoint's, or the shards are
            others than it was trained on.
        DataError: The shards have no test samples, or too few training samples for the precision.
    """
    todo = "pass the checkpoint that was trained with this configuration, or correct the configuration"
    # Initial weights and training settings do not change the network.
    for section, configured, trained in (
        ("task", config.task.model_dump(mode="json", include={"name", "arguments"}), checkpoint.task),
        ("model", config.model.model_dump(mode="json", include={"architecture", "arguments"}), checkpoint.model),
    ):
        recorded = {name: trained.get(name) for name in configured}
        if recorded != configured:
            raise ConfigError(
                f"checkpoint of another {section}: it has {recorded}, the configuration has {configured}",
                allowed=f"a checkpoint of the configuration's {section}",
                todo=todo,
            )
    code, trained_code = code_hash(config.code), checkpoint.made_from.get("code")
    # A training folder made by hand has none.
    if code and trained_code and code != trained_code:
        raise ConfigError(
            f"own code has changed since the checkpoint was trained: {code[:12]}, then {trained_code[:12]}",
            allowed="the code that the checkpoint was trained with",
            todo="train again, or take that code",
        )
    if kind_of(config.task.name) == "images":
        _check_transform(config, checkpoint)
    if shards.fingerprint != checkpoint.shards_fingerprint:
        # Another test split could contain training samples of the model, and metrics would be too high.
        raise ConfigError(
            f"shards {shards.fingerprint}, but the checkpoint was trained on shards {checkpoint.shards_fingerprint}",
            allowed="the shards that the checkpoint was trained on",
            todo="pass their URI as --shards",
        )
    check_export_samples(config, shards)


def _check_transform(config: RunConfig, checkpoint: CheckpointManifest) -> None:
    for name, configured in config.data.model_dump(mode="json", include={"image_size", "mean", "std"}).items():
        # An unset mean or std means that of the training split, which the checkpoint recorded.
        if configured is not None and configured != checkpoint.data[name]:
            raise ConfigError(
                f"data.{name} is {configured}, the checkpoint was trained with {checkpoint.data[name]}",
                allowed="the transform of the checkpoint",
                todo="pass the checkpoint that was trained with this configuration, or correct the configuration",
            )


def check_export_samples(config: RunConfig, shards: ShardManifest) -> None:
    """Refuse shards without the samples that an export needs.

    Raises:
        DataError: They have no test sample, or too few training samples for export.precision.
    """
    samples = {name: split.samples for name, split in shards.splits.items()}
    if samples["test"] == 0:
        raise DataError(
            "the test split of the shards is empty: an export is proven on it",
            allowed="at least one test sample",
            todo="set sharding.splits.test above 0; if the source has a split column (sharding.split_column), set "
            "test for some samples, or leave the split of some empty; then shard again",
        )
    precision = config.export.precision
    least = {"fp32": 0, "int8": MIN_CALIBRATION_SAMPLES}.get(precision, 1)
    if samples["train"] < least:
        more = "give more samples to training (sharding.splits)" if sum(samples.values()) > least else "add samples"
        raise DataError(
            f"the training split of the shards has {samples['train']} sample(s) to calibrate with",
            allowed=f"at least {least} for export.precision {precision}: the range of activations is taken from them",
            todo=f"{more} and shard again; or set export.precision to one that calibrates with fewer (fp16 takes what "
            "there is, fp32 none)",
        )


def check_export_of_run(stage: Stage, shards: ShardManifest) -> None:
    """Refuse shards that this run's export would refuse; warn if the stage runs outside of a run.

    Raises:
        DataError: As `check_export_samples`, in a run.
    """
    try:
        check_export_samples(stage.config, shards)
    except DataError as error:
        if stage.run:
            raise
        if not stage.locate:
            stage.log(f"warning: these shards cannot be exported: {error.given}; to do: {error.todo}")
