"""One rank of a profiling run: `python -m trainer.profiling.worker ASSIGNMENT LAUNCHER_PID`, started by runner.py.

Rank 0 runs the search and broadcasts each command; all ranks execute it and gather their answers. Each rank first tries
a slot size alone, and the outcomes are gathered, so that no rank waits in a collective for one without memory. An error
in a collective part ends the process, and the runner restarts all ranks.

torch is imported after the set-up of the process (contracts/process.py: run_process), so not at the top.
"""

from __future__ import annotations

import gc
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from contracts import storage
from contracts.artifacts import Settings
from contracts.artifacts.signature import Signature
from contracts.config import RunConfig
from contracts.errors import EXIT_OK, EXIT_TRY_AGAIN, DataError, ErrorDocument, UserError
from contracts.events import EventReader, print_error
from contracts.own_code import install_code
from contracts.process import end_with_parent, imports_done, run_process
from trainer.launch import Assignment
from trainer.profiling.runner import (
    COMPILE_PATIENCE,
    FINISHED_NAME,
    MEASUREMENT_LIMIT_S,
    RESULTS_NAME,
    TRACE_FOLDER,
    Answer,
    Command,
    Device,
    RecordedProbe,
    append,
    append_answer,
    join_rates,
    run_search,
)
from trainer.profiling.search import ComputeTime, Failed, JointRate, LoaderRate

if TYPE_CHECKING:
    from torch import nn

    from trainer.parallel.process_group import Rank

# Smallest time limit of a measurement near the end of the budget, within the rest of the budget.
LEAST_LIMIT_S = 5.0
# Practically unlimited epochs for the measured steps.
_ENDLESS = 1_000_000
# By priority: the failure most likely to be the cause of the others first.
_WORST = ("out of memory", "crashed", "failed", "timeout", "budget")
# Timeout of collectives: longer than any measurement, which the runner limits.
_COLLECTIVE_LIMIT_S = 2 * COMPILE_PATIENCE * MEASUREMENT_LIMIT_S


def main(path: str, launcher_pid: int) -> NoReturn:
    """Run the measurements of one rank, and exit."""
    end_with_parent()
    if os.getppid() != launcher_pid:
        os._exit(os.EX_TEMPFAIL)
    # The default action: there is nothing to save.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    assignment = Assignment.model_validate_json(Path(path).read_bytes())
    config = RunConfig.model_validate(assignment.config)
    try:
        install_code(config.code)
        from trainer.parallel.process_group import process_group

        with process_group(setup_timeout_s=_COLLECTIVE_LIMIT_S, timeout_s=_COLLECTIVE_LIMIT_S) as rank:
            Worker(assignment, config, rank).run()
        (Path(assignment.attempt_folder) / FINISHED_NAME).touch()
        # The interpreter's shutdown takes half a second.
        os._exit(EXIT_OK)
    except Exception as error:  # noqa: BLE001 - the entry of a process is where everything ends
        document = ErrorDocument.of(error, traceback.format_exc())
        if not isinstance(error, UserError):
            failed = describe_failure(error)
            # Peers may record their failure first; a step gives this one priority.
            step = 0 if failed.outcome == "out of memory" else None
            document = ErrorDocument(kind=failed.outcome, exit_code=EXIT_TRY_AGAIN, message=failed.reason, step=step)
            print_error(traceback.format_exc())
        assignment.write_end(int(os.environ["RANK"]), document)
        # Destroying the process group would wait for peers that died or hang.
        os._exit(document.exit_code)


def describe_failure(error: Exception) -> Failed:
    """Return an error as the outcome of a measurement."""
    from trainer.report.gauges import is_allocation_error

    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    first = (lines[0] if lines else type(error).__name__)[:300]
    if is_allocation_error(error):
        return Failed("out of memory", first)
    if isinstance(error, UserError):
        return Failed("failed", error.given)
    is_crash = isinstance(error, RuntimeError) and str(error).startswith("DataLoader worker (pid")
    return Failed("crashed" if is_crash else "failed", f"{type(error).__name__}: {first}")


class Worker:
    """The measurements of one rank.

    Args:
        assignment: From the runner.
        config: The configuration.
        rank: This process among its peers.
    """

    def __init__(self, assignment: Assignment, config: RunConfig, rank: Rank) -> None:
        self._assignment, self._config, self._rank = assignment, config, rank
        self._folder = Path(assignment.attempt_folder)
        self._path = self._folder / RESULTS_NAME
        self._tried: set[int] = set()
        self._number = 0

    def run(self) -> None:
        """Execute measurements until rank 0 ends the search."""
        device = self.prepare()
        imports_done()
        # Excludes the million objects of imports from each measurement's garbage collection.
        gc.freeze()
        if not self._rank.is_first:
            while (message := self._broadcast(None)) is not None:
                self._execute(*message)
            return
        records = list(EventReader(self._path).poll())
        self._began_at, self._limit_s = records[0]["began_at"], records[0]["measurement_limit_s"]
        # Different places in the epoch than before a restart.
        self._number = len(records)
        append(self._path, at_s=self._now_s(), device=asdict(device))
        probe = RecordedProbe(self._path, self._measure)

        def report_progress(done: int, total: int, message: str) -> None:
            if not probe.is_replaying:
                append(self._path, done=done, total=total, message=message)

        result = run_search(self._config, self._assignment, device, probe, report_progress)
        if result.choice.measured:
            probe.ask("trace", result.choice.settings())
        self._broadcast(None)

    def prepare(self) -> Device:
        """Read the shards, build the network, and describe the device; all ranks together.

        Raises:
            UserError: The model cannot be built or trained, or the data is damaged.
        """
        import torch

        from trainer.data.training_data import TrainingData
        from trainer.model.numerics import fix_numerics
        from trainer.profiling.bench import Bench

        config, rank, assignment = self._config, self._rank, self._assignment
        # If one machine is measured for several, the global batch is reduced to its part.
        machines = max(assignment.nodes, config.resources.num_nodes)
        batch = max(rank.ranks, -(-config.train.global_batch_size * assignment.nodes // machines))
        train = config.train.model_copy(update={"epochs": _ENDLESS, "max_steps": None, "global_batch_size": batch})
        endless = config.model_copy(update={"train": train})
        data = TrainingData(assignment, endless, rank, lambda message: None)
        fix_numerics(assignment.threads, rank.device)
        self.bench = Bench(data, endless, rank)
        stepper = self.bench.stepper
        # Training would later refuse a last batch of one sample at any slot size.
        pinned = config.parallel.slot_size
        stepper.check_slots_of_one(data.samples, config.train.global_batch_size if pinned == "auto" else pinned, config)
        on_gpu = rank.device.type == "cuda"
        return Device(
            kind="cuda" if on_gpu else "cpu",
            name=torch.cuda.get_device_name(rank.device) if on_gpu else "CPU",
            has_bf16=on_gpu and torch.cuda.is_bf16_supported(including_emulation=False),
            samples=data.samples,
            has_batch_norm=has_batch_norm(stepper.model),
            compiles=not self.bench.varies,
            has_layout=has_layout(stepper.model, data.task.signature),
            network=describe_network(stepper.model, data.task.signature),
        )

    # --- commands -----------------------------------------------------------------------------------------------------

    def _measure(self, command: Command) -> None:
        """On rank 0: run a command on all ranks, and append the answer to results.jsonl."""
        budget_s, now_s = self._config.profile.budget_s, self._now_s()
        remaining_s = budget_s - now_s
        if remaining_s <= 0:
            append_answer(self._path, now_s, Failed("budget", f"profile.budget_s {budget_s:g} is over"))
            return
        limit_s = min(remaining_s, max(LEAST_LIMIT_S, min(self._limit_s, remaining_s / 2)))
        append(self._path, at_s=now_s, command=command.model_dump(), limit_s=limit_s)
        self._broadcast((command, self._number))
        answer = self._execute(command, self._number)
        self._number += 1
        append_answer(self._path, self._now_s(), answer)

    def _execute(self, command: Command, number: int) -> Any:
        """Execute a command with the other ranks, and return the merged answer."""
        bench, settings = self.bench, command.settings
        bench.move_to(number)
        if command.name == "load":
            return self._agree(lambda: bench.load(settings))
        if settings.slot_size not in self._tried and not bench.in_lockstep:
            # All ranks build the network together, then each tries the size alone.
            built = self._agree(bench.build, catches=self._rank.ranks == 1)
            failed = built or self._agree(lambda: bench.try_size(settings.slot_size))
            if failed is not None:
                return failed
            self._tried.add(settings.slot_size)
        measure: dict[str, Callable[[], Answer]] = {
            "compute": lambda: bench.compute(settings.slot_size),
            "window": lambda: bench.window(settings),
            "trace": lambda: self._trace(settings),
        }
        # With several ranks an error ends the process, since peers may wait in a collective.
        return self._agree(measure[command.name], catches=self._rank.ranks == 1)

    def _agree(self, measure: Callable[[], Answer | None], *, catches: bool = True) -> Any:
        """Measure, and return the merged answer of all ranks; after a failure, all discard the network."""
        try:
            answer = measure()
        except DataError:
            # Damaged data fails with all settings.
            raise
        except Exception as error:
            if not catches:
                raise
            answer = describe_failure(error)
            if answer.outcome != "out of memory":
                print_error(traceback.format_exc())
        # Outside of the except block, whose traceback keeps tensors alive.
        answer = merge_answers(self._gather(answer))
        if isinstance(answer, Failed):
            self.bench.rebuild()
        return answer

    def _trace(self, settings: Settings) -> JointRate:
        """Count and trace steps; rank 0 writes the counters to results.jsonl and the traces to its folder.

        The answer has no windows: it only reports success.
        """
        folder = self._folder / TRACE_FOLDER
        folder.mkdir(exist_ok=True)
        path = folder / f"rank-{self._rank.rank}.pt.trace.json.gz"
        counters = self.bench.trace(settings, path)
        traced = self._gather_on_first((asdict(counters), path.name, path.read_bytes()))
        if self._rank.is_first:
            for _, name, content in traced:
                storage.replace(storage.normalise(folder / name), content)
            append(self._path, counters=[counters for counters, *_ in traced])
        return JointRate((), 0.0)

    # --- ranks --------------------------------------------------------------------------------------------------------

    def _now_s(self) -> float:
        seconds: float = time.monotonic() - self._began_at
        return seconds

    def _broadcast(self, message: tuple[Command, int] | None) -> tuple[Command, int] | None:
        """Return rank 0's command and its number on all ranks; None: the search has ended."""
        import torch.distributed as dist

        messages = [message]
        if self._rank.ranks > 1:
            dist.broadcast_object_list(messages, src=0)
        return messages[0]

    def _gather_on_first(self, value: Any) -> list[Any]:
        """Return the values of all ranks on rank 0; all-gathered traces could fill the memory of each rank."""
        import torch.distributed as dist

        if self._rank.ranks == 1:
            return [value]
        values = [None] * self._rank.ranks if self._rank.is_first else None
        dist.gather_object(value, values, dst=0)
        return values or []

    def _gather(self, answer: Any) -> list[Any]:
        import torch.distributed as dist

        answers = [answer] * self._rank.ranks
        if self._rank.ranks > 1:
            dist.all_gather_object(answers, answer)
        return answers


def merge_answers(answers: Sequence[Any]) -> Any:
    """Merge the answers of all ranks: a failure, or the slowest rank's value per window."""
    first = min(answers, key=lambda answer: _WORST.index(answer.outcome) if isinstance(answer, Failed) else len(_WORST))
    if first is None or isinstance(first, Failed):
        return first
    if isinstance(first, ComputeTime):
        memory = [answer.memory_bytes for answer in answers if answer.memory_bytes is not None]
        return ComputeTime(
            max(answer.slot_s for answer in answers),
            max(answer.last_slot_s for answer in answers),
            max(memory, default=None),
        )
    windows = tuple(min(rates) for rates in zip(*(answer.windows for answer in answers), strict=True))
    return LoaderRate(windows) if isinstance(first, LoaderRate) else replace(join_rates(answers), windows=windows)


def has_batch_norm(model: nn.Module) -> bool:
    """Return whether a BatchNorm of the network, in training mode, takes its statistics from the slot.

    Frozen layers stay in evaluation mode.
    """
    from torch.nn.modules.batchnorm import _BatchNorm

    return any(module.training for module in model.modules() if isinstance(module, _BatchNorm))


def has_layout(model: nn.Module, signature: Signature) -> bool:
    """Return whether an input or a weight has the four dimensions that a memory layout is chosen for."""
    return 4 in {*(len(spec.shape) for spec in signature.inputs.values()), *(each.ndim for each in model.parameters())}


def describe_network(model: nn.Module, signature: Signature) -> str:
    """Return the number of parameters and the longest sample in words."""
    number = sum(parameter.numel() for parameter in model.parameters())
    longest = "".join(f", samples up to {name} {size.max}" for name, size in signature.dimensions.items())
    return f"a network of {number / 1e6:.3g} M parameters{longest}"


if __name__ == "__main__":
    run_process(lambda: main(sys.argv[1], int(sys.argv[2])))
