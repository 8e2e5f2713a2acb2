"""Starts torchrun with one process per rank, and learns how it ended.

torchrun hides the exit codes of its processes: a rank that fails leaves error.json in the attempt's folder, and
training is finished when, and only when, the training folder has its manifest.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from types import FrameType
from typing import Any

from pydantic import BaseModel, ConfigDict

from contracts import storage
from contracts.artifacts import MANIFEST_NAME
from contracts.config import RunConfig
from contracts.errors import EXIT_USER_ERROR, ErrorDocument, ShardlineError, TryAgain
from contracts.events import ERROR_NAME
from contracts.process import available_cores, end_with_parent, thread_environment

# Ranks without a GPU: two, so that the distributed path is the one that runs everywhere.
CPU_RANKS = 2
# Restarts of the ranks by torchrun within one attempt, after a crash.
MAX_RESTARTS = 3
ASSIGNMENT_NAME = "assignment.json"


class Assignment(BaseModel):
    """What a rank is told: everything but its rank."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    config: dict[str, Any]
    shards: str
    profile: str | None
    folder: str
    """URI of the training folder."""
    fingerprint: str
    made_from: dict[str, str]
    attempt: str
    attempt_folder: str
    """Path of the attempt's events."""
    ranks: int
    threads: int


def hardware() -> dict[str, str]:
    """Describe this machine without importing torch: cores, CPU, and the names of NVIDIA GPUs."""
    gpus = []
    for information in sorted(Path("/proc/driver/nvidia/gpus").glob("*/information")):
        lines = dict(line.partition(":")[::2] for line in information.read_text().splitlines())
        gpus.append(lines.get("Model", "unknown").strip())
    cpu = "unknown"
    if (cpuinfo := Path("/proc/cpuinfo")).exists():
        for line in cpuinfo.read_text().splitlines():
            if line.startswith("model name"):
                cpu = line.partition(":")[2].strip()
                break
    return {"cores": str(available_cores()), "cpu": cpu, "gpus": ", ".join(gpus) or "none"}


def num_ranks(config: RunConfig) -> int:
    """Return the number of training processes: the configuration's, else one per GPU, else two."""
    if config.resources.ranks != "auto":
        return config.resources.ranks
    gpus = hardware()["gpus"]
    return CPU_RANKS if gpus == "none" else len(gpus.split(", "))


def torchrun_command(assignment: Path, ranks: int) -> list[str]:
    """Return the command that starts the ranks of this machine."""
    return [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        f"--nproc-per-node={ranks}",
        f"--max-restarts={MAX_RESTARTS}",
        # Seconds between looks at the processes: a crash is noticed soon, the cost is nothing.
        "--monitor-interval=0.1",
        "--module",
        "trainer.worker",
        str(assignment),
    ]


def run_ranks(assignment: Assignment) -> None:
    """Run all ranks to the end of training.

    Raises:
        ShardlineError: With the message and exit code of the rank that failed.
        TryAgain: The ranks ended without finishing and without saying why.
    """
    folder = Path(assignment.attempt_folder)
    path = folder / ASSIGNMENT_NAME
    storage.replace(storage.normalise(path), assignment.model_dump_json(indent=1).encode())
    (folder / ERROR_NAME).unlink(missing_ok=True)
    process = subprocess.Popen(
        torchrun_command(path, assignment.ranks),
        env={**os.environ, **thread_environment(assignment.threads), "PYTHONUNBUFFERED": "1"},
        stdin=subprocess.DEVNULL,
        # stdout belongs to the stage: its last line is the result.
        stdout=sys.stderr,
        # Safe: this process has one thread.
        preexec_fn=end_with_parent,
    )
    previous = signal.signal(signal.SIGTERM, _forward_to(process))
    try:
        code = process.wait()
    finally:
        signal.signal(signal.SIGTERM, previous)
    if storage.exists(storage.join(assignment.folder, MANIFEST_NAME)):
        # Left by a rank that was restarted since.
        (folder / ERROR_NAME).unlink(missing_ok=True)
        return
    raise _reason(folder / ERROR_NAME, code)


class _RankFailed(ShardlineError):
    """The error of a rank, told again by the launcher."""

    def __init__(self, document: ErrorDocument) -> None:
        super().__init__(document.message)
        self.exit_code = document.exit_code  # type: ignore[misc]


def _reason(path: Path, code: int) -> ShardlineError:
    if path.exists():
        return _RankFailed(ErrorDocument.model_validate_json(path.read_bytes()))
    return TryAgain(
        f"training ended before it was finished (torchrun returned {code}); the same command continues from the newest "
        "valid checkpoint"
    )


def failed_for_good(path: Path) -> bool:
    """Whether a rank of this attempt ended by a user error: torchrun restarts whatever fails, in vain."""
    return path.exists() and ErrorDocument.model_validate_json(path.read_bytes()).exit_code == EXIT_USER_ERROR


def _forward_to(process: subprocess.Popen[bytes]) -> Any:
    def forward(number: int, frame: FrameType | None) -> None:
        process.send_signal(number)

    return forward
