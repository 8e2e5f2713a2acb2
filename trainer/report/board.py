"""Scalars, images and results of a training, for TensorBoard and as JSON lines for `shardline inspect`.

Only rank 0 writes. Nothing here draws random numbers, affects training, or makes a step wait.
"""

from __future__ import annotations

import math
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from contracts import storage
from contracts.artifacts import LOSS, CheckpointManifest, EvaluationReport
from contracts.events import print_error
from contracts.scalars import PART_BYTES, part_name, scalars_line, start_line

if TYPE_CHECKING:
    from trainer.train import Training

# Maximum seconds until a row is written; SummaryWriter's default is two minutes.
FLUSH_S = 10
# A fixed name, so that a repeated end replaces the file; TensorBoard shows its folder as a run.
RESULT_NAME = "result/events.out.tfevents.0000000000.result"


class Board:
    """Writes scalars and images of one attempt, from `first_step` on; a full disk stops this, not the training.

    TensorBoard's files are in `folder`, the JSON lines (contracts/scalars.py) in `scalars_folder`.
    """

    def __init__(self, folder: Path, scalars_folder: Path, *, attempt: int, first_step: int) -> None:
        from torch.utils.tensorboard import SummaryWriter

        # purge_step hides what a killed attempt wrote after its last checkpoint.
        self._writer: Any = SummaryWriter(str(folder), purge_step=first_step + 1, flush_secs=FLUSH_S)
        self._folder: Path | None = scalars_folder
        self._attempt, self._part, self._bytes = attempt, 0, 0
        self._append(start_line(first_step, time.time()))

    def add(self, step: int, values: dict[str, float]) -> None:
        """Write values by name at an optimizer step."""
        self._append(scalars_line(step, time.time(), values))
        self._write(lambda writer: [writer.add_scalar(name, value, step) for name, value in values.items()])

    def show_first_slot(self, content: torch.Tensor | str) -> None:
        """Write the first training samples: images [N, 3, H, W] uint8, or a text."""
        if isinstance(content, str):
            # Indented as a Markdown code block.
            lines = "\n".join(f"    {line}" for line in content.splitlines())
            text = f"The first samples of step 1 as the network got them:\n\n{lines}"
            self._write(lambda writer: writer.add_text("first_slot", text, 1))
            return
        self._write(lambda writer: writer.add_images("images/first_slot", content, 1))

    def flush(self) -> None:
        """Write what is still in memory."""
        self._write(lambda writer: writer.flush())

    def close(self) -> None:
        """Flush and close."""
        self._write(lambda writer: writer.close())

    def _write(self, write: Callable[[Any], object]) -> None:
        try:
            if self._writer is not None:
                write(self._writer)
        except OSError as error:
            print_error(f"warning: TensorBoard's files cannot be written any more: {error}")
            self._writer = None

    def _append(self, line: bytes) -> None:
        """Append a line to the newest part, unbuffered: a kill loses no line."""
        if self._folder is None:
            return
        if self._bytes >= PART_BYTES:
            self._part, self._bytes = self._part + 1, 0
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            with (self._folder / part_name(self._attempt, self._part)).open("ab" if self._bytes else "wb") as file:
                file.write(line)
        except OSError as error:
            self._folder = None
            print_error(f"warning: the scalars of this attempt cannot be written any more: {error}")
        self._bytes += len(line)


def write_result(folder: Path, training: Training, best: CheckpointManifest, report: EvaluationReport | None) -> None:
    """Write or replace hyperparameters and results of the best checkpoint; `report` is None without a test split."""
    from torch.utils.tensorboard import SummaryWriter
    from torch.utils.tensorboard.summary import hparams

    metrics = {f"best/{name}": value for name, value in best.metrics.items()}
    if report is not None:
        measured = report.metrics if report.loss is None else {**report.metrics, LOSS: report.loss}
        metrics |= {f"test/{name}": value for name, value in measured.items()}
    metrics = {name: value for name, value in metrics.items() if math.isfinite(value)}
    with tempfile.TemporaryDirectory() as temporary:
        with SummaryWriter(temporary) as writer:
            # SummaryWriter.add_hparams would create another run folder.
            for summary in hparams(_hyperparameters(training), metrics):  # type: ignore[no-untyped-call]
                writer.file_writer.add_summary(summary)
            for name, value in metrics.items():
                writer.add_scalar(name, value, best.step)
            if report is not None and report.baseline is not None:
                baseline = f"{report.headline.metric} {report.baseline.value:.4f}: {report.baseline.description}"
                writer.add_text("test/baseline", baseline, best.step)
        (path,) = Path(temporary).iterdir()
        (folder / RESULT_NAME).parent.mkdir(parents=True, exist_ok=True)
        storage.replace(storage.normalise(folder / RESULT_NAME), path.read_bytes())


def _hyperparameters(training: Training) -> dict[str, str | int | float]:
    config, train = training.config, training.config.train
    names = ("global_batch_size", "learning_rate", "schedule", "warmup_fraction", "optimizer", "weight_decay")
    values: dict[str, Any] = {
        "task": config.task.name,
        "architecture": config.model.architecture,
        **{name: getattr(train, name) for name in (*names, "label_smoothing", "epochs")},
        "slot_size": training.layout.slot_size,
        "ranks": training.rank.ranks,
        "steps": training.step,
        "precision": training.numerics.precision,
        "compile": training.numerics.compile,
        "seed": config.run.seed,
    }
    values |= {name: value for name, value in training.data.task.document().items() if isinstance(value, int | float)}
    # A bool would be stored as 1.0.
    return {name: str(value).lower() if isinstance(value, bool) else value for name, value in values.items()}
