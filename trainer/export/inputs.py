"""Checks what the export stage is given, before anything heavy is imported.

Here: `Inputs`, `check_inputs` and `name_tools`, called by trainer/export/task.py. The checkpoint says which model and
transform are exported; a configuration or shards that disagree with it are a mistake that is better found than
followed. Nothing here reads tensors or samples.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from contracts import storage
from contracts.artifacts import EVALUATION_NAME, CheckpointManifest, EvaluationReport, ShardManifest, find_damage
from contracts.config import RunConfig
from contracts.errors import ConfigError, DataError
from contracts.own_code import code_hash
from trainer.export.needs import check_export_samples
from trainer.export.targets import Builder, gpu_target, version_of
from trainer.predict.bundle import kind_of

if TYPE_CHECKING:
    from torch import nn

    from trainer.tasks.task import Task


# Packages whose code decides what an export holds, and what its gates find.
_CODE = ("contracts", "records", "trainer")
# What traces, converts and runs graphs: another version may give other files, or another verdict.
_DECIDING = ("torch", "onnx", "onnxruntime")


@dataclass(frozen=True)
class Inputs:
    """What the work starts from."""

    checkpoint_uri: str
    checkpoint: CheckpointManifest
    shards_uri: str
    shards: ShardManifest
    builder: Builder
    config: RunConfig

    def load_task(self) -> Task:
        """Return the task, with the transform that the checkpoint recorded."""
        from trainer.tasks.loading import load_task

        # What other tasks recorded is in their arguments, or in the shards.
        recorded = self.checkpoint.data if kind_of(self.config.task.name) == "images" else {}
        data = self.config.data.model_copy(update=recorded)
        task = load_task(self.config.model_copy(update={"data": data}), self.shards, self.shards_uri)
        task.calibration = self.checkpoint.calibration
        return task

    def build_model(self) -> nn.Module:
        """Return the network with random weights."""
        from trainer.model.build import build_model

        return build_model(self.load_task(), self.config)

    def load_model(self) -> nn.Module:
        """Return the network with the checkpoint's weights, in evaluation mode.

        Raises:
            DataError: The weights are damaged, or not those of the network.
        """
        from trainer.checkpoint.loading import load_model_state

        model = self.build_model()
        try:
            model.load_state_dict(load_model_state(self.checkpoint_uri, self.checkpoint))
        except RuntimeError as error:
            raise DataError(
                f"the tensors in {storage.display(self.checkpoint_uri)} are not those of its model: {error}",
                allowed="a checkpoint written by the train stage",
                todo="train again with --fresh",
            ) from error
        return model.eval()

    def find_evaluation(self) -> tuple[EvaluationReport | None, str]:
        """Return what training found on the test split with these very weights, in fp32; or None, and why.

        Raises:
            DataError: The document is missing, damaged, or of other weights.
        """
        entry = self.checkpoint.evaluation
        if entry is None:
            return None, f"the checkpoint has no {EVALUATION_NAME}: not compared with what training found"
        if (damage := find_damage(self.checkpoint_uri, [entry])) is not None:
            raise self._damaged_evaluation(damage)
        report = EvaluationReport.load(entry.uri(self.checkpoint_uri))
        if report.parameters_sha256 != self.checkpoint.parameters_sha256:
            raise self._damaged_evaluation(f"{entry.name} is of other weights")
        numerics = self.checkpoint.numerics
        if numerics.get("precision", "fp32") != "fp32" or self.checkpoint.environment.get("device") == "cuda":
            # A GPU trains with TF32: a sample near a border may have another answer.
            return None, f"{EVALUATION_NAME} was not computed in fp32: not compared with what training found"
        return report, ""

    def _damaged_evaluation(self, what: str) -> DataError:
        return DataError(
            f"the checkpoint in {storage.display(self.checkpoint_uri)} is damaged: {what}",
            allowed=f"a checkpoint with the {EVALUATION_NAME} that training left",
            todo="copy the whole training folder again, or train again with --fresh",
        )


def hash_code() -> str:
    """Return the sha256 over names and content of the modules that decide what an export holds."""
    root = Path(__file__).parents[2]
    digest = hashlib.sha256()
    for package in _CODE:
        for path in sorted((root / package).rglob("*.py")):
            content = path.read_bytes()
            digest.update(f"{path.relative_to(root).as_posix()}\0{len(content)}\0".encode())
            digest.update(content)
    return digest.hexdigest()


def name_tools() -> dict[str, str]:
    """Return what decides an export besides its inputs, by name: versions of packages, our own code, the GPU."""
    packages = ", ".join(f"{name} {version_of(name)}" for name in _DECIDING)
    gpu = gpu_target()
    # On a GPU the gates run on it, and may choose another precision.
    return {"packages": packages, "shardline code": hash_code(), **({} if gpu is None else {"gpu": gpu})}


def check_inputs(config: RunConfig, checkpoint: CheckpointManifest, shards: ShardManifest) -> list[str]:
    """Refuse inputs that do not belong together; return warnings.

    Raises:
        ConfigError: The configuration names another task, model or transform than the checkpoint's, or the shards are
            others than it was trained on.
        DataError: The shards have no test samples, or too few training samples for the precision.
    """
    todo = "pass the checkpoint that was trained with this configuration, or correct the configuration"
    # What it was trained from, and how, makes it no other network.
    for what, given, trained in (
        ("task", config.task.model_dump(mode="json", include={"name", "arguments"}), checkpoint.task),
        ("model", config.model.model_dump(mode="json", include={"architecture", "arguments"}), checkpoint.model),
    ):
        held = {name: trained.get(name) for name in given}
        if held != given:
            raise ConfigError(
                f"checkpoint of another {what}: it holds {held}, the configuration says {given}",
                allowed=f"a checkpoint of the configuration's {what}",
                todo=todo,
            )
    own, trained_with, warnings = code_hash(config.code), checkpoint.made_from.get("code", ""), []
    if own and not trained_with:
        # Of a training folder that was made by hand.
        warnings.append("the checkpoint does not say which own code it was trained with: it is exported with this one")
    elif own and own != trained_with:
        raise ConfigError(
            f"own code has changed since the checkpoint was trained: {own[:12]}, then {trained_with[:12]}",
            allowed="the code that the checkpoint was trained with",
            todo="train again, or take that code",
        )
    if kind_of(config.task.name) == "images":
        _check_transform(config, checkpoint)
    if shards.fingerprint != checkpoint.shards_fingerprint:
        # Another split could hold samples that the model was trained on: its metrics would be worth nothing.
        raise ConfigError(
            f"shards {shards.fingerprint}, but the checkpoint was trained on shards {checkpoint.shards_fingerprint}",
            allowed="the shards that the checkpoint was trained on",
            todo="pass their URI as --shards",
        )
    check_export_samples(config, shards)
    return warnings


def _check_transform(config: RunConfig, checkpoint: CheckpointManifest) -> None:
    for name, given in config.data.model_dump(mode="json", include={"image_size", "mean", "std"}).items():
        # An unset mean or std means that of the training split, which the checkpoint recorded.
        if given is not None and given != checkpoint.data[name]:
            raise ConfigError(
                f"data.{name} is {given}, the checkpoint was trained with {checkpoint.data[name]}",
                allowed="the transform of the checkpoint",
                todo="pass the checkpoint that was trained with this configuration, or correct the configuration",
            )
