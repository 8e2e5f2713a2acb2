"""The scalars that TensorBoard shows; what else it shows comes out of trainer/report/."""

from __future__ import annotations

from pathlib import Path
from typing import Any

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
        if self._writer is not None:
            for name, value in values.items():
                self._writer.add_scalar(name, value, step)

    def show(self, step: int, summary: Any) -> None:
        """Write a summary that is no scalar, at an optimizer step."""
        if self._writer is not None:
            self._writer.file_writer.add_summary(summary, step)

    def flush(self) -> None:
        """Write what is still in memory."""
        if self._writer is not None:
            self._writer.flush()

    def close(self) -> None:
        """Flush and close."""
        if self._writer is not None:
            self._writer.close()
