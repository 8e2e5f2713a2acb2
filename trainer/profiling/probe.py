"""Asks processes that train as ranks do (service.py), and outlives whatever a configuration does to them.

The processes of a machine's ranks are started once and serve many measurements, since a start costs seconds. A process
that dies or does not answer in time is an answer: all are killed, and started again for the next question.
"""

from __future__ import annotations

import contextlib
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from multiprocessing.connection import wait
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from contracts import storage
from contracts.artifacts import Flags, Settings
from contracts.config import RunConfig
from contracts.errors import ErrorDocument, ToldError
from trainer.profiling.machines import Machines
from trainer.profiling.measure import (
    ComputeTime,
    Failed,
    Hello,
    JointRate,
    LoaderRate,
    highest,
    join,
    mean,
    of_ranks,
    slowest,
)
from trainer.profiling.messages import Request
from trainer.profiling.rank_process import (
    PROBE_TIMEOUT_S,
    Group,
    RankProcess,
    RemoteRank,
    assignment_of,
    cannot_start,
    free_port,
)
from trainer.profiling.service import HELLO

# How long the others get to say the same when one rank has failed; then they wait for that one, and for nothing else.
GRACE_S = 2.0
# A measurement that is begun in the last seconds of the budget gets these: one that works answers.
LATE_S = 5.0
# Seconds that importing torch and reading the shards may take, beside a first measurement.
START_S = 60.0
# What torch.compile compiles is waited for this many times longer.
COMPILE_PATIENCE = 5
# Lines of a process's log that are shown where it has failed.
_LAST_LINES = 30
# Largest of failures first: of several ranks' reasons the one that explains the others.
_WORST = ("out of memory", "crashed", "failed", "hung", "budget")


class StartTooLong(Exception):
    """The processes were not ready in time; all of them are gone."""


class RankProbe:
    """Measures on all ranks at once, of this machine or of all; a `Probe` (measure.py).

    Args:
        config: The configuration.
        shards: URI of the shards.
        ranks: Training processes of this machine.
        threads: Intra-op threads of each, until a measurement sets its own.
        nodes: Machines that share the global batch, this one of them.
        machines: The others, which measure with this one; None: this one stands for all.
        folder: For what the processes are told and say; unset: a temporary one.
        budget_s: Seconds after which a first start is given up, by `StartTooLong`, and measurements are, as "budget",
            with what was measured by then; None: they are waited for, and a start that hangs is an error.
    """

    def __init__(
        self,
        config: RunConfig,
        *,
        shards: str,
        ranks: int,
        threads: int,
        nodes: int = 1,
        machines: Machines | None = None,
        folder: Path | None = None,
        budget_s: float | None = None,
    ) -> None:
        self._budget_s = budget_s
        self._config = config
        self.assignment = assignment_of(config, shards, ranks=ranks, threads=threads, nodes=nodes)
        self._machines = machines
        self._ranks: list[RemoteRank] = []
        self._starts = 0
        self._begun = time.monotonic()
        self._stack = contextlib.ExitStack()
        self._folder = folder
        self._memory: dict[tuple[int, Flags], int | None] = {}
        self.hello: Hello | None = None

    def __enter__(self) -> Self:
        # Closed where the start fails, too: then nobody leaves this.
        with contextlib.ExitStack() as stack:
            if self._folder is None:
                self._folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="shardline-probe-")))
            self._folder.mkdir(exist_ok=True)
            stack.callback(self._kill)
            self._start()
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    @property
    def measured_nodes(self) -> int:
        """Machines that measure together."""
        return 1 if self._machines is None else self.assignment.nodes

    @property
    def device(self) -> Hello:
        """What the ranks run on."""
        assert self.hello is not None
        return self.hello

    @property
    def memory_limit_bytes(self) -> int | None:
        """Most that a rank may take."""
        return self.device.memory_limit_bytes

    def now(self) -> float:
        """Return seconds since the first process was started."""
        return time.monotonic() - self._begun

    def load(self, settings: Settings) -> LoaderRate | Failed:
        """Measure the loader alone."""
        found = self.ask("load", settings=settings)
        if isinstance(found, Failed):
            return found
        return LoaderRate(slowest([one.windows for one in found]), mean([one.cpu_s_per_sample for one in found]))

    def compute(self, settings: Settings) -> ComputeTime | Failed:
        """Measure steps alone."""
        if (failed := self.try_alone(settings)) is not None:
            return failed
        found = self.ask("compute", settings=settings)
        if isinstance(found, Failed):
            return found
        # Watching memory takes time, so it is watched where nothing is timed; a GPU counts by itself.
        alone = None if self._is_on_gpu else self._memory.get((settings.slot_size, settings.flags))
        return ComputeTime(
            max(one.slot_s for one in found),
            max(one.last_slot_s for one in found),
            alone or highest([one.memory_bytes for one in found]),
            mean([one.cpu_s_per_sample for one in found]),
        )

    def run(self, settings: Sequence[Settings], *, rounds: int) -> list[JointRate | Failed]:
        """Measure both together, in turn. All are started first: starts and ends are in no window.

        Those of a bucket share caches, and cannot be held: of several each window is from a fresh loader on.
        """
        apart = len(settings) > 1 and not storage.is_local(self.assignment.shards)
        found: list[list[JointRate]] = [[] for _ in settings]
        failed: dict[int, Failed] = {}
        started: set[int] = set()
        for number in [*range(len(settings))] * rounds:
            if number in failed:
                continue
            one = settings[number]
            rate = self.run([one], rounds=1)[0] if apart else self._window(number, one, started)
            if isinstance(rate, Failed):
                failed[number] = rate
                # The processes have let go of everything, or are gone themselves.
                started.clear()
            else:
                found[number].append(rate)
        if started:
            self.ask("close")
        results: list[JointRate | Failed] = []
        for number, rates in enumerate(found):
            why = failed.get(number)
            # What was measured before the budget ended stands.
            results.append(join(rates) if why is None or (why.is_cut_off and rates) else why)
        for number, why in failed.items():
            if (
                not apart
                and why.outcome == "out of memory"
                and any(one.flags != settings[number].flags for one in settings)
            ):
                # Networks with other flags stood beside it.
                (results[number],) = self.run([settings[number]], rounds=rounds)
        return results

    def _window(self, number: int, settings: Settings, started: set[int]) -> JointRate | Failed:
        """Measure a window of a configuration, which is started if it is not yet."""
        if number not in started:
            failed = None if started else self.try_alone(settings)
            opened = failed or self.ask("open", number=number, settings=settings)
            if isinstance(opened, Failed):
                return opened
            started.add(number)
        found = self.ask("window", number=number)
        return found if isinstance(found, Failed) else of_ranks(found)

    def trace(self, settings: Settings, *, steps: int, folder: Path) -> list[Any] | Failed:
        """Trace steps of a configuration into files of `folder`; return what each rank counted."""
        found = self.ask("trace", settings=settings, steps=steps)
        for one in [] if isinstance(found, Failed) else found:
            for name, content in one.files.items():
                storage.replace(storage.normalise(folder / name), content)
        return found

    def try_alone(self, settings: Settings) -> Failed | None:
        """Let each rank try a size alone: one that has run out of memory leaves no peer waiting for it."""
        # With fsdp a forward pass is made by all ranks together.
        if (settings.slot_size, settings.flags) in self._memory or self._config.parallel.strategy == "fsdp":
            return None
        found = self.ask("fit", settings=settings)
        if isinstance(found, Failed):
            return found
        self._memory[settings.slot_size, settings.flags] = highest(found)
        return None

    # --- processes ----------------------------------------------------------------------------------------------------

    def _start(self) -> None:
        """Start the processes and hear what they run on.

        Raises:
            ToldError: The model cannot be built, or the data is damaged.
            ConfigError: Not even that worked.
            StartTooLong: It took longer than it may.
        """
        found = self._try_to_start()
        if isinstance(found, Failed) and found.outcome == "crashed":
            # By chance (another took the port), or each time: then it is told.
            found = self._try_to_start()
        if isinstance(found, Failed):
            if found.is_cut_off:
                raise StartTooLong
            raise cannot_start(found)
        limits = [one.memory_limit_bytes for one in found if one.memory_limit_bytes is not None]
        first: Hello = found[0]
        self.hello = replace(first, memory_limit_bytes=min(limits, default=None))

    def _try_to_start(self) -> list[Any] | Failed:
        assert self._folder is not None
        self._starts += 1
        assignment = self.assignment.model_copy(update={"generation": self._starts})
        path = self._folder / f"assignment-{self._starts}.json"
        storage.replace(storage.normalise(path), assignment.model_dump_json().encode())
        others, alone = self._machines, Group("127.0.0.1", free_port(), assignment.ranks)
        group = alone if others is None else others.group(assignment)
        self._ranks = [RankProcess(rank, assignment, path, group, self._folder) for rank in range(assignment.ranks)]
        if others is not None:
            self._ranks += others.start(assignment)
        timeout_s, late = self._patience(START_S + PROBE_TIMEOUT_S, least_s=0.0)
        found = self._hear(HELLO, {}, timeout_s=timeout_s, late=late)
        if isinstance(found, Failed):
            self._kill()
        return found

    def ask(self, name: str, **arguments: Any) -> list[Any] | Failed:
        """Ask all ranks the same; return their answers in order, or why there are none.

        Args:
            name: Of the measurement (service.py).
            arguments: Of the measurement.
        """
        if not self._ranks and self._budget_s is not None and self.now() >= self._budget_s:
            return Failed("budget", f"profile.budget_s {self._budget_s:g} is over")
        if not self._ranks and (failed := self._start_again()) is not None:
            return failed
        settings: Settings | None = arguments.get("settings")
        patience = COMPILE_PATIENCE if settings is not None and settings.flags.compile else 1
        timeout_s, late = self._patience(patience * PROBE_TIMEOUT_S, least_s=LATE_S)
        return self._hear(name, arguments, timeout_s=timeout_s, late=late)

    def _patience(self, timeout_s: float, *, least_s: float) -> tuple[float, Failed]:
        """Return the seconds that an answer is waited for within the budget, and what it means if none comes."""
        if self._budget_s is None or (left_s := self._budget_s - self.now()) >= timeout_s:
            return timeout_s, Failed("hung", f"no answer within {timeout_s:.3g} s")
        waited_s, allowed = max(least_s, left_s), f"what was left of profile.budget_s {self._budget_s:g}"
        return waited_s, Failed("budget", f"no answer within {waited_s:.3g} s ({allowed})")

    def _start_again(self) -> Failed | None:
        """Replace processes that are gone; one start may fail by chance (a port, memory that is not free yet)."""
        found = self._try_to_start()
        if isinstance(found, Failed):
            found = self._try_to_start()
        if isinstance(found, Failed):
            return Failed(found.outcome, f"processes could not be started again: {found.reason}")
        return None

    def _hear(self, name: str, arguments: dict[str, Any], *, timeout_s: float, late: Failed) -> list[Any] | Failed:
        deadline = time.monotonic() + timeout_s
        answers: dict[int, Any] = {}
        for process in self._ranks:
            process.send(Request(name=name, **arguments))  # type: ignore[arg-type]
        while len(answers) < len(self._ranks):
            waiting = {process.connection: process for process in self._ranks if process.rank not in answers}
            ready = wait(list(waiting), max(0.0, deadline - time.monotonic()))
            if not ready:
                break
            for connection in ready:
                process = waiting[connection]  # type: ignore[index]
                answers[process.rank] = process.receive(name)
                if isinstance(answer := answers[process.rank], ErrorDocument):
                    self._kill()
                    raise ToldError(answer)
                if isinstance(answer, Failed):
                    deadline = min(deadline, time.monotonic() + GRACE_S)
        failed = [answer for answer in answers.values() if isinstance(answer, Failed)]
        if len(answers) < len(self._ranks) and not failed:
            failed = [late]
        if not failed:
            return [answers[process.rank] for process in self._ranks]
        # Peers of one that failed may be anywhere in a collective, or have kept what the other has let go of. A process
        # that has run into RLIMIT_DATA is full of pieces that malloc keeps, and fails at the next best thing.
        spoilt = any(
            one.outcome in ("crashed", "hung", "budget") or (one.outcome == "out of memory" and not self._is_on_gpu)
            for one in failed
        )
        self._show_logs(failed)
        if spoilt or len(self._ranks) > 1:
            self._kill()
        return min(failed, key=lambda one: _WORST.index(one.outcome))

    def _show_logs(self, failed: Sequence[Failed]) -> None:
        """Show what processes said before they failed, where one line does not explain it."""
        if all(one.outcome == "out of memory" for one in failed):
            return
        for process in self._ranks:
            for line in process.new_lines()[-_LAST_LINES:]:
                print(f"profile: rank {process.rank}: {line}", file=sys.stderr, flush=True)

    @property
    def _is_on_gpu(self) -> bool:
        return self.hello is not None and self.hello.kind == "cuda"

    def _kill(self) -> None:
        ranks, self._ranks = self._ranks, []
        for process in ranks:
            process.kill()
        if self._machines is not None and len(ranks) > self.assignment.ranks:
            self._machines.kill()
