"""The scalars that TensorBoard shows."""

from __future__ import annotations

from pathlib import Path
from typing import Any


class Scalars:
    """TensorBoard scalars of one attempt; ranks other than the first write nothing."""

    def __init__(self, folder: Path | None, *, first_step: int) -> None:
        self._writer: Any = None
        if folder is not None:
            from torch.utils.tensorboard import SummaryWriter

            # purge_step: what a killed attempt wrote beyond its last checkpoint is hidden.
            self._writer = SummaryWriter(str(folder), purge_step=first_step)

    def add(self, step: int, values: dict[str, float]) -> None:
        """Write values by name at an optimizer step."""
        if self._writer is not None:
            for name, value in values.items():
                self._writer.add_scalar(name, value, step)

    def close(self) -> None:
        """Flush and close."""
        if self._writer is not None:
            self._writer.close()
