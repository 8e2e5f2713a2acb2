"""A process that plays a run: what a planted run has left appears bit by bit, as if stages worked now.

    python -m tests.inspection.ui.player STAGED LINE RUN

STAGED is a line with a finished run. The player holds the run's lock in LINE as `shardline run` does, and goes on by
one phase (`PHASES`) for each line on its stdin; it says the phase on its stdout when all of it is there.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path

from contracts import storage
from contracts.output import Lock
from contracts.scalars import SCALARS_FOLDER

PHASES = ("sharding", "training", "trained", "ended")


class Player:
    """The run that is played."""

    def __init__(self, staged: Path, line: Path, run_id: str) -> None:
        self._staged = staged
        self._line = line
        self._run_id = run_id
        self._told: dict[str, int] = {}

    def play(self, phase: str) -> None:
        """Let happen what happens in a phase."""
        if phase == "sharding":
            self._copy("runs", self._run_id, "run-start.json")
            self._tell("shard", until="progress")
        elif phase == "training":
            for stage in ("shard", "profile"):
                self._finish(stage)
            self._tell("train", until="spent")
        elif phase == "trained":
            self._copy("train", "c" * 16, SCALARS_FOLDER)
            self._finish("train")
            self._tell("export", until="ready")
        else:
            self._finish("export")
            self._copy("runs", self._run_id, "run.json")

    def _finish(self, stage: str) -> None:
        for folder in (self._staged / stage).iterdir():
            if folder.name != "attempts":
                self._copy(stage, folder.name)
        self._tell(stage, until=None)

    def _tell(self, stage: str, *, until: str | None) -> None:
        """Append events up to the first of a kind, or all; each by one write, as a stage does."""
        name = Path(stage, "attempts", self._run_id, "events.jsonl")
        lines = (self._staged / name).read_text().splitlines()
        begun = self._told.get(stage, 0)
        target = self._line / name
        target.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(target, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        for place in range(begun, len(lines)):
            os.write(descriptor, f"{lines[place]}\n".encode())
            self._told[stage] = place + 1
            if json.loads(lines[place])["event"] == until:
                break
        os.close(descriptor)

    def _copy(self, *parts: str) -> None:
        source, target = self._staged.joinpath(*parts), self._line.joinpath(*parts)
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.is_dir():
            shutil.copytree(source, target, dirs_exist_ok=True)
        else:
            # Nobody sees half of a document.
            storage.publish(storage.normalise(target), source.read_bytes())


def main() -> None:
    """Play, a phase a line of stdin."""
    staged, line, run_id = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3]
    player = Player(staged, line, run_id)
    lock = Lock(storage.normalise(line / "runs" / run_id))
    for phase in PHASES:
        if not sys.stdin.readline():
            return
        player.play(phase)
        if phase == PHASES[-1]:
            lock.release()
        print(phase, flush=True)


if __name__ == "__main__":
    main()
