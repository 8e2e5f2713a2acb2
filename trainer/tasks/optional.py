"""Members that a task may have besides those of the interface: looked up here, and nowhere else.

calibration(device) -> Calibration   chooses something on the validation split, with the best weights
report(device) -> SplitReport     what evaluation.json and TensorBoard show of the test split, beyond metrics; a task
                                  with `calibration` has report(device, document) with its document
first_slot(batch) -> Tensor | str   what TensorBoard shows of the first samples of training: pictures, or a text
document() -> dict                what checkpoints say of the task's inputs
warnings() -> list of str         what is set in vain: said when training begins
check_device(device)              raises ConfigError where the task cannot be trained on the device
unit, count_units(batch) -> int   what throughput is told in besides samples, and how many of it a batch has
largest_example(size) -> Batch    the example batch with every dimension of the signature at max, to try memory

A member of such a name that cannot be called is none of these.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import torch

from contracts.artifacts import EvaluationReport
from contracts.errors import ConfigError, UserError
from trainer.model.signature import largest_sizes, resize_inputs
from trainer.tasks.protocol import Batch, Task

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter

# First samples of training that TensorBoard shows (`first_slot`).
SHOWN_SAMPLES = 16
_UNIT = re.compile(r"[a-z][a-z0-9_]{0,31}")


class SplitCollector(Protocol):
    """What a task keeps of each sample of a split."""

    def add(self, outputs: Any, batch: Batch, *, first_place: int) -> None:
        """Take in a batch.

        Args:
            outputs: Of the model, in float32.
            batch: As `to_model` returned it.
            first_place: Place in the split of its first sample; the others follow.
        """

    def merge(self) -> None:
        """Take in what all ranks have kept, at the first rank; all call this."""


class Calibration(SplitCollector, Protocol):
    """What a task chooses on the validation split at the end of training, such as thresholds."""

    def document(self) -> dict[str, Any]:
        """Return what was chosen, values of JSON; the first rank's, after `merge`. No sample may have come."""


class SplitReport(SplitCollector, Protocol):
    """What a task shows of a split."""

    def places(self) -> list[int]:
        """Return the places in the split of the samples that `details` names; the first rank's, after `merge`."""

    def details(self, origins: Sequence[tuple[str, str]]) -> dict[str, Any]:
        """Return `details` of evaluation.json, values of JSON; what samples hold is none of it: pages read that.

        Args:
            origins: Shard (its path, seen from the shards' folder) and key of each sample of `places`.
        """

    def show(self, writer: SummaryWriter, report: EvaluationReport, step: int) -> None:
        """Write something for TensorBoard, of the document at the checkpoint's step; pictures are the report page's."""


def make_calibration(task: Task, device: torch.device) -> Calibration | None:
    """Return what takes in the validation split's samples; None: the task has no `calibration`."""
    make: Callable[[torch.device], Calibration] | None = _find(task, "calibration")
    return None if make is None else make(device)


def make_report(task: Task, device: torch.device, calibrated: dict[str, Any] | None = None) -> SplitReport | None:
    """Return what takes in a split's samples; None: the task has no `report`.

    Args:
        task: The task.
        device: Of the model.
        calibrated: What the task's calibration has chosen; None: it has none.
    """
    make: Callable[..., SplitReport] | None = _find(task, "report")
    if make is None:
        return None
    return make(device) if calibrated is None else make(device, calibrated)


def make_first_slot(task: Task) -> Callable[[Batch], torch.Tensor | str] | None:
    """Return the function that maps the first samples of training, as `to_model` returned them, to pictures or a text.

    Pictures are [N, 3, H, W] uint8. None: the task has no `first_slot`.
    """
    make: Callable[[Batch], torch.Tensor | str] | None = _find(task, "first_slot")
    return make


def document_of(task: Task) -> dict[str, Any]:
    """Return what checkpoints say of the task's inputs."""
    make: Callable[[], dict[str, Any]] | None = _find(task, "document")
    return {} if make is None else make()


def warnings_of(task: Task) -> list[str]:
    """Return what the task says is set in vain."""
    make: Callable[[], list[str]] | None = _find(task, "warnings")
    return [] if make is None else make()


def check_device(task: Task, device: torch.device) -> None:
    """Have a task refuse the device that it is to be trained on.

    Raises:
        ConfigError: It does.
    """
    check: Callable[[torch.device], None] | None = _find(task, "check_device")
    if check is not None:
        check(device)


def unit_of(task: Task) -> str:
    """Return what the task counts besides samples, such as `tokens`; empty: nothing.

    Raises:
        ConfigError: It is no name, or the task has `unit` or `count_units` alone.
    """
    unit, counts = getattr(task, "unit", ""), _find(task, "count_units") is not None
    is_name = isinstance(unit, str) and (_UNIT.fullmatch(unit) is not None or not unit) and unit != "samples"
    if not is_name or bool(unit) != counts:
        raise ConfigError(
            f"unit of the task is {unit!r}, and it has {'a' if counts else 'no'} method count_units",
            allowed="both or neither; unit is a name of small letters, digits and _, and not samples",
            todo="correct unit and count_units (docs/tasks.md)",
        )
    return unit


def count_units(task: Task, batch: Batch) -> int:
    """Return how many of its unit a batch has; 0 where the task counts nothing.

    Args:
        task: The task.
        batch: As `collate` returned it.

    Raises:
        ConfigError: It fails, or returns no whole number from 0 on.
    """
    count: Callable[[Batch], int] | None = _find(task, "count_units")
    if count is None:
        return 0
    try:
        found = count(batch)
    except (UserError, MemoryError):
        raise
    except Exception as error:  # the user's code: whatever it raises is theirs to mend
        raise _count_error(f"failed: {type(error).__name__}: {error}") from error
    if not isinstance(found, int) or isinstance(found, bool) or found < 0:
        raise _count_error(f"returned {found!r}" if isinstance(found, int) else f"returned a {type(found).__name__}")
    return found


def largest_example(task: Task, size: int) -> Batch:
    """Return the example batch with every dimension of the signature at max.

    Of a task without `largest_example` the model's inputs are the example's, repeated; all else is the example's own.

    Args:
        task: The task.
        size: Samples.
    """
    make: Callable[[int], Batch] | None = _find(task, "largest_example")
    if make is not None:
        return make(size)
    batch, signature = task.example(size), task.signature
    inputs = tuple(batch[name] for name in signature.inputs)
    resized = resize_inputs(inputs, signature, largest_sizes(signature))
    return {**batch, **dict(zip(signature.inputs, resized, strict=True))}


def _find(task: Task, name: str) -> Any:
    """Return a member that can be called; None: there is none."""
    member = getattr(task, name, None)
    return member if callable(member) else None


def _count_error(found: str) -> ConfigError:
    return ConfigError(
        f"count_units of the task {found}",
        allowed="a whole number, from 0 on",
        todo="correct count_units (docs/tasks.md)",
    )
