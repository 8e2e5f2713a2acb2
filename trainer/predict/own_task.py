"""Own tasks in `shardline predict`: the task's code prepares unlabelled samples and converts outputs to answers."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from contracts.artifacts import ExportManifest, ShardManifest
from contracts.artifacts.export import Container
from contracts.artifacts.shards import Prepared
from contracts.config import RunConfig
from contracts.errors import ConfigError
from contracts.own_code import install_code
from records.pixels import UndecodableImage
from trainer.export.tensors import restore_outputs, take_inputs
from trainer.model.signature import find_misfit
from trainer.predict.bundle import change_as_sharded, shards_uri_of
from trainer.predictions import class_names, plain
from trainer.tasks.loading import calling, describe_failure, load_task, task_error
from trainer.tasks.task import Batch, Mode, RefusedSample, Task

if TYPE_CHECKING:
    from trainer.export.arrays import Array, Arrays


@dataclass(frozen=True)
class OwnModel:
    """Model interface of an own task, as program.ImageModel for built-in tasks."""

    task: Task
    config: RunConfig
    field: str
    """Its first field of kind image, bytes or text."""
    container: Container
    """What the network returns: tensor, tuple or dict."""
    prepared: Prepared | None
    """Changes that sharding makes to files of the field; None: it stores them unchanged."""

    @classmethod
    def of(cls, export_uri: str, document: ExportManifest, config: RunConfig | None) -> OwnModel:
        """Make the task of an export.

        Args:
            export_uri: Its folder.
            document: Its manifest.
            config: Keys of the configuration of its run; None: unknown.

        Raises:
            ConfigError: There is no configuration of its run, or the task has no answers or no such field.
            DataError: The shards have no manifest.
        """
        name = document.task
        if config is None or config.task.name != name:
            raise ConfigError(
                f"the export is of task {name}, and the configuration of its run is not known",
                allowed="the run of this export",
                todo="name the run in place of the folder of the export",
            )
        install_code(config.code)
        shards_uri = shards_uri_of(export_uri, document)
        shards = ShardManifest.load(shards_uri)
        task: Any = load_task(config, shards, shards_uri)
        if getattr(type(task), "answer", Task.answer) is Task.answer:
            raise ConfigError(
                f"task {name} has no answers",
                allowed="a task with the method `answer(outputs)`, which returns the answer to each sample of a batch",
                todo="write it (docs/tasks.md), train and export again",
            )
        field = next((field for field, kind in task.fields.items() if kind in ("image", "bytes", "text")), None)
        if field is None:
            raise ConfigError(
                f"task {name} has no field of kind image, bytes or text",
                allowed="such a field: the command passes files and texts to `prepare`",
                todo="run the graph by onnxruntime, as the model card shows",
            )
        task.calibration = document.task_calibration
        is_changed = field == shards.image_field and shards.verify == "decode"
        return cls(task, config, field, document.container, shards.prepared if is_changed else None)

    @property
    def is_text(self) -> bool:
        """Whether a sample is a text, not a file."""
        return self.task.fields[self.field] == "text"

    def prepare(self, value: Any) -> Any:
        """Prepare a sample without labels from its stored form.

        Raises:
            ValueError: It cannot be used.
            ConfigError: The task's code asks for another field.
        """
        try:
            if self.prepared is not None:
                value, _ = change_as_sharded(value, self.prepared)
            prepared = self.task.prepare({self.field: value}, Mode(training=False))
        except RefusedSample as error:
            raise ValueError(error.given) from error
        except UndecodableImage as error:
            raise ValueError(str(error)) from error
        except Exception as error:  # the user's code may raise anything for a file that is no sample
            message = f"failed: {describe_failure(error)}"
            if not isinstance(error, KeyError) or error.args[0] not in self.task.fields:
                raise ValueError(f"prepare {message}") from error
            allowed = f"a method that takes a sample of {self.field} alone: read labels by `sample.get`"
            raise task_error(self.config, "prepare", message, allowed=allowed) from error
        # A check of a whole batch would not name the sample.
        if misfit := find_misfit(self._to_model([prepared]), self.task.signature.inputs, {}):
            raise ValueError(misfit)
        return prepared

    def collate(self, samples: Sequence[Any]) -> Arrays:
        """Return the model's inputs for prepared samples."""
        signature = self.task.signature
        tensors = take_inputs(self._to_model(samples), signature)
        return {name: tensor.numpy() for name, tensor in zip(signature.inputs, tensors, strict=True)}

    def _to_model(self, samples: Sequence[Any]) -> Batch:
        mode = Mode(training=False)
        with calling(self.config, "collate", allowed="a method that takes samples without labels"):
            batch = self.task.collate(samples, mode)
        with calling(self.config, "to_model", allowed="a method that takes a batch without labels"):
            return self.task.to_model(batch, mode)

    def answer(self, outputs: Mapping[str, Array], top: int | None) -> list[Sequence[Any]]:
        """Return the task's answers to a batch, as test-predictions.parquet has them.

        Raises:
            ConfigError: The task's `answer` fails, or returns something else than a value of JSON per sample.
        """
        with calling(self.config, "answer"), torch.inference_mode():
            answers = plain(self.task.answer(restore_outputs(outputs, self.container)))
            rows: list[Sequence[Any]] = [
                (json.loads(json.dumps(class_names(answer, self.task.classes))),) for answer in answers
            ]
        samples = len(next(iter(outputs.values())))
        if len(rows) != samples:
            allowed = "a sequence with an answer for each sample"
            raise task_error(
                self.config, "answer", f"returned {len(rows)} answers for {samples} samples", allowed=allowed
            )
        return rows
