"""Scalars of an attempt: lines of JSON, of which pages draw curves, and TensorBoard's files."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from contracts.events import print_error
from contracts.scalars import PART_BYTES, part_name, scalars_line, start_line

# Whoever watches sees rows of so many seconds ago, at most; the writer's own two minutes are long beside an epoch.
FLUSH_S = 10


class Scalars:
    """Scalars of one attempt, to TensorBoard's files and as lines of JSON; ranks other than the first write nothing.

    Args:
        tensorboard_folder: For TensorBoard's files; None: none are written.
        parts: Takes the lines; None: none are written.
        first_step: The step that the attempt goes on from.
    """

    def __init__(self, tensorboard_folder: Path | None, parts: ScalarParts | None, *, first_step: int) -> None:
        self._writer: Any = None
        self._parts = parts
        if tensorboard_folder is not None:
            from torch.utils.tensorboard import SummaryWriter

            # purge_step: what a killed attempt wrote beyond its last checkpoint is hidden.
            # The step that it went on from was written before it was saved, and does not come again.
            self._writer = SummaryWriter(str(tensorboard_folder), purge_step=first_step + 1, flush_secs=FLUSH_S)

    def add(self, step: int, values: dict[str, float]) -> None:
        """Write values by name at an optimizer step."""
        if self._parts is not None:
            self._parts.add(step, values)
        for name, value in values.items():
            self._write(lambda writer, name=name, value=value: writer.add_scalar(name, value, step))

    def show(self, step: int, summary: Any) -> None:
        """Write a summary that is no scalar, at an optimizer step."""
        self._write(lambda writer: writer.file_writer.add_summary(summary, step))

    def keep(self, name: str, content: bytes) -> None:
        """Write a file beside TensorBoard's, which pages of the run show."""
        self._write(lambda writer: (Path(writer.log_dir) / name).write_bytes(content))

    def flush(self) -> None:
        """Write what is still in memory."""
        self._write(lambda writer: writer.flush())

    def close(self) -> None:
        """Flush and close."""
        self._write(lambda writer: writer.close())

    def _write(self, write: Callable[..., object]) -> None:
        """Write something; where the disk is full nothing more of this attempt is shown, and training goes on."""
        if self._writer is None:
            return
        try:
            write(self._writer)
        except OSError as error:
            print_error(f"warning: TensorBoard's files cannot be written any more: {error}")
            self._writer = None


class ScalarParts:
    """Writes the lines of an attempt (contracts/scalars.py); none are in memory, so that a kill loses none.

    Args:
        folder: A training's scalars/.
        attempt: Number of the attempt at the training.
        first_step: The step that it goes on from.
    """

    def __init__(self, folder: Path, *, attempt: int, first_step: int) -> None:
        self._folder, self._attempt = folder, attempt
        self._part = self._bytes = 0
        self._has_failed = False
        self._write(start_line(first_step, time.time()))

    def add(self, step: int, values: dict[str, float]) -> None:
        """Append the line of a step."""
        self._write(scalars_line(step, time.time(), values))

    def _write(self, line: bytes) -> None:
        """Append a line; where the disk is full nothing more of this attempt is written, and training goes on."""
        if self._has_failed:
            return
        if self._bytes >= PART_BYTES:
            # That part is sealed.
            self._part, self._bytes = self._part + 1, 0
        flags = os.O_WRONLY | os.O_CREAT | (os.O_APPEND if self._bytes else os.O_TRUNC)
        try:
            if not self._bytes:
                self._folder.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(self._folder / part_name(self._attempt, self._part), flags, 0o644)
            try:
                if os.write(descriptor, line) != len(line):
                    raise OSError("the disk is full")
            finally:
                os.close(descriptor)
        except OSError as error:
            self._has_failed = True
            print_error(f"warning: the scalars of this attempt cannot be written any more: {error}")
        self._bytes += len(line)
