"""Stands for a GPU and its builder: an engine is a copy of its graph, which ONNX Runtime runs, with planted faults."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import onnx

from contracts.artifacts import EngineTensor
from contracts.artifacts.signature import BATCH, Signature
from contracts.errors import CheckFailed, ModelError
from trainer.export.engines.engine_gate import Ran, Trials
from trainer.export.gates.arrays import Arrays, StoredArrays, pad_batch, store_arrays
from trainer.export.gates.parity import open_graph


@dataclass
class EngineDouble:
    """An `EngineRunner` without a GPU."""

    signature: Signature
    max_batch: int
    wrong: dict[str, int] = field(default_factory=dict)
    """By precision: of how many samples of a batch the two largest logits change places."""
    fails_at: dict[str, str] = field(default_factory=dict)
    """By precision: the trial that does not run."""
    turned_at: str = ""
    """The trial whose outputs have the other sign."""
    refused: tuple[str, ...] = ()
    """Precisions that are not built."""
    accepts_all: bool = False
    """Whether it runs what is outside of its profile."""
    ms: dict[str, float] = field(default_factory=dict)
    """Of a batch, by precision."""
    built: dict[Path, str] = field(default_factory=dict)
    name: str = "double 1.0"
    target: str = "sm89"

    def build(self, graph: Path, engine: Path, *, precision: str) -> list[EngineTensor]:
        model = onnx.load(graph)
        if precision in self.refused:
            raise ModelError(f"no {precision}", allowed="another precision", todo="take it")
        onnx.save(model, engine)
        self.built[engine] = precision
        return [EngineTensor(mode="input", name="images", dtype="float", shape=[-1])]

    def run(self, engine: Path, trials: Trials, folder: Path) -> Ran:
        precision = self.built[engine]
        run = open_graph(engine, threads=1, precision=precision)
        outputs = []
        for number, trial in enumerate(trials.run):
            if self.fails_at.get(precision) == trial.name:
                raise CheckFailed(f"out of memory at {trial.name}")
            batches = list(trial.inputs.batches(trial.batch, most=trial.most))
            sizes = [len(next(iter(batch.values()))) for batch in batches]
            found = [run(pad_batch(batch, trial.batch)) for batch in batches]
            sign = -1 if self.turned_at == trial.name else 1
            parts = [{n: sign * a[:size] for n, a in one.items()} for one, size in zip(found, sizes, strict=True)]
            outputs.append(store_arrays(folder / str(number), [self.exchange(one, precision) for one in parts]))
        return Ran(outputs, [name for name, stored in trials.refuse.items() if self.takes(stored.read())], "a double")

    def time(self, engines: Sequence[Path], inputs: StoredArrays, batch: int) -> list[float]:
        return [self.ms[self.built[engine]] for engine in engines]

    def takes(self, inputs: Arrays) -> bool:
        most = {BATCH: self.max_batch, **{name: one.max for name, one in self.signature.dimensions.items()}}
        return self.accepts_all or all(
            array.shape[axis] <= most[size]
            for name, array in inputs.items()
            for axis, size in enumerate(self.signature.inputs[name].shape)
            if isinstance(size, str)
        )

    def exchange(self, outputs: Arrays, precision: str) -> Arrays:
        """Let the two largest logits of some samples change places, and be nearly equal."""
        if "logits" not in outputs:
            return outputs
        logits = outputs["logits"].copy()
        for place in range(min(self.wrong.get(precision, 0), len(logits))):
            second, first = np.argsort(logits[place])[-2:]
            logits[place, second] = logits[place, first] + np.float32(1e-3)
        return {**outputs, "logits": logits}
