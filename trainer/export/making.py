"""The work of one export, top to bottom: graph, proof of fp32, the precision that holds, engines, and what ships.

Here: `Making`, run by trainer/export/task.py in a work folder of this machine; `shipment` is what will be published.
Every heavy step is a process of its own (processes.py); what a step computes is in its own module. Nothing here imports
torch, onnx or a builder.
"""

from __future__ import annotations

import hashlib
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Literal, ParamSpec, TypeVar

import numpy as np

from contracts import storage
from contracts.artifacts import Attempt, Calibration, EngineEntry, FileEntry, Gate, GraphEntry, Latency, Parity
from contracts.config import ExportSection
from contracts.config.export import MIN_CALIBRATION_SAMPLES
from contracts.errors import CheckFailed
from trainer.export import (
    accuracy,
    bench,
    bundle,
    calibration,
    coverage,
    engine,
    engine_run,
    onnx_graph,
    parity,
    precision,
    proof,
    quantize,
    ranges,
    reference,
)
from trainer.export.inputs import Inputs
from trainer.export.precision import Conversion
from trainer.export.processes import Cost, run_step
from trainer.export.proof import TestImages
from trainer.export.ranges import NodeRange
from trainer.export.rounds import find_fp16
from trainer.export.targets import Builder, check_precision, gpu_target, gpus_of

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")

Outcome = Literal["kept", "failed"]

FP32_NAME = "model.fp32.onnx"
WEIGHTS_NAME = "model.safetensors"
# Images whose logits are computed at a time where no engine's profile is at stake: an even share of memory and speed.
_BATCH = 16
# A batch differs from its images one by one by how sums are grouped; an image that leaks into others differs by far.
BATCH_LIMIT = 1e-5
# Images that an fp16 graph computes in real fp16 arithmetic, in numpy: a second an image and more.
REFERENCE_IMAGES = 64
REFERENCE = "the reference of all others"


class Making:
    """One export under way.

    Args:
        inputs: Checkpoint, shards and builder.
        settings: What is asked for.
        seed: Of calibration.
        work: An empty folder of this machine.
        threads: Intra-op threads of each step.
        tell: Told of each step that is done.

    Attributes:
        shipment: Folder of all that ships.
        gates, tried, parity, costs: What was found so far; costs by step.
        right: Right answers on the test split, by what gave them.
        precision: What ships.
    """

    def __init__(
        self,
        inputs: Inputs,
        settings: ExportSection,
        *,
        seed: int,
        work: Path,
        threads: int,
        tell: Callable[[str], None],
    ) -> None:
        self.inputs, self.settings, self._seed, self._threads, self._tell = inputs, settings, seed, threads, tell
        self._work, self.shipment = work, work / "shipment"
        self._calibration_path = work / "calibration.npy"
        self.shipment.mkdir()
        self.gates: list[Gate] = []
        self.tried: list[Attempt] = []
        self.parity: dict[str, dict[str, Parity]] = {"onnx": {}, "engine": {}}
        self.costs: dict[str, Cost] = {}
        self.right: dict[str, int] = {}
        self.coverage: dict[str, dict[str, float]] = {}
        self.graphs: list[GraphEntry] = []
        self.engines: list[EngineEntry] = []
        self.latency: list[Latency] = []
        self.latency_left_out: dict[str, str] = {}
        self.calibration: Calibration | None = None
        self.precision = "fp32"

    def run(self) -> None:
        """Do all of it.

        Raises:
            CheckFailed: A gate failed that nothing can fall back from.
            ConfigError: The precision that is left is none that a target has.
        """
        self._write_fp32()
        self._judge_fp32()
        self._choose_precision()
        self._build_engines()
        self._write_bundle()
        self._judge_engines()
        if self.settings.bench:
            self._measure_latency()

    @property
    def images(self) -> TestImages:
        """The test split's pixels, on disk."""
        return self._images

    @property
    def test_samples(self) -> int:
        """Images of the test split."""
        return self.inputs.shards.splits["test"].samples

    @property
    def verdict(self) -> Literal["proven", "unproven"]:
        """Whether every engine ran and passed."""
        ran = [gate for gate in self.gates if gate.name.startswith("engine")]
        return "proven" if ran and all(gate.status == "passed" for gate in ran) else "unproven"

    def path(self, precision: str) -> Path:
        """Return where the graph of a precision lies."""
        return self.shipment / f"model.{precision}.onnx"

    def step(
        self, name: str, function: Callable[Parameters, Result], /, *given: Parameters.args, **named: Parameters.kwargs
    ) -> Result:
        """Call a function in a process of its own, and keep what it cost under a step's name."""
        result, cost = run_step(function, *given, **named)
        self.costs[name] = cost if name not in self.costs else self.costs[name].add(cost)
        return result

    # --- fp32 ---------------------------------------------------------------------------------------------------------

    def _write_fp32(self) -> None:
        traced, torch_logits = self._work / "traced" / "model.onnx", self._work / "torch.npy"
        traced.parent.mkdir()
        self._read_images()
        torch_s = self.step(
            "trace",
            _trace,
            self.inputs,
            traced,
            self.shipment / WEIGHTS_NAME,
            self._images,
            torch_logits,
            opset=self.settings.opset,
            threads=self._threads,
        )
        # torch's own answers are the gates', and take as long as there are images.
        trace = self.costs["trace"]
        self.costs |= {
            "trace": Cost(trace.seconds - torch_s, trace.peak_bytes),
            "torch": Cost(torch_s, trace.peak_bytes),
        }
        self.graph_inputs, self.graph_outputs = self.step("join", onnx_graph.join_graph, traced, self.path("fp32"))
        shutil.rmtree(traced.parent)
        self._tell("fp32 graph")
        self._reference: proof.Array = np.load(torch_logits)
        self._labels = self._images.read_labels()
        self.right[parity.REFERENCE] = parity.count_right(self._reference, self._labels)

    def _read_images(self) -> None:
        """Decode the test split, and training images where activations are looked at."""
        wanted = 0 if self.settings.precision == "fp32" else self.settings.calibration_samples
        self._images, self.calibration = self.step(
            "images",
            _write_images,
            self.inputs,
            self._work,
            self._calibration_path,
            samples=wanted,
            seed=self._seed,
            least=MIN_CALIBRATION_SAMPLES if self.settings.precision == "int8" else 1,
        )

    def _judge_fp32(self) -> None:
        found = [*self._judge_graph(self.path("fp32"), "fp32"), self._judge_batches()]
        self.gates += found
        if failed := describe_failed(found):
            raise CheckFailed(
                "the exported model does not compute what torch computes; nothing is published\n  " + failed
            )
        asked = self.settings.precision == "fp32"
        self._settle(Attempt(precision="fp32", outcome="kept", reason="" if asked else REFERENCE))

    def _judge_batches(self) -> Gate:
        sizes = sorted({1, self.settings.opt_batch, self.settings.max_batch})
        found = self.step(
            "batches", proof.measure_batches, self.path("fp32"), self._images, sizes, threads=self._threads
        )
        worst = max(found.values())
        return Gate(
            name="batch",
            precision="fp32",
            status="passed" if worst <= BATCH_LIMIT else "failed",
            ran=parity.name_of_onnx("fp32"),
            figures={f"relative_error at {size}": error for size, error in found.items()},
            limits={f"relative_error at {size}": BATCH_LIMIT for size in found},
            reason="" if worst <= BATCH_LIMIT else "an image's logits depend on the others of its batch",
        )

    def _judge_graph(self, graph: Path, precision: str) -> list[Gate]:
        """Run a graph over the test split and hold it against torch; keeps the figures of the last one."""
        logits_path = self._work / "graph.npy"
        self.step(
            f"{precision} logits",
            proof.write_graph_logits,
            graph,
            self._images,
            logits_path,
            batch_size=_BATCH,
            threads=self._threads,
        )
        logits: proof.Array = np.load(logits_path)
        ran = parity.name_of_onnx(precision)
        found = parity.compare(self._reference, logits, ran=ran, precision=precision)
        self.parity["onnx"][precision] = found
        self.right[precision] = parity.count_right(logits, self._labels)
        if precision == "fp32":
            self._fp32_logits = logits
        return parity.judge(found, precision)

    # --- precision ----------------------------------------------------------------------------------------------------

    def _choose_precision(self) -> None:
        asked = self.settings.precision
        if asked == "fp32" or (asked == "bf16" and self._try_bf16()):
            return
        found = self.step(
            "ranges",
            ranges.measure_ranges,
            self.path("fp32"),
            self._calibration_path,
            batch_size=_BATCH,
            threads=self._threads,
        )
        if (asked == "int8" and self._try_int8(found)) or self._try_fp16(found):
            return
        check_precision(self.inputs.builder, "fp32")
        self.precision = "fp32"
        self.tried.append(Attempt(precision="fp32", outcome="kept", reason="what was tried before failed its gates"))
        self._tell("fp32, since nothing smaller passed its gates")

    def _try_bf16(self) -> bool:
        """Not executed so far: nvidia-modelopt is no dependency of ours."""
        graph = self.path("bf16")
        self.step("bf16", precision.convert_with_autocast, self.path("fp32"), graph, precision="bf16")
        found = [*self._judge_graph(graph, "bf16"), self._judge_coverage(graph, "bf16")]
        self.gates += found
        failed = describe_failed(found)
        return self._settle(Attempt(precision="bf16", outcome="failed" if failed else "kept", reason=failed))

    def _try_int8(self, found: Mapping[str, NodeRange]) -> bool:
        wide, graph = self._work / "model.int8-fp32.onnx", self.path("int8")
        self.step(
            "int8",
            quantize.quantize_to_int8,
            self.path("fp32"),
            wide,
            calibration=self._calibration_path,
            batch_size=_BATCH,
            threads=self._threads,
            work=self._work,
        )
        # What is not int8 is fp16: sm75 knows no other, and elsewhere it is faster.
        conversion = self._convert(wide, graph, keep_fp32=ranges.nodes_beyond(found))
        wide.unlink()
        fits = ranges.judge_ranges(found, conversion.kept_fp32).model_copy(update={"precision": "int8"})
        gates = [*self._judge_graph(graph, "int8"), fits]
        gates.append(
            accuracy.judge_accuracy(
                precision="int8",
                reference_right=self.right["fp32"],
                right=self.right["int8"],
                samples=self.test_samples,
                ran=parity.name_of_onnx("int8"),
            )
        )
        gates.append(self._judge_coverage(graph, "int8"))
        self.gates += gates
        failed = describe_failed(gates)
        outcome: Outcome = "failed" if failed else "kept"
        attempt = Attempt(precision="int8", kept_fp32=conversion.kept_fp32, outcome=outcome, reason=failed)
        return self._settle(attempt)

    def _try_fp16(self, found: Mapping[str, NodeRange]) -> bool:
        search = find_fp16(
            self.path("fp32"),
            self.path("fp16"),
            ranges=found,
            judge=self._judge_fp16,
            measure_errors=self._measure_errors,
            convert=self._convert,
        )
        self.tried += search.attempts[:-1]
        self.gates += search.gates
        return self._settle(search.attempts[-1])

    def _convert(self, source: Path, target: Path, *, keep_fp32: Sequence[str] = ()) -> Conversion:
        return self.step("fp16", precision.convert_to_fp16, source, target, keep_fp32=keep_fp32)

    def _measure_errors(self) -> Mapping[str, float]:
        (image,) = self._images.batches(1, most=1)
        return self.step("fp16 errors", reference.measure_errors, self.path("fp32"), image)

    def _judge_fp16(self, graph: Path) -> list[Gate]:
        gates = [*self._judge_graph(graph, "fp16"), self._judge_coverage(graph, "fp16")]
        images = np.concatenate(list(self._images.batches(_BATCH, most=REFERENCE_IMAGES)))
        expected = self._reference[:REFERENCE_IMAGES]
        return [*gates, self.step("fp16 reference", reference.judge_reference, graph, images, expected)]

    def _judge_coverage(self, graph: Path, precision: str) -> Gate:
        shares = self.step("coverage", coverage.measure_coverage, graph, precision)
        self.coverage[precision] = shares
        return coverage.judge_coverage(shares, precision)

    def _settle(self, attempt: Attempt) -> bool:
        """Record the last try of a precision; return whether it passed, and so ships."""
        self.tried.append(attempt)
        path = self.path(attempt.precision)
        if attempt.outcome == "failed":
            path.unlink(missing_ok=True)
            self._tell(f"{attempt.precision} failed: {attempt.reason}")
            return False
        self.graphs.append(self._describe_graph(attempt))
        self.precision = attempt.precision
        self._tell(f"{attempt.precision} graph and its parity with torch")
        return True

    def _describe_graph(self, attempt: Attempt) -> GraphEntry:
        path = self.path(attempt.precision)
        entry = FileEntry.of(storage.normalise(self.shipment), path.name)
        return GraphEntry(
            **entry.model_dump(),
            sha256=hash_file(path),
            precision=attempt.precision,
            kept_fp32=attempt.kept_fp32,
        )

    # --- engines ------------------------------------------------------------------------------------------------------

    def _build_engines(self) -> None:
        graph = self.path(self.precision)
        for target in self.inputs.builder.targets:
            name = f"model.{self.precision}.{target}.engine"
            builder = Builder(self.inputs.builder.module, self.inputs.builder.version, (target,))
            step = f"engine {target}"
            tensors = self.step(
                step,
                engine.build_engine,
                graph,
                self.shipment / name,
                builder=builder,
                image_shape=(onnx_graph.CHANNELS, self.inputs.image_size, self.inputs.image_size),
                opt_batch=self.settings.opt_batch,
                max_batch=self.settings.max_batch,
                min_batch=self.settings.min_batch,
            )
            entry = FileEntry.of(storage.normalise(self.shipment), name)
            self.engines.append(
                EngineEntry(
                    **entry.model_dump(),
                    sha256=hash_file(self.shipment / name),
                    onnx_sha256=self.graphs[-1].sha256,
                    builder=builder.name,
                    precision=self.precision,
                    target=target,
                    gpus=gpus_of(target),
                    min_batch=self.settings.min_batch,
                    opt_batch=self.settings.opt_batch,
                    max_batch=self.settings.max_batch,
                    tensors=tensors,
                    build_s=round(self.costs[step].seconds, 3),
                    peak_bytes=self.costs[step].peak_bytes,
                )
            )
        self._tell(f"{len(self.engines)} engines by {self.inputs.builder.name}")

    def _judge_engines(self) -> None:
        """Run each engine whose GPU is here, at the profile's ends; the others did not run, and their gates say so."""
        here = gpu_target()
        for entry in self.engines:
            if entry.target != here:
                reason = "not run: no GPU" if here is None else f"not run: this machine's GPU is {here}"
                self.parity["engine"][entry.target] = Parity(ran=reason)
                self.gates.append(
                    Gate(
                        name=f"engine {entry.target}",
                        precision=entry.precision,
                        status="not run",
                        ran=reason,
                        reason=f"shardline verify on a GPU of {entry.target} completes the proof",
                    )
                )
                continue
            self.gates.append(self._run_engine(entry))

    def _run_engine(self, entry: EngineEntry) -> Gate:
        """Hold an engine against torch at each batch size of its profile. Not executed so far: no GPU."""
        gate, found = engine_run.judge_engine(
            self.shipment / entry.name,
            entry,
            self._images,
            self._reference,
            work=self._work,
            run=self.step,
        )
        self.parity["engine"][entry.target] = found
        if gate.status == "failed":
            raise CheckFailed(f"the engine does not compute what torch computes; nothing is published\n  {gate.reason}")
        return gate

    def _measure_latency(self) -> None:
        checkpoint = self.inputs.checkpoint
        found = self.step(
            "bench",
            bench.measure_latency,
            {entry.precision: self.shipment / entry.name for entry in self.graphs},
            [(self.shipment / entry.name, entry) for entry in self.engines],
            precision=self.precision,
            model=checkpoint.model,
            weights=self.shipment / WEIGHTS_NAME,
            num_classes=len(checkpoint.classes),
            image_size=self.inputs.image_size,
            batches=sorted({self.settings.min_batch, self.settings.opt_batch, self.settings.max_batch}),
            threads=self._threads,
        )
        self.latency, self.latency_left_out = found.latency, found.left_out
        self._tell("latency")

    # --- bundle -------------------------------------------------------------------------------------------------------

    def _write_bundle(self) -> None:
        bundle.write_bundle(
            self.shipment,
            self.inputs.checkpoint,
            model_name=self.path(self.precision).name,
            max_batch=self.settings.max_batch,
        )
        evaluation = self.inputs.find_evaluation()
        gate = self.step(
            "bundle",
            bundle.check_bundle,
            self.shipment,
            self.inputs.shards_uri,
            self.inputs.shards,
            model_name=FP32_NAME,
            expected_right=None if evaluation is None else round(evaluation.accuracy * evaluation.samples),
            transformed_right=self.right["fp32"],
            expected_score=parity.mean_score(self._fp32_logits[self._labels != proof.NOISE]),
            data=self.inputs.data,
            threads=self._threads,
        )
        self.gates.append(gate)
        if failed := describe_failed([gate]):
            raise CheckFailed(f"the shipped preprocessing is not the trainer's; nothing is published\n  {failed}")
        self._tell("bundle")


def hash_file(path: Path) -> str:
    """Return the sha256 of a file."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _trace(
    inputs: Inputs, path: Path, weights: Path, images: TestImages, logits: Path, *, opset: int, threads: int
) -> float:
    """Write graph and weights, and the logits that all is compared with; return the seconds of the latter."""
    import torch
    from safetensors.torch import save_file

    torch.set_num_threads(threads)
    model = inputs.load_model()
    onnx_graph.export_graph(model, path, image_size=inputs.image_size, opset=opset)
    save_file({name: tensor.contiguous() for name, tensor in model.state_dict().items()}, weights)
    began = time.monotonic()
    proof.write_torch_logits(model, images, logits)
    return time.monotonic() - began


def _write_images(
    inputs: Inputs, work: Path, calibration_path: Path, *, samples: int, seed: int, least: int
) -> tuple[TestImages, Calibration | None]:
    transform = inputs.transform
    images = proof.write_test_images(inputs.shards_uri, inputs.shards, transform, inputs.data, work)
    if not samples:
        return images, None
    calibrated = calibration.write_calibration(
        inputs.shards_uri,
        inputs.shards,
        transform,
        calibration_path,
        samples=samples,
        seed=seed,
        data=inputs.data,
        least=least,
    )
    return images, calibrated


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
