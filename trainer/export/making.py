"""Production of an export: fp32 graph, graph of the precision that passes its gates, engine, shipped files.

Here: `make`, run by task.py. Every heavy step is a process of its own (processes.py). A precision that fails a gate
falls back: int8 to fp16, fp16 to a second try that keeps more in fp32 (half.py), then to fp32. Nothing here imports
torch, onnx or a builder.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Literal, ParamSpec, TypeVar

from contracts import storage
from contracts.artifacts import Attempt, EngineEntry, Gate, GraphEntry, Headline, Latency, ShippedFile
from contracts.artifacts.export import PARITY, Container
from contracts.artifacts.signature import Signature
from contracts.errors import CheckFailed, ConfigError, DataError, ModelError, ShardlineError, TryAgain
from contracts.serving import TENSORRT_RTX
from trainer.export import compare, engine
from trainer.export.arrays import Arrays, Batches, fill, read_arrays
from trainer.export.inputs import Inputs
from trainer.export.int8 import quantize_to_int8
from trainer.export.processes import Cost, run_step
from trainer.export.runtime import Builder, check_precision, gpu_target
from trainer.export.samples import CALIBRATION_SAMPLES, Proof, end_inputs, write_calibration, write_proof
from trainer.export.triton import model_path, write_repository
from trainer.predict.bundle import ExportedFiles, kind_of, read_labels, write_bundle
from trainer.predict.program_gate import judge_program

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")

# Training samples for comparing the fp16 model with the fp32 model, and for finding its largest values.
_HALF_SAMPLES = 8


@dataclass(frozen=True)
class Reference:
    """Samples of the gates, with torch's outputs and metrics."""

    signature: Signature
    container: Container
    proof: Proof
    expected: Batches
    """torch's outputs of the proof, batch by batch."""
    ends: tuple[tuple[str, Path, Path], ...]
    """Name of an end (`length 16`), inputs of that size and torch's outputs."""
    metrics: dict[str, float]
    headline: Headline
    calibration: Batches
    """Training samples; none with precision fp32."""


@dataclass
class Export:
    """State of an export.

    Args:
        inputs: Checkpoint, shards, builder and configuration.
        folder: An empty folder of this machine.
        threads: Intra-op threads of each step.
        progress: Called after each part of the work with the parts done, all parts, and a message.
    """

    inputs: Inputs
    folder: Path
    threads: int
    progress: Callable[[int, int, str], None]
    graphs: list[GraphEntry] = field(default_factory=list)
    engine: EngineEntry | None = None
    gates: list[Gate] = field(default_factory=list)
    tried: list[Attempt] = field(default_factory=list)
    metrics: dict[str, dict[str, float]] = field(default_factory=dict)
    latency: list[Latency] = field(default_factory=list)
    costs: dict[str, Cost] = field(default_factory=dict)
    parts: int = 0
    """Number of parts that are done."""

    def __post_init__(self) -> None:
        self.shipment.mkdir()

    def report(self, message: str) -> None:
        """Report that a part of the work is done."""
        self.parts += 1
        config, has_engine = self.inputs.config, self.inputs.builder.target is not None
        planned = 3 + (config.export.precision != "fp32") + has_engine + (kind_of(config.task.name) != "own")
        # Each fallback adds parts.
        self.progress(self.parts, max(self.parts, planned), message)

    @property
    def shipment(self) -> Path:
        """Folder of all that ships."""
        return self.folder / "shipment"

    @property
    def served(self) -> str:
        """Path of the served model, below the shipment."""
        return self.graphs[-1].name if self.engine is None else self.engine.name

    def graph_path(self, precision: str) -> Path:
        """Return the path of a precision's graph before it ships."""
        return self.shipment / f"model.{precision}.onnx"

    def step(
        self, name: str, function: Callable[Parameters, Result], /, *args: Parameters.args, **kwargs: Parameters.kwargs
    ) -> Result:
        """Call a function in its own process, and add its cost to the step `name`."""
        result, cost = run_step(function, *args, **kwargs)
        self.costs[name] = self.costs[name].add(cost) if name in self.costs else cost
        return result

    def describe(self, name: str) -> ShippedFile:
        """Return the entry of a file of the shipment."""
        return ShippedFile.of(storage.normalise(self.shipment), name)


_Write = Callable[[Export, Reference, Path], list[str]]
"""Writes a graph; returns the names of modules that stay in fp32."""


def make(export: Export) -> Reference:
    """Make all files of the export; return the reference of its gates.

    Raises:
        CheckFailed: A gate failed, and there is no fallback.
        ModelError: No graph can be made of the model, or no engine of its fp32 graph.
    """
    inputs = export.inputs
    reference = export.step(
        "fp32", _write_fp32, inputs, export.graph_path("fp32"), export.folder, threads=export.threads
    )
    export.metrics["torch"] = reference.metrics
    gates, export.metrics["fp32"] = _judge_graph(export, reference, "fp32")
    export.gates += gates
    if failed := compare.describe_failed(gates):
        raise CheckFailed(f"outputs of the exported model differ from torch's; nothing is published\n  {failed}")
    _record_graph(export, "fp32", [])
    export.report("fp32 graph agrees with torch")
    requested, attempts = inputs.config.export.precision, list[tuple[str, _Write]]()
    if requested == "int8":
        attempts.append(("int8", _write_int8))
    if requested != "fp32":
        attempts += [("fp16", _write_fp16), ("fp16", partial(_write_fp16, cautious=True))]
    if not any(_attempt(export, reference, precision, write) for precision, write in attempts):
        _ship_fp32(export, reference)
    _move_graph(export)
    _write_files(export, reference)
    export.report("files are written")
    _judge_program(export, reference)
    export.latency = export.step(
        "latency",
        _measure_latency,
        export.shipment,
        export.engine,
        export.graphs[-1],
        inputs.builder,
        reference,
        batches=inputs.config.export.batches,
        threads=export.threads,
    )
    export.report("latency is measured")
    return reference


# --- precisions -------------------------------------------------------------------------------------------------------


def _write_int8(export: Export, reference: Reference, graph: Path) -> list[str]:
    # The other operators are fp16: the only other precision on sm75, and faster on all GPUs.
    base = export.folder / "model.int8-base.onnx"
    kept_fp32 = _write_fp16(export, reference, base)
    calibration, threads = reference.calibration, export.threads
    export.step("int8", quantize_to_int8, base, graph, calibration=calibration, threads=threads, work=export.folder)
    base.unlink()
    return kept_fp32


def _write_fp16(export: Export, reference: Reference, graph: Path, *, cautious: bool = False) -> list[str]:
    return export.step(
        "fp16", _write_half, export.inputs, graph, reference.calibration, threads=export.threads, cautious=cautious
    )


def _attempt(export: Export, reference: Reference, precision: str, write: _Write) -> bool:
    """Make and run a graph and its engine; return whether all gates passed, so that they ship."""
    kept_fp32: list[str] = []
    gates, metrics = list[Gate](), dict[str, float]()
    try:
        kept_fp32 = write(export, reference, export.graph_path(precision))
        gates, metrics = _judge_graph(export, reference, precision)
        if not compare.describe_failed(gates):
            export.report(f"{precision} graph agrees with torch")
            gates += _make_engine(export, reference, precision)
        reason = compare.describe_failed(gates)
    except ModelError as error:
        reason = str(error)
    outcome: Literal["failed", "kept"] = "failed" if reason else "kept"
    export.tried.append(Attempt(precision=precision, kept_fp32=kept_fp32, outcome=outcome, reason=reason))
    if not reason:
        # Only those of shipped files are recorded: the next attempt uses the same file names.
        export.gates += gates
        export.metrics[precision] = metrics
        _record_graph(export, precision, kept_fp32)
        return True
    if export.engine is not None:
        (export.shipment / export.engine.name).unlink()
        export.engine = None
    export.graph_path(precision).unlink(missing_ok=True)
    export.report(f"{precision} failed: {reason}")
    return False


def _ship_fp32(export: Export, reference: Reference) -> None:
    """Ship fp32: it was requested, or no smaller precision passed."""
    builder, failed = export.inputs.builder, [f"{each.precision}: {each.reason}" for each in export.tried]
    try:
        check_precision(builder, "fp32")
    except ConfigError as error:
        reasons = "\n  ".join(failed)
        raise CheckFailed(f"{error.given}, and no other precision passed; nothing is published\n  {reasons}") from error
    gates = _make_engine(export, reference, "fp32")
    export.gates += gates
    if reason := compare.describe_failed(gates):
        raise CheckFailed(f"the fp32 engine failed, the last fallback; nothing is published\n  {reason}")
    reason = "smaller precisions failed their gates" if failed else ""
    export.tried.append(Attempt(precision="fp32", outcome="kept", reason=reason))


def _record_graph(export: Export, precision: str, kept_fp32: list[str]) -> None:
    entry = export.describe(export.graph_path(precision).name)
    export.graphs.append(GraphEntry(**entry.model_dump(), precision=precision, kept_fp32=kept_fp32))


# --- gates ------------------------------------------------------------------------------------------------------------


def _judge_graph(export: Export, reference: Reference, precision: str) -> tuple[list[Gate], dict[str, float]]:
    """Run a graph in ONNX Runtime on the CPU; return its gates and its metrics."""
    graph = export.graph_path(precision)
    model_file = compare.ModelFile(precision, graph.name, engine.graph_runtime())
    return export.step(
        f"{precision} gates", _judge_file, export.inputs, reference, graph, model_file, threads=export.threads
    )


def _make_engine(export: Export, reference: Reference, precision: str) -> list[Gate]:
    """Build the engine of a graph; return its gates if this machine has its GPU."""
    builder, batches = export.inputs.builder, export.inputs.config.export.batches
    if builder.target is None:
        return []
    name = _served_name(export, precision)
    path, graph = export.shipment / name, export.graph_path(precision)
    path.parent.mkdir(parents=True, exist_ok=True)
    export.step(
        f"{precision} engine",
        engine.build_engine,
        graph,
        path,
        builder=builder,
        signature=reference.signature,
        batches=batches,
        precision=precision,
    )
    export.engine = EngineEntry(
        **export.describe(name).model_dump(),
        onnx_sha256=export.describe(graph.name).sha256,
        builder=builder.name,
        target=builder.target,
        opt_batch=batches[0],
        max_batch=batches[1],
    )
    export.report(f"{precision} engine by {builder.name} for {builder.target}")
    if builder.target != gpu_target():
        return []
    model_file = compare.ModelFile(precision, name, builder.name)
    try:
        gates, _ = export.step(
            f"{precision} engine gates",
            _judge_file,
            export.inputs,
            reference,
            path,
            model_file,
            builder=builder,
            threads=export.threads,
        )
    except (TryAgain, ConfigError, DataError):
        raise
    except ShardlineError as error:
        # It does not load, a kernel fails, or a batch exceeds the GPU's memory: the next precision is tried.
        return [Gate(name=PARITY, **vars(model_file), status="failed", reason=str(error).strip())]
    return gates


def _judge_program(export: Export, reference: Reference) -> None:
    inputs, task = export.inputs, export.inputs.config.task.name
    if kind_of(task) == "own":
        return
    graph = export.graphs[0].name
    files = ExportedFiles(export.shipment, task, graph, inputs.shards_uri, inputs.shards, reference.proof.places)
    gate = export.step("program", judge_program, files, reference.expected)
    export.gates.append(gate)
    if failed := compare.describe_failed([gate]):
        raise CheckFailed(f"the shipped preprocessing is not the trainer's; nothing is published\n  {failed}")
    export.report("predict.py agrees with the graph")


# --- files ------------------------------------------------------------------------------------------------------------


def _served_name(export: Export, precision: str = "") -> str:
    """Return the path of the served model: in the Triton repository, or of an engine that Triton does not load."""
    builder = export.inputs.builder
    if builder.module == TENSORRT_RTX:
        return f"model.{precision}.{builder.target}.engine"
    return model_path(export.inputs.config.task.name, builder.module)


def _move_graph(export: Export) -> None:
    """Move the shipped graph into the Triton repository, unless an engine is served."""
    if export.engine is not None:
        return
    entry, name = export.graphs[-1], _served_name(export)
    (export.shipment / name).parent.mkdir(parents=True)
    (export.shipment / entry.name).rename(export.shipment / name)
    export.graphs[-1] = entry.model_copy(update={"name": name})
    export.gates = [
        gate.model_copy(update={"file": name}) if gate.file == entry.name else gate for gate in export.gates
    ]


def _write_files(export: Export, reference: Reference) -> None:
    """Write the task's files, and the configuration of the Triton repository."""
    inputs, shipment = export.inputs, export.shipment
    graph = export.graphs[-1]
    write_bundle(shipment, inputs, reference.signature, model_name=graph.name, precision=graph.precision)
    if inputs.builder.module != TENSORRT_RTX:
        write_repository(
            shipment,
            task=inputs.config.task.name,
            runtime=inputs.builder.module,
            precision=graph.precision,
            model_sha256=export.describe(export.served).sha256,
            signature=reference.signature,
            batches=inputs.config.export.batches,
            labels=read_labels(shipment),
        )


# --- steps, each in its own process, which imports torch --------------------------------------------------------------


def _write_fp32(inputs: Inputs, graph: Path, folder: Path, *, threads: int) -> Reference:
    """Write the samples, the fp32 graph and the weights; return the reference of the gates.

    Raises:
        DataError: A sample or the checkpoint is damaged.
        ModelError: The network fails at a size that its signature allows, or cannot be traced.
    """
    import torch

    from trainer.export import onnx_graph
    from trainer.export.arrays import write_batches
    from trainer.export.metric import ProofMetrics
    from trainer.export.tensors import container_of, run_torch
    from trainer.model.build import check_sizes, example_inputs
    from trainer.tasks.loading import network_name
    from trainer.weights.save import save_weights

    torch.set_num_threads(threads)
    task, precision = inputs.load_task(), inputs.config.export.precision
    signature = task.signature
    proof = write_proof(inputs, task, folder / "proof")
    samples = {"fp32": 0, "fp16": _HALF_SAMPLES}.get(precision, CALIBRATION_SAMPLES)
    calibration = write_calibration(inputs, task, folder / "calibration", samples)
    model = inputs.load_model()
    example = example_inputs(task, onnx_graph.EXAMPLE_BATCH)
    check_sizes(model, example, signature, name=network_name(inputs.config))
    with torch.inference_mode():
        container = container_of(model(*example))
    onnx_graph.export_graph(model, graph, signature=signature, example=example)
    save_weights(model, inputs.checkpoint.classes, graph.parent)
    if torch.cuda.is_available():
        # TF32 has 10 of fp32's 23 mantissa bits, and is the default of convolutions.
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
        model = model.cuda()
    expected = write_batches(folder / "torch", (run_torch(model, signature, batch) for batch in proof.inputs))
    ends = list(end_inputs(signature, read_arrays(proof.inputs.paths[0])))
    end_batches = write_batches(folder / "ends", (batch for _, batch in ends))
    end_outputs = write_batches(folder / "ends-torch", (run_torch(model, signature, batch) for _, batch in ends))
    metrics = ProofMetrics(task, inputs.config, container)
    for batch, extras, outputs in zip(proof.inputs, proof.extras, expected, strict=True):
        metrics.add(batch, extras, outputs)
    names = [name for name, _ in ends]
    return Reference(
        signature=signature,
        container=container,
        proof=proof,
        expected=expected,
        ends=tuple(zip(names, end_batches.paths, end_outputs.paths, strict=True)),
        metrics=metrics.values(),
        headline=metrics.headline,
        calibration=calibration,
    )


def _write_half(inputs: Inputs, path: Path, calibration: Batches, *, threads: int, cautious: bool) -> list[str]:
    import torch

    from trainer.export import half, onnx_graph
    from trainer.model.build import example_inputs

    torch.set_num_threads(threads)
    task = inputs.load_task()
    example = example_inputs(task, onnx_graph.EXAMPLE_BATCH)
    return half.write_fp16(
        inputs.load_model(),
        path,
        signature=task.signature,
        example=example,
        feed=next(iter(calibration)),
        cautious=cautious,
    )


def _judge_file(
    inputs: Inputs,
    reference: Reference,
    path: Path,
    model_file: compare.ModelFile,
    *,
    builder: Builder | None = None,
    threads: int,
) -> tuple[list[Gate], dict[str, float]]:
    """Run a graph (without a builder) or an engine; return its gates and its metrics."""
    from trainer.export.metric import ProofMetrics

    proof, signature = reference.proof, reference.signature
    if builder is None:
        run = engine.open_graph(path, threads=threads, precision=model_file.precision)
    else:
        run = engine.open_engine(path, builder, signature)
        model_file = replace(model_file, device=engine.device_name())
    metrics = ProofMetrics(inputs.load_task(), inputs.config, reference.container)

    def observe(trial: compare.Trial, outputs: Arrays) -> None:
        if trial.place is not None:
            metrics.add(trial.inputs, proof.extras[trial.place], outputs)

    trials = compare.make_trials(
        zip(proof.inputs, reference.expected, strict=True),
        ((name, read_arrays(batch), read_arrays(outputs)) for name, batch, outputs in reference.ends),
        inputs.config.export.batches,
    )
    parity = compare.judge_parity(run, trials, signature, model_file, observe=observe)
    values, samples = metrics.values(), len(proof.places)
    return [
        parity,
        compare.judge_metric(reference.metrics, values, reference.headline, model_file, samples=samples),
    ], values


def _measure_latency(
    shipment: Path,
    entry: EngineEntry | None,
    graph: GraphEntry,
    builder: Builder,
    reference: Reference,
    *,
    batches: tuple[int, int],
    threads: int,
) -> list[Latency]:
    """Return the median latency of the served model, or of its graph on the CPU without the engine's GPU."""
    if entry is not None and builder.target == gpu_target():
        run = engine.open_engine(shipment / entry.name, builder, reference.signature)
        ran = f"{builder.name} on {engine.device_name()}"
    else:
        run = engine.open_graph(shipment / graph.name, threads=threads, precision=graph.precision)
        ran = f"{engine.graph_runtime()} on the CPU"
    samples, measured = read_arrays(reference.proof.inputs.paths[0]), []
    for batch in sorted({1, batches[0]}):
        median_ms, calls = engine.median_latency(run, fill(samples, batch))
        measured.append(Latency(ran=ran, batch=batch, median_ms=round(median_ms, 3), calls=calls))
    return measured
