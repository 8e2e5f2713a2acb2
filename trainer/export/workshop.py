"""One export under way: its folder, what was made and found so far, and what every step cost.

Here: `Workshop`. It runs steps as processes (processes.py), holds a graph against torch, and records tries; which steps
there are is said by making.py, which precision is tried by choosing.py. Nothing here imports torch, onnx or a builder.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import Literal, ParamSpec, TypeVar

from contracts import storage
from contracts.artifacts import (
    Attempt,
    Calibration,
    EngineEntry,
    Gate,
    GraphEntry,
    Latency,
    Parity,
    Served,
    ShippedFile,
    hash_content,
)
from contracts.artifacts.export import Container
from contracts.artifacts.signature import Signature
from contracts.config import ExportSection
from contracts.config.stages import Runtime
from contracts.proof import SERVED
from trainer.export.bundle.triton import model_path
from trainer.export.bundle.triton_config import ServedModel
from trainer.export.engines.engine_gate import Candidate, EngineRunner, Trials, make_trials
from trainer.export.engines.onnx_run import OnnxRunner
from trainer.export.gates import parity, proof, scores
from trainer.export.gates.arrays import StoredArrays
from trainer.export.gates.proof import Ends, TestSplit
from trainer.export.gates.scores import Scores
from trainer.export.graph.onnx_graph import Shapes
from trainer.export.inputs import Inputs
from trainer.export.processes import Cost, run_step

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")

# Samples whose outputs are computed at a time where no engine's profile is at stake: an even share of memory and speed.
BATCH = 16


class Workshop:
    """One export under way.

    Args:
        inputs: Checkpoint, shards and builder.
        settings: What is asked for.
        seed: Of calibration.
        folder: An empty folder of this machine.
        threads: Intra-op threads of each step.
        tell: Told of each step that is done.

    Attributes:
        shipment: Folder of all that ships.
        signature: Of the task.
        split, calibration_inputs: What the gates take of the test split, and the calibration's samples, on disk.
        reference, kind: torch's outputs of `split`, and what the model returns.
        ends: Some samples of it at the ends of each dimension; None: none varies but the batch.
        fp32_outputs: Those of the fp32 graph.
        gates, tried, parity, costs: What was found so far; costs by step.
        scores: The task's metrics on the test split, by what gave them.
        precision: What ships.
        runner: What builds and runs engines for the GPU of this machine; None: there is none that engines are for.
        server: What runs the served ONNX file on that GPU; None: no GPU, no provider, or a plan is served.
        candidates: The engine of each precision that the runner built last (`candidate_path`).
        model, served: What Triton is told of the model, and what ran of it.
    """

    def __init__(
        self,
        inputs: Inputs,
        settings: ExportSection,
        *,
        seed: int,
        folder: Path,
        threads: int,
        tell: Callable[[str], None],
    ) -> None:
        self.inputs, self.settings, self.seed, self.threads, self.tell = inputs, settings, seed, threads, tell
        self.folder, self.shipment = folder, folder / "shipment"
        self.shipment.mkdir()
        self.gates: list[Gate] = []
        self.tried: list[Attempt] = []
        self.parity: dict[str, dict[str, Parity]] = {"onnx": {}, "engine": {}}
        self.costs: dict[str, Cost] = {}
        self.scores: dict[str, Scores] = {}
        self.graphs: list[GraphEntry] = []
        self.engines: list[EngineEntry] = []
        self.latency: list[Latency] = []
        self.latency_left_out: dict[str, str] = {}
        self.calibration: Calibration | None = None
        self.precision = "fp32"
        self.runner: EngineRunner | None = None
        self.server: OnnxRunner | None = None
        self.candidates: dict[str, Candidate] = {}
        # Set once they are there (making.write_fp32).
        self.signature: Signature
        self.split: TestSplit
        self.calibration_inputs: StoredArrays
        self.reference: StoredArrays
        self.kind: Container
        self.ends: Ends | None
        self.fp32_outputs: StoredArrays
        self.graph_inputs: Shapes
        self.graph_outputs: Shapes
        self.model: ServedModel
        self.served: Served

    @property
    def test_samples(self) -> int:
        """Samples of the test split."""
        return self.inputs.shards.splits["test"].samples

    @property
    def runtime(self) -> Runtime:
        """What serves."""
        return self.inputs.builder.module

    @property
    def served_name(self) -> str:
        """Path of the model that Triton loads, below the shipment."""
        return model_path(self.inputs.config.task.name, self.runtime)

    @property
    def verdict(self) -> Literal["proven", "unproven"]:
        """Whether what is served ran as it is served, every engine ran and passed, and an int8 one was timed."""
        # Of another precision are those of tries that failed.
        ours = [gate for gate in self.gates if gate.precision == self.precision]
        ran = [gate for gate in ours if gate.name.startswith("engine") or gate.name in ("speed", SERVED)]
        return "proven" if all(gate.status == "passed" for gate in ran) and self.served.is_proven else "unproven"

    @cached_property
    def trials(self) -> Trials:
        """What an engine must run and refuse."""
        return make_trials(self.split.inputs, self.reference, self.ends, self.settings.batches, self.folder)

    def path(self, precision: str) -> Path:
        """Return where the graph of a precision lies, or is to be written."""
        placed = next((entry.name for entry in self.graphs if entry.precision == precision), None)
        return self.shipment / (placed or f"model.{precision}.onnx")

    def candidate_path(self, precision: str, *, of: str = "") -> Path:
        """Return where the engine of a graph that may ship lies until it does, or what another gate runs of it."""
        return self.folder / f"candidate.{precision}.{of or 'engine'}"

    def step(
        self, name: str, function: Callable[Parameters, Result], /, *given: Parameters.args, **named: Parameters.kwargs
    ) -> Result:
        """Call a function in a process of its own, and keep what it cost under a step's name."""
        result, cost = run_step(function, *given, **named)
        self.costs[name] = cost if name not in self.costs else self.costs[name].add(cost)
        return result

    def judge_graph(self, graph: Path, precision: str) -> list[Gate]:
        """Run a graph over the test split and return its gates; the last graph of a precision has its figures."""
        folder = self.folder / f"{precision}-outputs"
        # Of a try before this one.
        shutil.rmtree(folder, ignore_errors=True)
        outputs, found = self.step(
            f"{precision} outputs",
            _run_graph,
            self.inputs,
            graph,
            self.split,
            folder,
            kind=self.kind,
            precision=precision,
            threads=self.threads,
        )
        self.scores[precision] = found
        ran = parity.name_of_onnx(precision)
        compared = parity.compare_stored(self.reference, outputs, self.signature, ran=ran, precision=precision)
        self.parity["onnx"][precision] = compared
        if precision == "fp32":
            self.fp32_outputs = outputs
        return parity.judge(compared, precision)

    def settle(self, attempt: Attempt) -> bool:
        """Record the last try of a precision; return whether it passed, and so ships."""
        self.tried.append(attempt)
        path = self.path(attempt.precision)
        if attempt.outcome == "failed":
            path.unlink(missing_ok=True)
            self.tell(f"{attempt.precision} failed: {attempt.reason}")
            return False
        self.graphs.append(self._describe_graph(attempt))
        self.precision = attempt.precision
        self.tell(f"{attempt.precision} graph and its parity with torch")
        return True

    def _describe_graph(self, attempt: Attempt) -> GraphEntry:
        path = self.path(attempt.precision)
        entry = ShippedFile.of(storage.normalise(self.shipment), path.name)
        return GraphEntry(
            **entry.model_dump(),
            precision=attempt.precision,
            kept_fp32=attempt.kept_fp32,
        )


def _run_graph(
    inputs: Inputs, graph: Path, split: TestSplit, folder: Path, *, kind: str, precision: str, threads: int
) -> tuple[StoredArrays, Scores]:
    outputs = proof.write_graph_outputs(
        graph, split.inputs, folder, batch_size=BATCH, threads=threads, precision=precision
    )
    return outputs, scores.measure_scores(inputs.load_task(), inputs.config, split, outputs, kind)


def hash_file(path: Path) -> str:
    """Return the sha256 of a file."""
    return hash_content(storage.normalise(path))


def describe_failed(gates: list[Gate]) -> str:
    """Return the gates that failed, with their figures; empty when none did."""
    lines = []
    for gate in gates:
        if gate.status == "failed":
            figures = ", ".join(
                f"{name} {value:.6g}" if isinstance(value, float) else f"{name} {value}"
                for name, value in gate.figures.items()
            )
            limits = ", ".join(f"{name} {value:g}" for name, value in gate.limits.items())
            lines.append(f"{gate.precision} {gate.name}: {gate.reason} ({figures}; limits: {limits})")
    return "\n  ".join(lines)
