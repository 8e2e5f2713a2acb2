"""One training of a drill: the stage's own command, started again until it is finished, and kills in between.

Ranks and their launcher are found in /proc (Linux): what is killed knows nothing of it.
"""

from __future__ import annotations

import itertools
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from contracts import storage
from contracts.endings import without_job
from contracts.errors import EXIT_OK, EXIT_TRY_AGAIN, ErrorDocument, ShardlineError
from contracts.events import ATTEMPTS_FOLDER, ERROR_NAME, LOG_NAME
from contracts.process import available_cores, end_with_parent, thread_environment
from trainer.drill.pauses import PAUSE_AT, PAUSE_FILE
from trainer.drill.progress import DrillProgress
from trainer.drill.trace import ENVIRONMENT as TRACE_VARIABLE
from trainer.launch.process_tree import children, descendants, read_proc
from trainer.model.precision import DETERMINISTIC_VARIABLE

# Without a mode every third kill meets a checkpoint between its data and its manifest.
_MID_CHECKPOINT_EVERY = 3
# No training of a drill is without a new step for so long, unless something hangs.
SILENCE_S = 300.0
_LOOK_S = 0.02
_TORCHRUN = "trainer.launch.agent"


@dataclass
class Kill:
    """One kill, planned or done."""

    mode: str
    step: int
    """Optimizer step at which it was planned, then at which it happened; for mid-checkpoint first the number of saves
    of a process."""
    what: str = ""
    at: float = 0.0
    """Seconds since the epoch."""
    restart_s: float | None = None
    """Seconds to the next optimizer step of a new process; None: none was needed."""


def plan_kills(kills: int, mode: str | None, *, num_steps: int, generator: random.Random) -> list[Kill]:
    """Draw kills: those within a checkpoint first, since they need processes that pause there."""
    modes = [mode or ("mid-checkpoint" if i % _MID_CHECKPOINT_EVERY == 2 else "sigkill") for i in range(kills)]
    saves = [Kill(one, generator.randint(1, 2)) for one in modes if one == "mid-checkpoint"]
    moments = sorted(generator.randrange(1, num_steps) for _ in range(kills - len(saves)))
    others = [one for one in modes if one != "mid-checkpoint"]
    return saves + [Kill(one, moment) for one, moment in zip(others, moments, strict=True)]


class DrillTraining:
    """A training in a folder of its own."""

    def __init__(
        self,
        name: str,
        config: dict[str, Any],
        inputs: dict[str, str],
        folder: Path,
        *,
        say: Callable[[str], None] = lambda message: None,
    ) -> None:
        self.name, self._config, self._inputs, self._folder = name, config, inputs, folder / name
        self.trace = self._folder / "trace"
        self.pauses_file = self._folder / "pauses.jsonl"
        self._attempts = 0
        self._watch = TraceWatch(self.trace)
        self._progress = DrillProgress(name, say)
        self.trace.mkdir(parents=True)

    @property
    def output(self) -> str:
        """URI of the training folder."""
        return storage.normalise(self._folder / "training")

    def run(self, kills: list[Kill], generator: random.Random) -> list[Kill]:
        """Train to the end; return the kills that happened.

        Raises:
            ShardlineError: Training ended with an error that no kill explains, or hangs.
        """
        left, done = list(kills), []
        while True:
            process = self._start(left[0] if left else None)
            try:
                while left and self._comes_to(left[0], process, generator):
                    self._hit(left[0], process, generator)
                    done.append(left.pop(0))
                    told = f"kill {len(done)} of {len(kills)}: {done[-1].what}, at step {done[-1].step}"
                    self._progress.say(told)
                code = self._wait(process)
            finally:
                _end_family(process)
            if code == EXIT_OK:
                return done
            if not done or (code != EXIT_TRY_AGAIN and code >= 0):
                raise self._failure(code)

    def _start(self, kill: Kill | None) -> subprocess.Popen[bytes]:
        pauses = [f"before-manifest:{kill.step}:0"] if kill is not None and kill.mode == "mid-checkpoint" else []
        return self.start(pauses)

    def start(self, pauses: Sequence[str] = ()) -> subprocess.Popen[bytes]:
        """Start the stage once.

        Args:
            pauses: Where ranks are held (trainer/drill/pauses.py); `pauses_file` says who is.
        """
        self._attempts += 1
        attempt = f"a{self._attempts}"
        self._progress.follow(self._folder / ATTEMPTS_FOLDER / attempt)
        self._progress.say("starts" if self._attempts == 1 else f"starts again, attempt {self._attempts}")
        command = [sys.executable, "-m", "trainer.task", "--config-json", json.dumps(self._config)]
        command += [f"--output={self.output}", f"--attempt={attempt}"]
        command += [f"--{name}={uri}" for name, uri in self._inputs.items()]
        environment = {
            **thread_environment(available_cores()),
            **without_job(os.environ),
            TRACE_VARIABLE: str(self.trace),
        }
        # Bits are compared: a GPU adds up in any order otherwise.
        environment[DETERMINISTIC_VARIABLE] = "1"
        self.pauses_file.unlink(missing_ok=True)
        if pauses:
            environment |= {PAUSE_AT: ",".join(pauses), PAUSE_FILE: str(self.pauses_file)}
        self._watch.touch()
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

    @property
    def log(self) -> Path:
        """What the stage has printed."""
        return self._folder / LOG_NAME

    def _comes_to(self, kill: Kill, process: subprocess.Popen[bytes], generator: random.Random) -> bool:
        """Wait for the moment of a kill; False when training ends before it."""
        while process.poll() is None:
            step = self._watch.look()
            self._progress.look()
            if kill.mode == "mid-checkpoint":
                if self.pauses_file.exists():
                    return True
            elif step >= kill.step and find_ranks(process.pid):
                # Anywhere within a step, not just behind its end.
                time.sleep(generator.random() * self._watch.step_s)
                return process.poll() is None
            self._refuse_silence()
            time.sleep(_LOOK_S)
        return False

    def _hit(self, kill: Kill, process: subprocess.Popen[bytes], generator: random.Random) -> None:
        kill.at, kill.step = time.time(), self._watch.look()
        if kill.mode == "mid-checkpoint":
            kill.what = "all processes, between the data and the manifest of a checkpoint"
            _end_family(process)
        elif kill.mode == "sigterm":
            kill.what = "SIGTERM to the stage"
            process.send_signal(signal.SIGTERM)
        else:
            ranks = find_ranks(process.pid)
            number = signal.SIGKILL if kill.mode == "sigkill" else signal.SIGSTOP
            rank = generator.choice(sorted(ranks)) if ranks else -1
            kill.what = f"{number.name} to rank {rank}"
            with suppress(ProcessLookupError, KeyError):
                os.kill(ranks[rank], number)

    def _wait(self, process: subprocess.Popen[bytes]) -> int:
        while (code := process.poll()) is None:
            self._watch.look()
            self._progress.look()
            self._refuse_silence()
            time.sleep(_LOOK_S)
        self._progress.look()
        return code

    def _refuse_silence(self) -> None:
        if self._watch.silence_s > SILENCE_S:
            raise ShardlineError(
                f"the {self.name} training hangs: no optimizer step for {SILENCE_S:.0f} s; its log is {self.log}"
            )

    def _failure(self, code: int) -> ShardlineError:
        path = self._folder / ATTEMPTS_FOLDER / f"a{self._attempts}" / ERROR_NAME
        if path.exists():
            document = ErrorDocument.model_validate_json(path.read_bytes())
            return _Ended(f"the {self.name} training ended: {document.message}", document.exit_code)
        return ShardlineError(f"the {self.name} training ended with {code}; its log is {self.log}")


class _Ended(ShardlineError):
    def __init__(self, message: str, exit_code: int) -> None:
        super().__init__(message)
        self.exit_code = exit_code  # type: ignore[misc]


class TraceWatch:
    """The newest step in the growing files of a trace."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._offsets: dict[Path, int] = {}
        self._step = 0
        self._times: list[float] = []
        self._heard = time.monotonic()

    def touch(self) -> None:
        """Count the silence from now on."""
        self._heard = time.monotonic()

    def look(self) -> int:
        """Read what is new; return the newest step that any rank has taken."""
        for path in sorted(self._folder.glob("*.jsonl")):
            offset = self._offsets.get(path, 0)
            if path.stat().st_size == offset:
                continue
            with path.open("rb") as stream:
                stream.seek(offset)
                content = stream.read()
            whole = content.rfind(b"\n") + 1
            self._offsets[path] = offset + whole
            for line in content[:whole].splitlines():
                entry = json.loads(line)
                self._step = int(entry["step"])
                self._times = [*self._times[-20:], float(entry["time"])]
            self.touch()
        return self._step

    @property
    def step_s(self) -> float:
        """Seconds of a step, lately."""
        gaps = [after - before for before, after in itertools.pairwise(self._times)]
        return sorted(gaps)[len(gaps) // 2] if gaps else 0.1

    @property
    def silence_s(self) -> float:
        """Seconds since something new was read."""
        return time.monotonic() - self._heard


def find_ranks(pid: int) -> dict[int, int]:
    """Return the pids of the ranks below a process, by rank; their loader processes are not among them."""
    found = {}
    for launcher in descendants(pid):
        if _TORCHRUN in read_proc(launcher, "cmdline"):
            for child in children(launcher):
                variables = dict(entry.partition("=")[::2] for entry in read_proc(child, "environ").split("\0"))
                if "RANK" in variables:
                    found[int(variables["RANK"])] = child
    return found


def _end_family(process: subprocess.Popen[bytes]) -> None:
    """Kill a stage and everything below it, as when the machine goes away."""
    family = [process.pid, *descendants(process.pid)]
    if process.poll() is None:
        for pid in family:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    process.wait()
