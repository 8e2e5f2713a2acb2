"""Comparison of two exports on one test split: whether a new model is worse than the one in production.

    python -m trainer.judge --candidate URI --production URI --shards URI [--tolerance 0.02] [--config-json TEXT]

Both served graphs run on the whole test split of the shards, prepared for each model as its export says. Outputs are
mapped to classes by name. One paired bootstrap of the task's headline metric gives the difference (candidate minus
production) with its 95 % interval. Prints one JSON document (docs/retraining.md has its keys) as the last line of
stdout; exit code 0 for not worse, 1 for worse, 2 where the two cannot be compared. Equal inputs give equal numbers.
Nothing is written, and no export's predict.py is executed.

The candidate is worse where it loses more than the limit (`loss_limit`). With a large test split the limit is the
tolerance. With a smaller one it moves so that two errors stay rare: keeping out a model as good as production, and
letting pass one that is worse by one and a half tolerances. Both stay below 5 % (simulated: 400 pairs each) from 2,000
test samples where the models disagree on one sample in ten, and from 1,000 where they disagree on one in twenty, with
the tolerance 0.02. Below that the limit is half the width of the interval: equal models are still kept out in fewer
than 5 %, and of those that are worse more pass.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import traceback
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from contracts import storage
from contracts.artifacts import LOSS, Headline, ShardManifest
from contracts.config import RunConfig
from contracts.config.load import read_stage_config
from contracts.errors import EXIT_CHECK_FAILED, EXIT_OK, ConfigError, DataError, ErrorDocument
from contracts.own_code import install_code
from contracts.process import end_with_parent, imports_done, run_process, thread_environment, threads_per_rank
from contracts.serving import TENSORRT
from trainer.export.gates.parity import Runner, name_of_onnx, open_graph
from trainer.export.gates.samples import SPLIT
from trainer.predict.bundle import TOKENIZER_NAME, read_labels
from trainer.predict.command import CheckedFolder, open_engine

if TYPE_CHECKING:
    import torch
    from torchmetrics import Metric

    from trainer.tasks.task import Task

Files = dict[str, Path]

DRAWS = 500
"""Draws of the bootstrap."""
GROUPS = 100
"""Groups of samples that the bootstrap draws, at most: states of the metric are kept of each."""
MIN_SAMPLES = 20
"""Least number of compared samples: of fewer an interval says nothing."""
_BATCH = 32
_SEED = 0x6A75646765
_NO_COMPARISON = "promote the run by hand (shardline promote), or export again"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command (see the top of this file); return the exit code."""
    end_with_parent()
    parser = argparse.ArgumentParser(prog="judge", allow_abbrev=False)
    parser.add_argument("--candidate", required=True, help="folder of the new export")
    parser.add_argument("--production", required=True, help="folder of the export in production")
    parser.add_argument("--shards", required=True, help="folder of the shards with the test split")
    parser.add_argument("--tolerance", type=float, default=0.02, help="allowed loss of the headline metric")
    parser.add_argument("--config-json", help="keys code, data, model and task of the run; an own task needs them")
    options = parser.parse_args(arguments)
    os.environ.update(thread_environment(threads_per_rank(1)))
    imports_done()
    try:
        if not 0 <= options.tolerance < 1:
            raise ConfigError(
                f"--tolerance {options.tolerance}", allowed="from 0 to below 1", todo="set it, e.g. to 0.02"
            )
        config = None if options.config_json is None else read_stage_config(options.config_json)
        uris = [storage.normalise(uri) for uri in (options.candidate, options.production, options.shards)]
        comparison = compare(*uris, tolerance=options.tolerance, config=config)
    except Exception as error:  # noqa: BLE001 - the entry of a process is where everything ends
        failure = ErrorDocument.of(error, traceback.format_exc())
        print(f"judge: error: {failure.message}", file=sys.stderr)
        return failure.exit_code
    print(json.dumps(comparison, ensure_ascii=False, allow_nan=False))
    return EXIT_CHECK_FAILED if comparison["verdict"] == "worse" else EXIT_OK


def compare(
    candidate: str, production: str, shards_uri: str, *, tolerance: float, config: RunConfig | None
) -> dict[str, Any]:
    """Return the comparison of two exports: the document that the command prints.

    Args:
        candidate: Folder of the new export.
        production: Folder of the export in production.
        shards_uri: Folder of the shards.
        tolerance: Allowed loss in units of the metric; where lower is better, a share of production's value.
        config: Keys code, data, model and task of the run; None: defaults, with the candidate's task.

    Raises:
        ConfigError: The configuration is of another task, or is missing for an own task.
        DataError: The exports are of different tasks, or an input is damaged or cannot be used.
    """
    with ExitStack() as stack:
        folders = [stack.enter_context(CheckedFolder(uri)) for uri in (candidate, production)]
        config = _check_tasks(folders, config)
        shards = ShardManifest.load(shards_uri)
        install_code(config.code)
        labels = [_read_labels(folder) for folder in folders]
        left_out_classes = [] if config.task.is_own else [name for name in shards.classes if name not in labels[1]]
        # Places of the shards' classes are the labels of their samples; the models' further classes follow.
        classes = [*shards.classes, *sorted({*labels[0], *labels[1]} - set(shards.classes))]
        split = JudgedSplit(shards_uri, shards, classes, left_out_classes)
        new, old = (measure(folder, names, split, config) for folder, names in zip(folders, labels, strict=True))
    left_out = shards.splits[SPLIT].samples - new.samples
    if new.samples < MIN_SAMPLES:
        raise DataError(
            f"{new.samples} test samples can be compared; {left_out} are of classes that production does not know",
            allowed=f"at least {MIN_SAMPLES} test samples of classes that production knows",
            todo="enlarge the test split, or promote the run by hand (shardline promote)",
        )
    value, reference = (model.value([1] * model.groups) for model in (new, old))
    differences = np.array([new.value(row) - old.value(row) for row in draw_counts(new.groups).tolist()])
    interval = find_interval(differences)
    if not np.isfinite([value, reference, *interval]).all():
        raise DataError(
            f"{new.headline.metric} on the test split is {value}, in production {reference}",
            allowed="finite numbers, in most of the draws of the bootstrap too",
            todo=_NO_COMPARISON,
        )
    higher_is_better = new.headline.direction == "max"
    loss = reference - value if higher_is_better else value - reference
    limit = loss_limit(interval, tolerance if higher_is_better else tolerance * abs(reference))
    return {
        "verdict": "worse" if loss > limit else "not worse",
        "metric": new.headline.metric,
        "direction": new.headline.direction,
        "candidate": value,
        "production": reference,
        "difference": value - reference,
        "interval": interval,
        "tolerance": tolerance,
        "limit": limit,
        "samples": new.samples,
        "left_out": left_out,
        "classes_gained": sorted(set(labels[0]) - set(labels[1])),
        "classes_lost": sorted(set(labels[1]) - set(labels[0])),
        "ran": {"candidate": new.ran, "production": old.ran},
    }


# --- the statistics ---------------------------------------------------------------------------------------------------


def draw_counts(groups: int) -> npt.NDArray[np.int64]:
    """Return how often each draw of the bootstrap takes each group [DRAWS, groups]; the same in every call."""
    return np.random.default_rng(_SEED).multinomial(groups, np.full(groups, 1 / groups), size=DRAWS)


def find_interval(differences: npt.NDArray[np.float64]) -> tuple[float, float]:
    """Return the 95 % interval of the differences of all draws; not a number where most have none.

    Source: Efron and Tibshirani, An Introduction to the Bootstrap, 1993, chapter 13 (percentile interval).
    """
    finite = differences[np.isfinite(differences)]
    if 2 * len(finite) <= len(differences):
        return float("nan"), float("nan")
    low, high = np.quantile(finite, (0.025, 0.975))
    return float(low), float(high)


def loss_limit(interval: tuple[float, float], tolerance: float) -> float:
    """Return the largest loss of the headline metric with which a candidate is not worse than production.

    Args:
        interval: 95 % interval of the difference; half its width is some two standard errors.
        tolerance: In units of the metric.
    """
    half_width = (interval[1] - interval[0]) / 2
    # At least two standard errors above no loss, and two below 1.5 tolerances where both fit.
    return max(half_width, min(tolerance, 1.5 * tolerance - half_width))


# --- the models -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class JudgedSplit:
    """The samples that both models run on."""

    shards_uri: str
    shards: ShardManifest
    classes: list[str]
    """Classes of the shards and of both models: places of the outputs."""
    left_out: list[str]
    """Classes that production does not know: their samples, or of a sample with several labels these labels."""


@dataclass(frozen=True)
class Measured:
    """A model's headline metric on the test split."""

    headline: Headline
    value: Callable[[Sequence[int]], float]
    """Returns the metric with each group of samples as often as the argument says."""
    groups: int
    samples: int
    ran: str
    """File and runtime."""


def measure(folder: CheckedFolder, labels: list[str], split: JudgedSplit, config: RunConfig) -> Measured:
    """Run the served graph of an export on the test split.

    A TensorRT plan runs on its GPU; elsewhere the ONNX file that it was built from runs, on the CPU as in the gates.

    Args:
        folder: The export.
        labels: Its classes in the order of its outputs; empty for an own task.
        split: The samples.
        config: Keys code, data, model and task.

    Raises:
        DataError: The export is damaged, or its model does not run.
    """
    import torch

    from trainer.data.evaluation import EvaluationLoader
    from trainer.data.reader import ShardReader
    from trainer.export.gates.tensors import restore_outputs, take_inputs
    from trainer.tasks.loading import calling
    from trainer.tasks.metrics import SplitMetrics
    from trainer.tasks.on_device import checked_loss
    from trainer.tasks.task import Mode

    files = {entry.name: folder.take(entry.name) for entry in folder.document.shipped_files()}
    run, ran = _open_model(folder, files)
    task = _make_task(files, split, config)
    columns = [split.classes.index(name) for name in labels]
    excluded = [split.classes.index(name) for name in split.left_out]
    metrics = SplitMetrics(task, torch.device("cpu"), partial(calling, config))
    by_loss = metrics.headline.metric == LOSS
    size = max(1, min(_BATCH, split.shards.splits[SPLIT].samples // GROUPS))
    batches = -(-split.shards.splits[SPLIT].samples // size)
    headline = None if by_loss else metrics.by_name[metrics.headline.metric]
    groups: list[Any] = []
    samples, group_samples, loss = 0, 0, np.zeros(2)
    with torch.inference_mode():
        reader = ShardReader(split.shards_uri, split.shards, SPLIT, config.data, tuple(task.fields))
        read = EvaluationLoader(reader, task, size, calling=partial(calling, config)).batches()
        for number, (batch, places, _) in enumerate(read, start=1):
            count = len(places)
            names, tensors = task.signature.inputs, take_inputs(batch, task.signature)
            try:
                arrays = run({name: tensor.numpy() for name, tensor in zip(names, tensors, strict=True)})
            except Exception as error:  # ONNX Runtime's errors have no class in common
                raise _does_not_run(folder, error) from error
            outputs = restore_outputs(arrays, folder.document.container)
            if columns:
                # A class that the model does not know is its last choice.
                lowest = outputs.min(dim=1, keepdim=True).values - 1
                outputs = lowest.repeat(1, len(split.classes)).index_copy_(1, torch.tensor(columns), outputs)
            if excluded and batch["label"].ndim > 1:
                batch = {"label": batch["label"].index_fill(1, torch.tensor(excluded), 0)}
            elif excluded:
                known = ~torch.isin(batch["label"], torch.tensor(excluded))
                outputs, batch, count = outputs[known], {"label": batch["label"][known]}, int(known.sum())
            if count and by_loss:
                with calling(config, "loss"):
                    found = checked_loss(task.loss(outputs, batch, Mode(training=False)), config)
                loss = loss + [float(part) for part in found]
            elif count:
                metrics.update(outputs, batch)
            group_samples += count
            # The last batch of a group; a group without samples is none.
            if number * GROUPS // batches > (number - 1) * GROUPS // batches and group_samples:
                groups.append(loss if headline is None else _take_states(headline))
                samples, group_samples, loss = samples + group_samples, 0, np.zeros(2)
    value = partial(_mean_loss, groups) if headline is None else partial(_metric_of, headline, groups)
    return Measured(metrics.headline, value, len(groups), samples, ran)


def _mean_loss(groups: Sequence[npt.NDArray[np.float64]], counts: Sequence[int]) -> float:
    total, number = np.array(counts) @ np.array(groups)
    return float(total / number) if number else float("nan")


def _take_states(metric: Metric) -> list[torch.Tensor]:
    """Return the states of a metric and of those inside it, and reset them."""
    from trainer.tasks.metrics import metric_parts

    states = [getattr(part, name) for part in metric_parts(metric) for name in part._reductions]
    for part in metric_parts(metric):
        part.reset()
    return states


def _metric_of(metric: Metric, groups: Sequence[list[torch.Tensor]], counts: Sequence[int]) -> float:
    """Return a metric of groups of samples whose states `_take_states` returned, each as often as its count."""
    import torch
    from torchmetrics.utilities.data import dim_zero_max, dim_zero_sum

    from trainer.tasks.metrics import metric_parts, metric_value

    drawn = [place for place, count in enumerate(counts) if count]
    weights = torch.tensor([counts[place] for place in drawn], dtype=torch.float64)
    states = (torch.stack(values) for values in zip(*(groups[place] for place in drawn), strict=True))
    for part in metric_parts(metric):
        for name, reduction in part._reductions.items():
            stacked = next(states)
            # Maxima and minima do not depend on how often a group is there.
            extreme = stacked.amax(0) if reduction is dim_zero_max else stacked.amin(0)
            state = torch.tensordot(weights, stacked, dims=1) if reduction is dim_zero_sum else extreme
            setattr(part, name, state)
        part._update_count, part._computed = 1, None
    return metric_value(metric)


def _open_model(folder: CheckedFolder, files: Files) -> tuple[Runner, str]:
    """Return what runs the model, and its description."""
    document, reason = folder.document, ""
    graph = document.served.model
    if document.served.runtime == TENSORRT:
        engine, reason = open_engine(folder)
        if engine is not None:
            return engine, reason
        graph = document.graph().name
    try:
        run = open_graph(files[graph], threads=threads_per_rank(1), precision=document.precision)
    except Exception as error:  # ONNX Runtime's errors have no class in common
        raise _does_not_run(folder, error) from error
    return run, f"{graph} by {name_of_onnx(document.precision)}" + (f" ({reason})" if reason else "")


def _does_not_run(folder: CheckedFolder, error: Exception) -> DataError:
    return folder.damaged(f"its model does not run: {(str(error).splitlines() or [''])[0]}")


def _make_task(files: Files, split: JudgedSplit, config: RunConfig) -> Task:
    """Return the task that prepares a model's inputs: an own one by the run's code, else as the export says."""
    from trainer.tasks.loading import load_task

    if config.task.is_own:
        return load_task(config, split.shards, split.shards_uri)
    shards, uri = split.shards.model_copy(update={"classes": split.classes}), split.shards_uri
    name = next(name for name in ("preprocess.json", "text.json") if name in files)
    entries = json.loads(files[name].read_bytes())
    if shards.tokenizer is not None and TOKENIZER_NAME in files:
        path = files[TOKENIZER_NAME]
        own = {"name": path.name, "crc32c": storage.crc32c(path.read_bytes()), "padding": entries["padding"]}
        shards = shards.model_copy(update={"tokenizer": shards.tokenizer.model_copy(update=own)})
        uri = storage.normalise(path.parent)
    data = {key: entries[key] for key in ("image_size", "mean", "std") if key in entries}
    # Arguments of the loss are left out: no headline of these tasks depends on them.
    arguments = {key: entries[key] for key in ("max_length",) if key in entries}
    sections = {
        "data": config.data.model_copy(update=data),
        "task": config.task.model_copy(update={"arguments": arguments}),
    }
    return load_task(config.model_copy(update=sections), shards, uri)


def _check_tasks(folders: Sequence[CheckedFolder], config: RunConfig | None) -> RunConfig:
    """Return the configuration, by default that of a task of the tool."""
    new, old = (folder.document for folder in folders)
    if new.task != old.task or (":" in new.task and new.signature != old.signature):
        raise DataError(
            f"the candidate is of task {new.task}, production of {old.task}"
            + (" with other inputs or outputs" if new.task == old.task else ""),
            allowed="two exports of one task; of an own task with the same signature",
            todo=_NO_COMPARISON,
        )
    if config is None and ":" not in new.task:
        return RunConfig.model_validate({"task": {"name": new.task}})
    if config is None or config.task.name != new.task:
        raise ConfigError(
            f"the exports are of task {new.task}, --config-json is "
            + ("not given" if config is None else f"of {config.task.name}"),
            allowed="the configuration of the candidate's run",
            todo="pass its keys code, data, model and task as --config-json",
        )
    return config


def _read_labels(folder: CheckedFolder) -> list[str]:
    """Return the names of a model's classes in the order of its outputs; none of an own task."""
    if ":" in folder.document.task:
        return []
    return read_labels(folder.take("labels.json").parent) or []


if __name__ == "__main__":
    run_process(main)
