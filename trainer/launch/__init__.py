"""From a machine's environment to running ranks, and from their end to an exit code. See docs/launch.md."""

from trainer.launch.assignment import Assignment
from trainer.launch.machine import hardware, num_gpus, num_ranks

__all__ = ["Assignment", "hardware", "num_gpus", "num_ranks"]
