"""Evaluations by one, two and three ranks: `python -m tests.trainer.tasks.splits FOLDER`.

Ranks are forks of this process, which has imported what they need. The first saves the result of each case as
FOLDER/RANKS/CASE.pt. Cases are those of drawn_splits.py.
"""

from __future__ import annotations

import fcntl
import importlib
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from multiprocessing import Process, set_start_method
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional

from contracts.artifacts.signature import OutputSpec, Signature, TensorSpec
from contracts.config import RunConfig
from tests.trainer.tasks.small import Small
from trainer.data.evaluation import EvaluationBatch
from trainer.data.reader import Origin
from trainer.evaluate import EVALUATION_BATCH, Evaluation, evaluate
from trainer.model.numerics import Numerics
from trainer.parallel.process_group import Rank
from trainer.predictions import OutcomeCollector
from trainer.tasks.task import Batch, Columns, Loss, Mode, Task

CLASSES = 4
RANKS = (1, 2, 3)
# It imports this module.
ALL_CASES = "tests.trainer.tasks.drawn_splits"
# Three batches, the last one short: of two ranks the second has one of them. One batch: other ranks have no sample.
SAMPLES = {"three batches": 2 * EVALUATION_BATCH + 7, "one batch": 5}


def make_split(samples: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits [N, classes] and labels [N]: a class without samples, and one that is never predicted."""
    random = torch.Generator().manual_seed(3)
    logits = torch.randn(samples, CLASSES, generator=random)
    logits[:, 2] -= 100
    return logits, torch.randint(0, CLASSES - 1, (samples,), generator=random)


class Made(Small):
    """A task whose model returns its input: logits."""

    headline = "accuracy"
    classes = ("ant", "bee", "cat", "dog")
    signature = Signature(
        inputs={"given": TensorSpec(dtype="float32", shape=["batch", CLASSES])},
        outputs={"logits": OutputSpec(dtype="float32", shape=["batch", CLASSES])},
    )

    def __init__(self) -> None: ...

    def example(self, size: int) -> Batch:
        return {"given": torch.zeros(size, CLASSES), "label": torch.zeros(size, dtype=torch.int64)}

    def loss(self, outputs: torch.Tensor, batch: Batch, mode: Mode) -> Loss:
        assert not mode.training
        # A count that is no number of samples: each counts twice.
        return functional.cross_entropy(outputs, batch["label"], reduction="sum"), 2 * (batch["label"] >= 0).sum()

    def metrics(self) -> dict[str, Any]:
        from torchmetrics import MaxMetric, MinMetric
        from torchmetrics.classification import MulticlassAccuracy, MulticlassJaccardIndex, MulticlassRecall

        sizes = {"num_classes": CLASSES, "validate_args": False}
        return {
            # With torchmetrics' own sync in `compute` and without it.
            "accuracy": MulticlassAccuracy(average="micro", sync_on_compute=False, **sizes),
            "recall_macro": MulticlassRecall(average="macro", **sizes),
            "mean_iou": MulticlassJaccardIndex(**sizes),
            "largest": type("Largest", (MaxMetric,), {"higher_is_better": True})(),
            "smallest": type("Smallest", (MinMetric,), {"higher_is_better": False})(),
        }

    def update(self, metrics: Mapping[str, Any], outputs: torch.Tensor, batch: Batch) -> None:
        for name, metric in metrics.items():
            metric.update(*([outputs] if name in ("largest", "smallest") else [outputs.argmax(dim=1), batch["label"]]))

    def outcomes(self, outputs: torch.Tensor, batch: Batch) -> Columns:
        """Columns as an array, a list of lists and a list of JSON."""
        top = outputs.topk(2, dim=1).indices.tolist()
        odd = [{"label": label} if label else None for label in batch["label"].tolist()]
        return {"label": batch["label"], "answer": top, "probability": odd, "loss": outputs.logsumexp(dim=1)}

    def report(self, outcomes: Columns, metrics: Mapping[str, Any]) -> dict[str, Any]:
        return {"right": int(metrics["accuracy"].tp.sum())}


def batches_of(tensors: Batch) -> Iterator[EvaluationBatch]:
    """Yield this rank's batches of a split of tensors [N, ...]."""
    samples = len(next(iter(tensors.values())))
    rank, ranks = dist.get_rank(), dist.get_world_size()
    for start in range(rank * EVALUATION_BATCH, samples, ranks * EVALUATION_BATCH):
        places = range(start, min(start + EVALUATION_BATCH, samples))
        origins = tuple(Origin("test-0.tar", f"{place:032x}", f"{place}.png") for place in places)
        yield EvaluationBatch({name: tensor[start : places.stop] for name, tensor in tensors.items()}, places, origins)


def evaluate_batches(task: Task, tensors: Batch, collector: OutcomeCollector | None = None) -> Evaluation | None:
    """Evaluate a split of tensors [N, ...] by all ranks with a model that returns its input, in float32."""
    rounds = -(-len(next(iter(tensors.values()))) // (EVALUATION_BATCH * dist.get_world_size()))
    return evaluate(
        nn.Identity(),
        task,
        batches_of(tensors),
        rounds,
        torch.device("cpu"),
        config=RunConfig(),
        numerics=Numerics("fp32", channels_last=False, compile=False, activation_checkpointing="none"),
        outcomes=collector,
    )


def evaluate_tensors(task: Task, tensors: Batch) -> dict[str, Any] | None:
    """Evaluate a split of tensors [N, ...] by all ranks with a model that returns its input; the first one's result."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    cpu = torch.device("cpu")
    collector = OutcomeCollector(task, RunConfig())
    found = evaluate_batches(task, tensors, collector)
    if found is None:
        return None
    gathered: list[Any] = [None] * ranks
    dist.all_gather_object(gathered, (found.metrics, found.loss, found.samples))
    assert all(values == gathered[0] for values in gathered), "all ranks decide by the same numbers"
    outcomes = collector.gather(Rank(rank, rank, ranks, cpu))
    result: dict[str, Any] = {"metrics": found.metrics, "loss": found.loss, "samples": found.samples}
    if outcomes is None:
        return result
    details = task.report(outcomes.columns, found.reduced)
    return result | {"columns": outcomes.columns, "file": outcomes.to_parquet(task.classes), "details": details}


def evaluate_split(samples: int) -> dict[str, Any] | None:
    logits, labels = make_split(samples)
    return evaluate_tensors(Made(), {"given": logits, "label": labels})


CASES = {f"own, {name}": (lambda samples=samples: evaluate_split(samples)) for name, samples in SAMPLES.items()}


def results_by_ranks(folder: Path) -> dict[int, dict[str, Any]]:
    """Run all cases, once for all workers of pytest; return the first rank's result of each, by number of ranks."""
    with folder.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            folder.mkdir()
            run_all(folder)
    cases = importlib.import_module(ALL_CASES).CASES
    return {
        ranks: {case: torch.load(folder / f"{ranks}/{case}.pt", weights_only=False) for case in cases}
        for ranks in RANKS
    }


def run_all(folder: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.trainer.tasks.splits", folder],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]


def be_rank(folder: Path, rank: int, ranks: int, cases: Mapping[str, Callable[[], Any]]) -> None:
    """Evaluate each case as one rank."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=ranks)
    for case, run in cases.items():
        returned = run()
        if rank == 0:
            torch.save(returned, folder / f"{case}.pt")
    dist.destroy_process_group()


def main() -> int:
    """Run all ranks, one world after another; return how many of them have failed."""
    import torchmetrics.classification  # noqa: F401 - by each of the forks it would take as long

    cases = importlib.import_module(ALL_CASES).CASES
    failed = 0
    for ranks in RANKS:
        folder = Path(sys.argv[1]) / str(ranks)
        folder.mkdir()
        processes = [Process(target=be_rank, args=(folder, rank, ranks, cases)) for rank in range(ranks)]
        for process in processes:
            process.start()
        for process in processes:
            process.join(120)
            failed += process.exitcode != 0
            process.kill()
    return failed


if __name__ == "__main__":
    set_start_method("fork")
    sys.exit(main())
