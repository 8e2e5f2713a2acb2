"""Evaluations of a made-up task by two and three ranks: `python -m tests.trainer.tasks.splits FOLDER [MODULE]`.

Ranks are forks of this process, which has imported what they need. The first saves what each case returns as
FOLDER/RANKS/CASE.pt. Cases are those of this module, or CASES of another.
"""

from __future__ import annotations

import importlib
import importlib.util
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
from contracts.errors import ConfigError
from trainer.evaluate import EVALUATION_BATCH, Placed, evaluate
from trainer.tasks.protocol import Batch, Loss, Mode

CLASSES = 4
# Three batches, the last one short: of two ranks the second has one of them.
SAMPLES = {"three batches": 2 * EVALUATION_BATCH + 7, "one batch": 5, "none": 0}


def make_split(samples: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits [N, classes] and labels [N]: of a class nobody is, and another is never said."""
    random = torch.Generator().manual_seed(3)
    logits = torch.randn(samples, CLASSES, generator=random)
    logits[:, 2] -= 100
    return logits, torch.randint(0, CLASSES - 1, (samples,), generator=random)


def load_example() -> Any:
    """Return the class of examples/segmentation."""
    path = Path(__file__).parents[3] / "examples" / "segmentation" / "task.py"
    spec = importlib.util.spec_from_file_location("example_task", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.Segmentation


def weigh(values: torch.Tensor) -> torch.Tensor:
    """Return a number that depends on the order of values [N]."""
    return (values.double() * torch.arange(len(values))).sum()


class Made:
    """A task whose model returns what it is given: logits."""

    fields: Mapping[str, str] = {}
    headline = "accuracy"
    signature = Signature(
        inputs={"given": TensorSpec(dtype="float32", shape=["batch", CLASSES])},
        outputs={"logits": OutputSpec(dtype="float32", shape=["batch", CLASSES])},
    )

    def __init__(self, kind: str = "classification") -> None:
        self._kind = kind

    def example(self, size: int) -> Batch:
        return {"given": torch.zeros(size, CLASSES), "label": torch.zeros(size, dtype=torch.int64)}

    def loss(self, outputs: torch.Tensor, batch: Batch, mode: Mode) -> Loss:
        assert not mode.training
        # Any count: here one that is no number of samples.
        return functional.cross_entropy(outputs, batch["label"], reduction="sum"), 2 * (batch["label"] >= 0).sum()

    def metrics(self) -> dict[str, Any]:
        from torchmetrics import CatMetric, MaxMetric, MinMetric
        from torchmetrics.classification import BinaryAUROC

        from trainer.tasks.classes.metrics import make_metrics

        found = make_metrics(CLASSES)
        if self._kind == "all":
            quiet = {"sync_on_compute": False}
            found["auroc"] = BinaryAUROC(validate_args=False, **quiet)
            found["largest"] = type("Largest", (MaxMetric,), {"higher_is_better": True})(**quiet)
            ordered = {"higher_is_better": True, "compute": lambda metric: weigh(torch.cat(metric.value))}
            found["ordered"] = type("Ordered", (CatMetric,), ordered)(**quiet)
            found["mean_iou"] = load_example()(None, classes=CLASSES, side=8, width=1).metrics()["mean_iou"]
            found["smallest"] = type("Smallest", (MinMetric,), {"higher_is_better": False})(**quiet)
        return found

    def update(self, metrics: Mapping[str, Any], outputs: torch.Tensor, batch: Batch) -> None:
        from trainer.tasks.classes.metrics import update_metrics

        label = batch["label"]
        update_metrics({name: metrics[name] for name in ("accuracy", "f1_macro", "recall_macro")}, outputs, batch)
        if "auroc" in metrics:
            metrics["auroc"].update(outputs[:, 0].sigmoid(), (label == 0).long())
            # One by one, where the others take a batch at once.
            for value in outputs[:, 0].split(1):
                metrics["ordered"].update(value)
            metrics["largest"].update(outputs)
            metrics["smallest"].update(outputs)
            metrics["mean_iou"].update(outputs.argmax(dim=1), label)


def evaluate_split(samples: int, task: Made) -> dict[str, Any] | None:
    """Evaluate a split by all ranks."""
    logits, labels = make_split(samples)
    rank, ranks = dist.get_rank(), dist.get_world_size()

    def batches() -> Iterator[Placed]:
        for start in range(rank * EVALUATION_BATCH, samples, ranks * EVALUATION_BATCH):
            own = range(start, min(start + EVALUATION_BATCH, samples))
            yield {"given": logits[own], "label": labels[own]}, own

    found = evaluate(
        nn.Identity(),
        task,  # type: ignore[arg-type]
        batches(),
        -(-samples // (EVALUATION_BATCH * ranks)),
        torch.device("cpu"),
    )
    if found is None:
        return None
    gathered: list[Any] = [None] * ranks
    dist.all_gather_object(gathered, (found.metrics, found.loss, found.samples))
    assert all(one == gathered[0] for one in gathered), "all ranks decide by the same numbers"
    return {"metrics": found.metrics, "loss": found.loss, "samples": found.samples}


def too_large() -> str:
    """What is said of list states that are too large in all, of which no rank has too much."""
    from trainer.tasks import metrics

    metrics.MAX_LIST_BYTES = 1500  # the split has 2,160 bytes in lists, and a rank of two 1,136 at most
    try:
        evaluate_split(SAMPLES["three batches"], Made("all"))
    except ConfigError as error:
        return error.given
    return ""


CASES = {
    **{name: (lambda samples=samples: evaluate_split(samples, Made("all"))) for name, samples in SAMPLES.items()},
    "too large": too_large,
}


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

    cases = importlib.import_module(sys.argv[2]).CASES if len(sys.argv) > 2 else CASES
    failed = 0
    for ranks in (2, 3):
        folder = Path(sys.argv[1]) / str(ranks)
        folder.mkdir()
        processes = [Process(target=be_rank, args=(folder, rank, ranks, cases)) for rank in range(ranks)]
        for process in processes:
            process.start()
        for process in processes:
            process.join(60)
            failed += process.exitcode != 0
            process.kill()
    return failed


if __name__ == "__main__":
    set_start_method("fork")
    sys.exit(main())
