"""Starts the ranks of a profiling run on all machines, within the budget, and restarts them after a crash or a hang.

The training's launcher starts them (trainer/launch). Rank 0 (worker.py) runs the search and appends what it measures to
results.jsonl, a line of JSON per record:

    began_at, measurement_limit_s  start of the budget on the clock of time.monotonic; at_s is relative to it
    at_s, device                   the ranks have started
    at_s, command, limit_s         a measurement starts, with its time limit
    at_s, answer, kind             its result
    done, total, message           progress
    counters                       of the traced ranks

Restarted ranks replay the answers: only the measurement in progress is lost, and counts as failed. The result is
that of the search over the same file, so a run that ends early has a result from the answers so far.
"""

from __future__ import annotations

import json
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from statistics import fmean
from typing import Any, Literal

from pydantic import TypeAdapter

from contracts.artifacts import Settings
from contracts.artifacts.document import Document
from contracts.config import RunConfig
from contracts.config.resources import ResourcesSection
from contracts.errors import EXIT_FAULT, ConfigError, ErrorDocument, ForwardedError
from contracts.events import EventReader
from contracts.process import threads_per_rank
from contracts.stage import Output, Stage
from trainer.launch import Assignment
from trainer.launch.attempts import JobRecord
from trainer.launch.launcher import Launcher, run_ranks
from trainer.launch.nodes import PLATFORM_VARIABLES, Nodes, find_nodes
from trainer.profiling.search import (
    ComputeTime,
    Failed,
    JointRate,
    LoaderRate,
    ReportProgress,
    Result,
    make_space,
    search,
)

RESULTS_NAME, TRACE_FOLDER, FINISHED_NAME = "results.jsonl", "traces", "finished"
RANK_MODULE = "trainer.profiling.worker"
MAX_STARTS = 4
"""One start and three restarts."""
MEASUREMENT_LIMIT_S = 120.0
"""Timeout of a measurement in seconds, at most half of the remaining budget, so that a hang leaves time for other
settings."""
COMPILE_PATIENCE = 3
"""Factor on that limit for compiled networks, which compile for each slot size."""
# Largest share of the budget reserved for traces and the report, which take about as long as the start.
MOST_RESERVED = 0.25
_OVER = "ProfilingOver"

Answer = LoaderRate | ComputeTime | JointRate | Failed
_ANSWERS = {kind.__name__: TypeAdapter[Answer](kind) for kind in (LoaderRate, ComputeTime, JointRate, Failed)}


class Command(Document):
    """A measurement by all ranks in lockstep."""

    name: Literal["load", "compute", "window", "trace"]
    settings: Settings


@dataclass(frozen=True)
class Device:
    """Device of the ranks, and properties of the network and the data that limit the settings."""

    kind: Literal["cpu", "cuda"]
    name: str
    has_bf16: bool
    """Whether it computes in bf16 in hardware."""
    samples: int
    """Samples of the training split."""
    has_batch_norm: bool
    """Whether a BatchNorm of the network trains, so that small slots cost accuracy."""
    compiles: bool
    """Whether torch.compile may be used: input sizes do not vary."""
    has_layout: bool
    """Whether train.channels_last changes anything: an input or a weight has four dimensions."""
    network: str = "the network"
    """The network with its parameters and the longest sample, for messages."""


@dataclass(frozen=True)
class Counters:
    """Measurements of one rank at the chosen settings, without the profiler."""

    step_s: float
    """Mean time of an optimizer step."""
    samples_per_s: float
    """Of this rank."""
    data_time_fraction: float
    """Share of the step in which the host waits for the loader and the copy to the device."""
    flops_per_sample: float | None = None
    memory_peak_bytes: int | None = None
    memory_limit_bytes: int | None = None


@dataclass(frozen=True)
class Measurement:
    """Outcome of a profiling run."""

    wall_s: float
    """Seconds since the start of the ranks."""
    result: Result | None = None
    """None: the budget ended before the ranks started."""
    device: Device | None = None
    counters: list[Counters] = field(default_factory=list)
    """Of the chosen settings, by rank; empty: nothing was traced."""
    warnings: list[str] = field(default_factory=list)


def find_machines(environment: Mapping[str, str], resources: ResourcesSection) -> Nodes:
    """Return the machines that measure together; only this one if the environment names no others.

    Raises:
        ConfigError: The environment contradicts itself or the configuration.
    """
    if any(environment.get(name) for name in PLATFORM_VARIABLES):
        return find_nodes(environment, resources)
    return Nodes(0, 1, "", resources.port, "local", "")


def append(path: Path, **fields: Any) -> None:
    """Append a record to results.jsonl."""
    with path.open("a", encoding="utf-8") as stream:
        stream.write(json.dumps(fields) + "\n")


def append_answer(path: Path, at_s: float, answer: Answer) -> None:
    """Append the result of a measurement to results.jsonl."""
    append(path, at_s=at_s, kind=type(answer).__name__, answer=asdict(answer))


class RecordedProbe:
    """A `Probe` (search.py) that replays the answers of results.jsonl, and then measures.

    Args:
        path: The file.
        measure: Makes a measurement and appends its answer to the file.
    """

    def __init__(self, path: Path, measure: Callable[[Command], None]) -> None:
        self._reader, self._measure = EventReader(path), measure
        self._records: deque[dict[str, Any]] = deque()
        self._now_s = 0.0

    @property
    def is_replaying(self) -> bool:
        """Whether the file has the next answer."""
        self._records += (record for record in self._reader.poll() if "answer" in record or "device" in record)
        return any("answer" in record for record in self._records)

    def now(self) -> float:
        """Return the recorded time of the newest answer or start, which a replay repeats."""
        while self.is_replaying is not None and self._records and "device" in self._records[0]:
            self._now_s = self._records.popleft()["at_s"]
        return self._now_s

    def ask(self, name: Literal["load", "compute", "window", "trace"], settings: Settings) -> Any:
        """Return the answer to a command."""
        if not self.is_replaying:
            self._measure(Command(name=name, settings=settings))
        self.now()
        record = self._records.popleft()
        self._now_s = record["at_s"]
        return _ANSWERS[record["kind"]].validate_python(record["answer"])

    def load(self, settings: Settings) -> LoaderRate | Failed:
        """Measure the input pipeline alone."""
        answer: LoaderRate | Failed = self.ask("load", settings)
        return answer

    def compute(self, slot_size: int) -> ComputeTime | Failed:
        """Measure steps alone."""
        answer: ComputeTime | Failed = self.ask("compute", Settings(slot_size=slot_size, num_workers=0))
        return answer

    def run(self, settings: Sequence[Settings], *, rounds: int) -> list[JointRate | Failed]:
        """Measure both together, in turn, each window on a fresh loader; failed settings have no windows."""
        windows: list[list[JointRate]] = [[] for _ in settings]
        failed: dict[int, Failed] = {}
        for number in [*range(len(settings))] * rounds:
            if number not in failed:
                answer: JointRate | Failed = self.ask("window", settings[number])
                if isinstance(answer, Failed):
                    failed[number] = answer
                else:
                    windows[number].append(answer)
        for number, failure in failed.items():
            if failure.outcome != "budget":
                windows[number].clear()
        return [join_rates(rates) if rates else failed[number] for number, rates in enumerate(windows)]


def join_rates(rates: Sequence[JointRate]) -> JointRate:
    """Join windows of the same settings to one rate."""
    units = {name: fmean(rate.units_per_sample[name] for rate in rates) for name in rates[0].units_per_sample}
    waiting = fmean(rate.data_time_fraction for rate in rates)
    return JointRate(tuple(value for rate in rates for value in rate.windows), waiting, units)


def run_search(
    config: RunConfig,
    assignment: Assignment,
    device: Device,
    probe: RecordedProbe,
    report_progress: ReportProgress = lambda done, total, message: None,
) -> Result:
    """Search by a probe, within the budget less the reserve for traces and the report."""
    budget_s, train = config.profile.budget_s, config.train
    samples = train.epochs * device.samples
    if train.max_steps is not None:
        samples = min(samples, train.max_steps * train.global_batch_size)
    space = make_space(
        config,
        ranks=assignment.ranks * max(assignment.nodes, config.resources.num_nodes),
        cores_per_rank=threads_per_rank(assignment.ranks),
        on_gpu=device.kind == "cuda",
        has_batch_norm=device.has_batch_norm,
    )
    return search(
        replace(space, network=device.network),
        probe,
        budget_s=budget_s - min(probe.now(), MOST_RESERVED * budget_s),
        method="sweep" if config.profile.method == "sweep" else "auto",
        training_samples=samples,
        price_usd_per_h=config.resources.price_usd_per_h,
        report_progress=report_progress,
    )


@dataclass
class RankRunner(Launcher):
    """The launcher of a profiling run; on the first machine it reads results.jsonl and counts the starts."""

    stage: Stage = field(kw_only=True)

    def __post_init__(self) -> None:
        self.rank_module = RANK_MODULE
        self.path = Path(self.assignment.attempt_folder) / RESULTS_NAME
        self.budget_s = self.stage.config.profile.budget_s
        self._reader = EventReader(self.path)
        self._began_at = time.monotonic()
        self._start_s = 0.0
        """Duration of the first start."""
        self._on_gpu = False
        self._measurement: dict[str, Any] = {}
        self._overdue: Failed | None = None
        self.starts = 0
        self.reason = ""
        """Reason of the end of the last start."""
        self.ended = ""
        """Reason why there is no further start."""

    @property
    def now_s(self) -> float:
        """Seconds since the ranks were started for the first time."""
        return time.monotonic() - self._began_at

    def is_finished(self) -> bool:
        """Return whether the ranks of this machine have finished all measurements."""
        return (self.path.parent / FINISHED_NAME).exists()

    def counter(self) -> RankRunner:
        """Return the counter of starts: this."""
        return self

    def begin(self, end: ErrorDocument | None) -> ErrorDocument | None:
        """Count the next start; return an error that ends the run if there must be no further start."""
        if not self.path.exists():
            self._began_at = time.monotonic()
            patience = COMPILE_PATIENCE if self.stage.config.train.compile == "on" else 1
            append(self.path, began_at=self._began_at, measurement_limit_s=patience * MEASUREMENT_LIMIT_S)
        elif end is not None:
            self._read_records()
            failed = self._overdue or _describe_crash(end, on_gpu=self._on_gpu)
            self.reason = f"{failed.outcome}: {failed.reason}"
            if self._measurement:
                append_answer(self.path, self.now_s, failed)
        self._measurement, self._overdue = {}, None
        if self.now_s + self._start_s >= self.budget_s:
            self.ended = f"profile.budget_s {self.budget_s:g} is over"
        elif self.starts == MAX_STARTS:
            self.ended = f"the ranks ended {MAX_STARTS} times, the last time {self.reason}"
        if self.ended:
            return ErrorDocument(kind=_OVER, exit_code=EXIT_FAULT, message=self.ended)
        self.starts += 1
        return None

    def uncount_start(self) -> None:
        """Do not count the last start: a machine was preempted, which is no fault of the settings."""
        self.starts -= 1
        self._read_records()
        self._measurement = {}

    def is_overdue(self) -> bool:
        """Return whether a measurement has exceeded its time limit."""
        if self.assignment.node_rank:
            return False
        self._read_records()
        limit_s = self._measurement["at_s"] + self._measurement["limit_s"] if self._measurement else self.budget_s
        if self._overdue is None and self.now_s > limit_s:
            # Tolerates rounding of sums.
            outcome: Literal["budget", "timeout"] = "budget" if limit_s >= self.budget_s - 0.01 else "timeout"
            self._overdue = Failed(outcome, f"took longer than {self._measurement.get('limit_s', limit_s):.3g} s")
        return self._overdue is not None

    def _read_records(self) -> None:
        """Read the new records of rank 0."""
        for record in self._reader.poll():
            if "command" in record or "answer" in record:
                self._measurement = record if "command" in record else {}
            elif "device" in record and not self._start_s:
                self._start_s, self._on_gpu = record["at_s"], record["device"]["kind"] == "cuda"
                self.stage.ready()
            elif "message" in record:
                self.stage.progress(record["done"], record["total"], "measurements", record["message"])


def _describe_crash(end: ErrorDocument, *, on_gpu: bool) -> Failed:
    if end.kind == "out of memory":
        return Failed("out of memory", end.message)
    if "SIGKILL" in end.message:
        # Slots fill the device's memory; on a GPU host, the loader or another program fills the host's memory.
        outcome: Literal["crashed", "out of memory"] = "crashed" if on_gpu else "out of memory"
        return Failed(outcome, f"{end.message}; the kernel sends it when the host's memory runs out")
    return Failed("crashed", end.message)


def measure(
    stage: Stage, output: Output, *, shards: str, nodes: Nodes, ranks: int, threads: int, scratch: Path
) -> Measurement | None:
    """Start the ranks of this machine and measure; return the outcome; None on all machines but the first.

    Traces are left in `scratch/traces`.

    Args:
        stage: The profile stage.
        output: Its folder, shared by all machines.
        shards: URI of the shards.
        nodes: The machines that measure, and the number of this one.
        ranks: Training processes of this machine.
        threads: Intra-op threads of each.
        scratch: An empty folder of this machine.

    Raises:
        ConfigError: The ranks cannot start.
        ForwardedError: A rank failed with a user error: damaged data, a model that cannot be built.
        Preempted: This machine was told to stop.
        TryAgain: Another machine did not join or rejoin.
    """
    assignment = Assignment(
        config=stage.config.model_dump(mode="json"),
        shards=shards,
        profile=None,
        folder=output.uri,
        fingerprint=output.fingerprint,
        made_from=output.made_from,
        attempt=stage.attempt,
        attempt_folder=str(scratch),
        ranks=ranks,
        threads=threads,
        nodes=nodes.nodes,
        node_rank=nodes.node_rank,
    )
    record = JobRecord(stage.place, "")
    runner = RankRunner(assignment, nodes, stage.config.resources, record, stage.log, stage=stage)
    try:
        run_ranks(runner)
    except ForwardedError as error:
        if error.document.kind != _OVER:
            raise
    return _read_measurement(runner) if nodes.is_primary else None


def _read_measurement(runner: RankRunner) -> Measurement:
    """Return the outcome of the recorded answers, without further measurements."""
    records = list(EventReader(runner.path).poll())
    described = next((record["device"] for record in records if "device" in record), None)
    if described is None:
        if runner.starts < MAX_STARTS:
            return Measurement(runner.now_s)
        raise ConfigError(
            f"the profiling run could not start: {runner.reason}",
            allowed="a network that trains slots of two samples on this machine",
            todo="fix the reason (the output of the ranks is above); a smaller model or a smaller "
            "task.arguments.max_length may do, or set profile=off",
        )
    device = Device(**described)
    failed = Failed("budget", runner.ended or "the ranks have ended")
    probe = RecordedProbe(runner.path, lambda command: append_answer(runner.path, runner.now_s, failed))
    result = run_search(runner.stage.config, runner.assignment, device, probe)
    counters = [Counters(**each) for record in records for each in record.get("counters", ())]
    warnings = []
    if not counters and result.choice.measured:
        reason = _trace_failure(records) or f"profile.budget_s {runner.budget_s:g} left no time; to do: raise it"
        warnings.append(f"the chosen settings were not traced, so the diagnosis is missing: {reason}")
    return Measurement(runner.now_s, result, device, counters, warnings)


def _trace_failure(records: Sequence[dict[str, Any]]) -> str:
    """Return the failure of the trace, the last measurement; empty if it was not started."""
    name, reason = "", ""
    for record in records:
        if "command" in record:
            name = record["command"]["name"]
        elif record.get("kind") == "Failed" and name == "trace":
            reason = f"{record['answer']['outcome']}: {record['answer']['reason']}"
    return reason
