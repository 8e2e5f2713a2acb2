"""A training whose ranks write what they train on, and may be held at a moment; and the comparison of two of them."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from contracts import storage
from contracts.events import LOG_NAME
from contracts.process import available_cores, end_with_parent, thread_environment, without_job
from tests.support.hooks import BUCKET_MB
from tests.support.pauses import PAUSE_AT, PAUSE_FILE
from tests.support.trace import ENVIRONMENT as TRACE
from tests.support.trace import TracedStep, read_trace
from trainer.checkpoint import CHECKPOINTS_FOLDER
from trainer.checkpoint.discovery import find_newest, list_checkpoints
from trainer.checkpoint.loading import load_groups
from trainer.launch.launcher import RANK_MODULE
from trainer.model.numerics import DETERMINISTIC_VARIABLE

# What trainer/worker.py calls in each rank.
HOOKS = {"SHARDLINE_HOOKS": "tests.support.hooks:install_hooks"}


class TracedTraining:
    """A training in a folder of its own."""

    def __init__(self, name: str, config: dict[str, Any], inputs: dict[str, str], folder: Path) -> None:
        self._config, self._inputs, self._folder = config, inputs, folder / name
        self.trace = self._folder / "trace"
        self.pauses_file = self._folder / "pauses.jsonl"
        self.log = self._folder / LOG_NAME
        self._attempts = 0
        self.trace.mkdir(parents=True)

    @property
    def output(self) -> str:
        """URI of the training folder."""
        return storage.normalise(self._folder / "training")

    def start(self, pauses: Sequence[str] = ()) -> subprocess.Popen[bytes]:
        """Start the stage once; `pauses_file` says which ranks are held at `pauses` (tests/support/pauses.py)."""
        self._attempts += 1
        command = [sys.executable, "-m", "trainer.task", "--config-json", json.dumps(self._config)]
        command += [f"--output={self.output}", f"--attempt=a{self._attempts}"]
        command += [f"--{name}={uri}" for name, uri in self._inputs.items()]
        environment = {**thread_environment(available_cores()), **without_job(os.environ), **HOOKS}
        # Bits are compared: a GPU adds up in any order otherwise.
        environment |= {TRACE: str(self.trace), DETERMINISTIC_VARIABLE: "1", BUCKET_MB: "0.005"}
        self.pauses_file.unlink(missing_ok=True)
        if pauses:
            environment |= {PAUSE_AT: ",".join(pauses), PAUSE_FILE: str(self.pauses_file)}
        with self.log.open("ab") as log:
            return subprocess.Popen(
                command,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                # Safe: this process has one thread.
                preexec_fn=end_with_parent,
            )

    def run(self) -> None:
        """Train to the end."""
        assert self.start().wait() == 0, self.log.read_text()[-3000:]


def find_ranks(pid: int) -> dict[int, int]:
    """Return the pids of the ranks below a process, by rank; their loader processes are not among them."""
    found = {}
    for process in descendants(pid):
        if RANK_MODULE in _read_proc(process, "cmdline"):
            variables = dict(entry.partition("=")[::2] for entry in _read_proc(process, "environ").split("\0"))
            # Its loader processes, forks of it, come after it.
            found.setdefault(int(variables["RANK"]), process)
    return found


def compare(expected: TracedTraining, found: TracedTraining) -> list[str]:
    """Return in words the first step, and the first tensor of each group, that differ; nothing when all is equal."""
    undisturbed = read_trace(expected.trace)
    assert undisturbed, "no step was traced"
    steps = compare_steps(undisturbed, read_trace(found.trace))
    return steps + _compare_tensors(expected, found)


def compare_steps(expected: dict[int, TracedStep], found: dict[int, TracedStep]) -> list[str]:
    """Return in words the first step that differs in its samples or its loss."""
    for number in sorted(expected.keys() | found.keys()):
        one, other = expected.get(number), found.get(number)
        if one is None or other is None or (one.samples, one.loss) != (other.samples, other.loss):
            return [f"step {number} is the first that differs: {other} instead of {one}"]
    return []


def _last_state(training: TracedTraining) -> dict[str, dict[str, str]]:
    """Return the sha256 of every tensor of a training's last checkpoint, by group and name."""
    folder = storage.join(training.output, CHECKPOINTS_FOLDER)
    found = find_newest(folder, list_checkpoints(folder))
    assert found.manifest is not None
    groups = load_groups(found.uri, found.manifest)
    return {group: {name: _sha256(tensor) for name, tensor in tensors.items()} for group, tensors in groups.items()}


def _sha256(tensor: torch.Tensor) -> str:
    return hashlib.sha256(tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()).hexdigest()


def _compare_tensors(expected: TracedTraining, found: TracedTraining) -> list[str]:
    ours, theirs = _last_state(found), _last_state(expected)
    differences = []
    for group in sorted(ours.keys() | theirs.keys()):
        one, other = theirs.get(group, {}), ours.get(group, {})
        names = sorted(name for name in one.keys() | other.keys() if one.get(name) != other.get(name))
        if names:
            differences.append(f"{group}: {names[0]} differs in the last checkpoint ({len(names)} of {len(one)} do)")
    return differences


def descendants(pid: int) -> Iterator[int]:
    """Yield the processes below one."""
    for child in _read_proc(pid, f"task/{pid}/children").split():
        yield int(child)
        yield from descendants(int(child))


def _read_proc(pid: int, name: str) -> str:
    try:
        return Path(f"/proc/{pid}/{name}").read_text(errors="replace")
    except OSError:
        return ""
