"""What an export has beside graphs and engines, by task: how inputs are made, what outputs mean, and who checks it.

Here: `Bundle`, the functions that the module of a task has, and `bundle_of`. A task of the tool brings its own module
(trainer/tasks/NAME/bundle.py); every other one gets arrays_bundle.py, whose inputs and outputs are plain arrays. By the
task's name, since `shardline verify` and `shardline predict` have a finished export and nothing of the user's code.
Nothing here, and no such module, imports torch or numpy before a function needs them: a stage that finds its work done
asks them too.
"""

from __future__ import annotations

import argparse
import importlib
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, cast

from contracts.artifacts import CheckpointManifest, ExportManifest, Gate
from contracts.artifacts.signature import Signature
from contracts.config import RunConfig

if TYPE_CHECKING:
    from trainer.export.bundle.shipped import Shipped
    from trainer.export.gates.arrays import Arrays, StoredArrays
    from trainer.export.gates.proof import TestSplit
    from trainer.export.gates.scores import Scores
    from trainer.export.inputs import Inputs
    from trainer.predict.checked_folder import CheckedFolder
    from trainer.tasks.protocol import Task

GATE_NAME = "bundle"
PREDICT_NAME = "predict.py"


class Bundle(Protocol):
    """The functions of a module."""

    def check_checkpoint(self, config: RunConfig, checkpoint: CheckpointManifest) -> None:
        """Refuse a configuration that prepares samples in another way than the checkpoint was trained with.

        Raises:
            ConfigError: It does.
        """

    def make_noise(self, task: Task, samples: int) -> Arrays:
        """Return inputs that are no samples: a small test split is filled up with them, for parity."""

    def judge_metric(self, *, precision: str, reference: Scores, found: Scores, samples: int, ran: str) -> Gate:
        """Hold the metrics of a graph on the test split against those of fp32.

        Args:
            precision: Of the graph.
            reference: Of the fp32 graph.
            found: Of this one.
            samples: Of the test split.
            ran: What computed the outputs.
        """

    def write_bundle(
        self,
        folder: Path,
        inputs: Inputs,
        signature: Signature,
        *,
        model_name: str,
        max_batch: int,
    ) -> list[str]:
        """Write what a user needs beside a graph; return the names of the files.

        Args:
            folder: Where the graphs lie.
            inputs: What is exported.
            signature: Of the model.
            model_name: Path of the graph that ships, below the folder.
            max_batch: Most samples at a time.
        """

    def check_bundle(
        self,
        shipped: Shipped,
        inputs: Inputs,
        split: TestSplit,
        outputs: StoredArrays,
        scores: Mapping[str, Scores],
    ) -> Gate:
        """Run the shipped predict.py on the test split: the gate `bundle`. For a process of its own.

        Args:
            shipped: The export.
            inputs: Of the export.
            split: The samples of the test split.
            outputs: What the fp32 graph gives for them.
            scores: Metrics of these samples, of torch and of the fp32 graph. Of the whole split training has counted
                the same (evaluation.json); of a part torch's stand for that.
        """

    def check_again(self, shipped: Shipped, document: ExportManifest, work: Path) -> Gate:
        """Return the gate `bundle` of a finished export, without its task. For a process of its own.

        Args:
            shipped: The export; its checksums are right.
            document: Its manifest.
            work: A folder for files in between.
        """

    def read_inputs(self, shipped: Shipped, document: ExportManifest, work: Path) -> StoredArrays:
        """Return inputs that an engine of a finished export is tried with. For a process of its own."""

    def read_labels(self, folder: Path) -> list[str] | None:
        """Return names of the last dimension of the outputs, for Triton; None: there are none."""

    def introduce(self, document: ExportManifest, checkpoint: CheckpointManifest | None) -> tuple[str, list[str]]:
        """Return what the model card calls the model, and paragraphs about it, as Markdown; names by `code`."""

    def describe_use(self) -> list[str]:
        """Return the model card's paragraphs on predict.py and `shardline predict`, as Markdown."""

    def describe_limits(self) -> list[str]:
        """Return the model card's warnings, as Markdown."""

    def predict(self, folder: CheckedFolder, options: argparse.Namespace) -> int:
        """Answer `shardline predict`; return the exit code."""


def bundle_of(task: str) -> Bundle:
    """Return the functions for a task.

    Args:
        task: task.name.
    """
    is_own = ":" in task
    name = "trainer.export.bundle.arrays_bundle" if is_own else f"trainer.tasks.{task}.bundle"
    return cast(Bundle, importlib.import_module(name))
