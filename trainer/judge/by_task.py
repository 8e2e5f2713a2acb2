"""Two exports of a task whose inputs only its own code makes: both graphs on the same batches, by the task's metric.

The samples are prepared once, by the code of the new run. What a metric makes of single samples is not known here, so
the interval is that of a grouped jackknife: the metric of all samples but those of one group, for each of the groups.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from contracts.artifacts import LOSS, ExportManifest
from trainer.export.gates.proof import HasShards, write_graph_outputs, write_test_split
from trainer.export.gates.samples import SPLIT
from trainer.export.gates.scores import measure_scores
from trainer.judge.statistics import GROUPS, Difference, jackknife

Graph = tuple[Path, str]
"""An ONNX file and its precision."""

# Samples that are prepared at a time, at most.
_BATCH = 32


@dataclass(frozen=True)
class Found:
    """Two models by the metric of their task."""

    metric: str
    lower_is_better: bool
    samples: int
    difference: Difference


def compare_by_task(
    trial: HasShards,
    champion: Graph,
    challenger: Graph,
    document: ExportManifest,
    metric: str,
    work: Path,
    threads: int,
) -> Found:
    """Compare two graphs by the task of a configuration, with its own code. For a process of its own.

    Args:
        trial: The run's configuration and shards.
        champion: The graph that ships of the model in production.
        challenger: That of the new one.
        document: Manifest of the new one.
        metric: Name of the metric to compare; empty: the task's headline.
        work: A folder for files in between.
        threads: Intra-op threads of ONNX Runtime.

    Raises:
        ValueError: The task has no such metric, it is no finite number of these samples, or a graph fails on them.
        ShardlineError: The task's code fails, or a shard is damaged.
    """
    import torch

    from trainer.export.gates.tensors import kind_of
    from trainer.model.build import build_model, example_inputs
    from trainer.tasks.load import load_task

    torch.set_num_threads(threads)
    config, task = trial.config, load_task(trial.config, trial.shards, trial.shards_uri)
    held = trial.shards.splits[SPLIT].samples
    batch = max(1, min(_BATCH, held // (2 * GROUPS)))
    # All of it, of which the gates may have run a part.
    split = write_test_split(trial, task, work, most=held, seed=document.proof_seed or 0, batch=batch)
    with torch.inference_mode():
        kind = kind_of(build_model(task, config).eval()(*example_inputs(task, 1)))
    name, direction, values = metric, "max", list[list[float]]()
    for (graph, precision), whose in ((champion, "champion"), (challenger, "challenger")):
        try:
            outputs = write_graph_outputs(
                graph, split.inputs, work / whose, batch_size=_BATCH, threads=threads, precision=precision
            )
        except Exception as error:  # noqa: BLE001 - ONNX Runtime's errors have no class in common
            said = (str(error).splitlines() or [""])[0]
            raise ValueError(f"the {whose}'s graph failed: {type(error).__name__}: {said}") from None
        groups = min(GROUPS, len(split.sizes))
        values.append([])
        for left_out in (None, *range(groups)):
            found = measure_scores(task, config, split, outputs, kind, without=left_out, groups=groups)
            name = name or found.headline.metric
            direction = found.directions.get(name, "min")
            if name not in found.values:
                known = ", ".join(sorted({*found.directions, LOSS}))
                raise ValueError(f"{name} is no finite number of the test split, or no metric of the task ({known})")
            values[-1].append(found.values[name])
    (old, *old_without), (new, *new_without) = values
    interval = jackknife(new - old, [after - before for before, after in zip(old_without, new_without, strict=True)])
    difference = Difference(old, new, interval, f"jackknife of {groups} groups")
    return Found(name, direction == "min", split.samples, difference)
