"""The scalars that TensorBoard shows; what else it shows comes out of trainer/report/."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from contracts.events import print_error

# Whoever watches sees rows of so many seconds ago, at most; the writer's own two minutes are long beside an epoch.
FLUSH_S = 10


class Scalars:
    """TensorBoard scalars of one attempt; ranks other than the first write nothing."""

    def __init__(self, folder: Path | None, *, first_step: int) -> None:
        self._writer: Any = None
        if folder is not None:
            from torch.utils.tensorboard import SummaryWriter

            # purge_step: what a killed attempt wrote beyond its last checkpoint is hidden.
            # The step that it went on from was written before it was saved, and does not come again.
            self._writer = SummaryWriter(str(folder), purge_step=first_step + 1, flush_secs=FLUSH_S)

    def add(self, step: int, values: dict[str, float]) -> None:
        """Write values by name at an optimizer step."""
        for name, value in values.items():
            self._write(lambda writer, name=name, value=value: writer.add_scalar(name, value, step))

    def show(self, step: int, summary: Any) -> None:
        """Write a summary that is no scalar, at an optimizer step."""
        self._write(lambda writer: writer.file_writer.add_summary(summary, step))

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
