"""Whether an engine computes what torch computes: it runs the proof's samples, and every end of its profile.

Here: `EngineRunner`, which builds, runs and times engines (engine_run.py has the one of a GPU); `make_trials`;
`judge_engine`, the gate `engine TARGET`; `judge_candidate`, the same for a graph that may ship; `judge_speed`. Nothing
here needs a GPU by itself.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from contracts.artifacts import EngineTensor, Gate, Parity
from contracts.artifacts.export import Figure
from contracts.artifacts.signature import Signature
from contracts.errors import CheckFailed, ConfigError, DataError, ShardlineError, TryAgain
from contracts.proof import SERVED
from trainer.export.gates import parity, scores
from trainer.export.gates.arrays import StoredArrays, store_arrays
from trainer.export.gates.proof import Ends, TestSplit
from trainer.export.gates.scores import Scores
from trainer.export.inputs import Inputs

if TYPE_CHECKING:
    from trainer.export.workshop import Workshop

# Samples at the smallest batch: that it runs is seen by some, and one by one all would take long.
_FEW = 8


@dataclass(frozen=True)
class Trial:
    """Inputs that an engine runs in batches of one size, and torch's outputs of them."""

    name: str
    inputs: StoredArrays
    reference: StoredArrays
    batch: int
    """Smaller batches are filled up to it by repeating samples."""
    most: int | None = None
    """Of the first so many samples; None: all."""


@dataclass(frozen=True)
class Trials:
    """What an engine must run, and what it must refuse."""

    run: tuple[Trial, ...]
    """The first has all samples of the proof."""
    refuse: Mapping[str, StoredArrays]
    """Batches outside of the profile, by what is too large in them."""


@dataclass(frozen=True)
class Ran:
    """What came of trials."""

    outputs: list[StoredArrays]
    """By trial."""
    accepted: list[str]
    """Names of what should have been refused, and was not."""
    device: str


@dataclass(frozen=True)
class Candidate:
    """An engine that may ship."""

    tensors: list[EngineTensor]
    """What it takes and gives."""
    build_s: float
    """Seconds of its build, its process's start included."""


class EngineRunner(Protocol):
    """Builds engines for a device of this machine, runs them and times them."""

    @property
    def name(self) -> str:
        """Package and version that builds."""

    @property
    def target(self) -> str:
        """Compute capability of the device (sm89)."""

    def build(self, graph: Path, engine: Path, *, precision: str) -> list[EngineTensor]:
        """Write the engine of a graph; return what it takes and gives.

        Raises:
            ModelError: The builder refuses the graph.
        """

    def run(self, engine: Path, trials: Trials, folder: Path) -> Ran:
        """Run trials; outputs are written below an empty folder. Outputs have the order of the signature.

        Raises:
            CheckFailed: The engine does not load, or does not run a trial.
        """

    def time(self, engines: Sequence[Path], inputs: StoredArrays, batch: int) -> list[float]:
        """Return milliseconds that a batch takes, the median of many, by engine; they are called in turns."""


def make_trials(
    inputs: StoredArrays, reference: StoredArrays, ends: Ends | None, batches: tuple[int, int, int], folder: Path
) -> Trials:
    """Return the trials of an engine.

    Args:
        inputs: The proof's.
        reference: Outputs of torch, or of the fp32 graph that agrees with it.
        ends: Samples at the ends of each dimension that varies; None: none does.
        batches: Smallest, tuned and largest batch size.
        folder: Where one batch that is too large is written.
    """
    least, tuned, most = batches
    found = [Trial(f"batch {tuned}", inputs, reference, tuned)]
    if least != tuned:
        found.append(Trial(f"batch {least}", inputs, reference, least, max(_FEW, least)))
    if most != tuned:
        found.append(Trial(f"batch {most}", inputs, reference, most, most))
    refuse = {f"batch {most + 1}": store_arrays(folder / "batch-beyond", [inputs.fill(most + 1)])}
    if ends is not None:
        found.append(Trial(f"ends of dimensions, batch {most}", ends.inputs, ends.reference, most))
        refuse |= ends.beyond
    return Trials(tuple(found), refuse)


def judge_engine(
    runner: EngineRunner,
    engine: Path,
    trials: Trials,
    signature: Signature,
    *,
    precision: str,
    folder: Path,
    judge_outputs: Callable[[StoredArrays, str], Gate] | None = None,
    name: str = "",
    limits: str = "",
) -> tuple[Gate, Parity]:
    """Hold an engine against the reference at every trial.

    Args:
        runner: Runs it.
        engine: The file.
        trials: What it must run and refuse.
        signature: Its inputs and outputs.
        precision: Of the engine.
        folder: For outputs, which are deleted.
        judge_outputs: Returns a further gate of the outputs of the first trial: what its answers are worth.
        name: Of the gate; by default `engine TARGET`.
        limits: Whose limits hold (parity.LIMITS); by default those of the precision.

    Returns:
        The gate, and the figures of the first trial.

    Raises:
        CheckFailed: It does not load, or does not run.
    """
    limits = limits or precision
    with tempfile.TemporaryDirectory(dir=folder, prefix="engine-") as place:
        ran = runner.run(engine, trials, Path(place))
        who = f"{runner.name} on {ran.device} ({runner.target})"
        found = [
            parity.compare_stored(trial.reference, outputs, signature, ran=who, precision=limits, most=trial.most)
            for trial, outputs in zip(trials.run, ran.outputs, strict=True)
        ]
        gates = parity.judge(found[0], limits)
        if judge_outputs is not None:
            gates.append(judge_outputs(ran.outputs[0], who))
    reasons = [f"{gate.name}: {gate.reason}" for gate in gates if gate.status == "failed"]
    figures: dict[str, Figure] = {name: value for gate in gates for name, value in gate.figures.items()}
    for trial, one in zip(trials.run[1:], found[1:], strict=True):
        # Answers of few samples decide nothing: numbers do.
        numbers = parity.judge(one, limits)[0]
        figures |= {f"{figure} at {trial.name}": numbers.figures[figure] for figure in numbers.limits}
        if numbers.status == "failed":
            reasons.append(f"{trial.name}: {numbers.reason}")
    figures |= {f"refuses {what}": what not in ran.accepted for what in trials.refuse}
    reasons += [f"it runs {what}, beyond its profile" for what in ran.accepted]
    gate = Gate(
        name=name or f"engine {runner.target}",
        precision=precision,
        status="failed" if reasons else "passed",
        ran=who,
        figures=figures,
        limits={what: value for gate in gates if gate.status != "not decidable" for what, value in gate.limits.items()},
        reason="; ".join(reasons),
    )
    return gate, found[0]


def judge_candidate(work: Workshop, graph: Path, precision: str) -> list[Gate]:
    """Return the gates of a graph that may ship on this machine's GPU: of its engine, and of the served ONNX file.

    None without a GPU that they are for. Whatever goes wrong there is a gate that failed, so that something else is
    tried: a refused graph, a crash, a batch for which there is no memory. The engine stays in the workshop for the
    graph that ships.
    """
    gates = []
    if (runner := work.runner) is not None:
        gate, found = _judge_built(work, runner, graph, precision, work.trials)
        work.parity["engine"][runner.target] = found
        gates.append(gate)
    if (server := work.server) is not None and not any(gate.status == "failed" for gate in gates):
        # A batch beyond the largest does not come to it: Triton refuses it.
        trials, limits = replace(work.trials, refuse={}), server.limits_of(precision)
        gates.append(_judge_built(work, server, graph, precision, trials, name=SERVED, limits=limits)[0])
    return gates


def _judge_built(
    work: Workshop,
    runner: EngineRunner,
    graph: Path,
    precision: str,
    trials: Trials,
    *,
    name: str = "",
    limits: str = "",
) -> tuple[Gate, Parity]:
    engine = work.candidate_path(precision, of=name)
    try:
        began = time.monotonic()
        tensors = runner.build(graph, engine, precision=precision)
        if not name:
            work.candidates[precision] = Candidate(tensors, time.monotonic() - began)
        return judge_engine(
            runner,
            engine,
            trials,
            work.signature,
            precision=precision,
            folder=work.folder,
            judge_outputs=partial(_judge_metric, work, precision),
            name=name,
            limits=limits,
        )
    except (TryAgain, ConfigError, DataError):
        raise
    except ShardlineError as error:
        reason = str(error).strip()
        gate = Gate(
            name=name or f"engine {runner.target}",
            precision=precision,
            status="failed",
            ran=runner.name,
            reason=reason,
        )
        return gate, Parity(ran=f"not run: {reason.splitlines()[0]}")


def judge_speed(work: Workshop, fp16_graph: Path) -> Gate:
    """Return the gate `speed` of the int8 engine that is in the workshop: it must be faster than one in fp16.

    Args:
        work: The workshop.
        fp16_graph: The fp16 graph that the int8 graph was made from.
    """
    runner, batch = work.runner or work.server, work.settings.batches[1]
    if runner is None:
        reason = "unproven: only engines of both, timed on the GPU, show that int8 is faster than fp16"
        return Gate(name="speed", precision="int8", status="not run", ran="not run: no GPU", reason=reason)
    engine = work.folder / "peer.fp16.engine"
    figures: dict[str, Figure] = {"batch": batch}
    limits: dict[str, float] = {}
    try:
        runner.build(fp16_graph, engine, precision="fp16")
        built = work.candidate_path("int8", of="" if work.runner else SERVED)
        int8_ms, fp16_ms = runner.time([built, engine], work.split.inputs, batch)
        figures |= {"int8_ms": int8_ms, "fp16_ms": fp16_ms}
        limits["int8_ms"] = fp16_ms
        # Written so that a NaN fails.
        reason = "" if int8_ms < fp16_ms else "int8 is not faster than fp16 on this GPU"
    except (TryAgain, ConfigError, DataError):
        raise
    except ShardlineError as error:
        reason = f"there is no fp16 engine to be faster than: {error}"
    finally:
        engine.unlink(missing_ok=True)
    return Gate(
        name="speed",
        precision="int8",
        status="failed" if reason else "passed",
        ran=f"{runner.name} ({runner.target})",
        figures=figures,
        limits=limits,
        reason=reason,
    )


def require_engine(gates: Sequence[Gate]) -> None:
    """End the export where the engine of what nothing is left behind has failed.

    Raises:
        CheckFailed: With its reason.
    """
    for gate in gates:
        if gate.status == "failed":
            raise CheckFailed(
                f"the gate {gate.name} of {gate.precision} failed on the GPU, and there is nothing left to fall "
                f"back to; nothing is published\n  {gate.reason}"
            )


def _judge_metric(work: Workshop, precision: str, outputs: StoredArrays, ran: str) -> Gate:
    """Hold the task's metrics of an engine's outputs against those of the fp32 graph."""
    found = work.step("engine metrics", _measure, work.inputs, work.split, outputs, kind=work.kind)
    return scores.judge_scores(
        precision=precision, reference=work.scores["fp32"], found=found, samples=work.split.samples, ran=ran
    )


def _measure(inputs: Inputs, split: TestSplit, outputs: StoredArrays, *, kind: str) -> Scores:
    return scores.measure_scores(inputs.load_task(), inputs.config, split, outputs, kind)
