"""Comparison of two exports on one test split: whether a new model is worse than the one in production.

    python -m trainer.judge --candidate URI --production URI --shards URI [--tolerance 0.02] [--config-json TEXT]

Both models run on the whole test split, with the inputs that each export prescribes; outputs are mapped to classes by
name. A paired bootstrap of the task's headline metric gives the difference with its 95 % interval. The last line of
stdout is one JSON document (docs/retraining.md). Exit code 0: not worse; 1: worse; 2: the two cannot be compared. Equal
inputs give equal numbers. Nothing is written, and no export's predict.py is executed.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from contracts import storage
from contracts.artifacts import LOSS, Headline, ShardManifest
from contracts.config import RunConfig
from contracts.config.load import read_stage_config
from contracts.errors import EXIT_CHECK_FAILED, EXIT_OK, ConfigError, DataError, ErrorDocument
from contracts.own_code import install_code
from contracts.process import end_with_parent, imports_done, run_process, thread_environment, threads_per_rank
from trainer.export.samples import SPLIT
from trainer.predict.bundle import PREPROCESS_NAME, TOKENIZER_NAME, read_labels
from trainer.predict.command import CheckedFolder, open_runner

if TYPE_CHECKING:
    import torch
    from torchmetrics import Metric

    from trainer.tasks.task import Task

# Draws of the bootstrap, most groups of samples that it draws, and least number of compared samples.
DRAWS, GROUPS, MIN_SAMPLES = 500, 100, 20
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
            raise ConfigError(f"--tolerance {options.tolerance}", allowed="0 to below 1", todo="set it, e.g. to 0.02")
        config = None if options.config_json is None else read_stage_config(options.config_json)
        exports = [storage.normalise(uri) for uri in (options.candidate, options.production)]
        comparison = compare(exports, storage.normalise(options.shards), options.tolerance, config)
    except Exception as error:  # noqa: BLE001 - the entry of a process is where everything ends
        failure = ErrorDocument.of(error)
        print(f"judge: error: {failure.message}", file=sys.stderr)
        return failure.exit_code
    print(json.dumps(comparison, ensure_ascii=False, allow_nan=False))
    return EXIT_CHECK_FAILED if comparison["verdict"] == "worse" else EXIT_OK


def compare(exports: Sequence[str], shards_uri: str, tolerance: float, config: RunConfig | None) -> dict[str, Any]:
    """Return the comparison of two exports: the document that the command prints.

    Args:
        exports: Folders of the candidate and of the export in production.
        shards_uri: Folder of the shards.
        tolerance: Allowed loss in units of the metric; where lower is better, as a part of production's value.
        config: Keys code, data, model and task of the run; None: those of the candidate's task by default.

    Raises:
        ConfigError, DataError: The exports cannot be compared, or an input is damaged.
    """
    with ExitStack() as stack:
        folders = [stack.enter_context(CheckedFolder(uri)) for uri in exports]
        config = _check_tasks(folders, config)
        shards = ShardManifest.load(shards_uri)
        install_code(config.code)
        is_own = config.task.is_own
        labels = [[] if is_own else read_labels(folder.take("labels.json").parent) or [] for folder in folders]
        unknown = [name for name in shards.classes if name not in labels[1] and not is_own]
        # Labels are indices into the shards' classes; classes that only the models have follow them.
        classes = [*shards.classes, *sorted({*labels[0], *labels[1]} - set(shards.classes))]
        split = shards_uri, shards.model_copy(update={"classes": classes})
        new, old = (_evaluate(*pair, *split, unknown, config) for pair in zip(folders, labels, strict=True))
    left_out = shards.splits[SPLIT].samples - new.samples
    if new.samples < MIN_SAMPLES:
        raise DataError(
            f"{new.samples} test samples can be compared; {left_out} are of classes that production does not know",
            allowed=f"at least {MIN_SAMPLES} test samples of classes that production knows",
            todo="enlarge the test split, or promote the run by hand (shardline promote)",
        )
    value, reference = (metric_of(model, [1] * len(model.groups)) for model in (new, old))
    draws = draw_counts(len(new.groups)).tolist()
    interval = find_interval(np.array([metric_of(new, counts) - metric_of(old, counts) for counts in draws]))
    if not np.isfinite([value, reference, *interval]).all():
        problem = f"{new.headline.metric} on the test split is {value}, in production {reference}"
        raise DataError(problem, allowed="finite numbers, in most draws of the bootstrap too", todo=_NO_COMPARISON)
    higher_is_better = new.headline.direction == "max"
    loss = reference - value if higher_is_better else value - reference
    limit = loss_limit(interval, tolerance if higher_is_better else tolerance * abs(reference))
    verdict = {"verdict": "worse" if loss > limit else "not worse", "tolerance": tolerance, "limit": limit}
    metric = {"metric": new.headline.metric, "direction": new.headline.direction}
    values = {"candidate": value, "production": reference, "difference": value - reference, "interval": interval}
    gained, lost = (sorted(set(names) - set(other_names)) for names, other_names in (labels, labels[::-1]))
    samples = {"samples": new.samples, "left_out": left_out, "classes_gained": gained, "classes_lost": lost}
    return verdict | metric | values | samples | {"ran": {"candidate": new.ran, "production": old.ran}}


def draw_counts(groups: int) -> npt.NDArray[np.int64]:
    """Return the count of each group in each bootstrap draw [DRAWS, groups]; the same in every call."""
    return np.random.default_rng(_SEED).multinomial(groups, np.full(groups, 1 / groups), size=DRAWS)


def find_interval(differences: npt.NDArray[np.float64]) -> tuple[float, float]:
    """Return the 95 % interval of the differences of all draws; NaN where most are not finite.

    Source: Efron and Tibshirani, An Introduction to the Bootstrap, 1993, chapter 13 (percentile interval).
    """
    finite = differences[np.isfinite(differences)]
    quantiles = np.quantile(finite, (0.025, 0.975)) if 2 * len(finite) > len(differences) else np.full(2, np.nan)
    return float(quantiles[0]), float(quantiles[1])


def loss_limit(interval: tuple[float, float], tolerance: float) -> float:
    """Return the largest loss with which a candidate is not worse, by the 95 % interval of the difference."""
    half_width = (interval[1] - interval[0]) / 2
    # Half the width is about two standard errors: at least that far above 0, and if possible below 1.5 tolerances.
    return max(half_width, min(tolerance, 1.5 * tolerance - half_width))


class _Evaluation(NamedTuple):
    """The headline metric of a model, its states per group of samples, and the runtime that ran it."""

    headline: Headline
    metric: Metric
    groups: list[list[torch.Tensor]]
    samples: int
    ran: str


def _evaluate(
    folder: CheckedFolder,
    labels: list[str],
    shards_uri: str,
    shards: ShardManifest,
    left_out: list[str],
    config: RunConfig,
) -> _Evaluation:
    """Evaluate a model with outputs `labels` on the test split without the classes `left_out`."""
    import torch
    from torchmetrics import MeanMetric

    from trainer.data.evaluation import EvaluationLoader
    from trainer.data.reader import ShardReader
    from trainer.export.tensors import restore_outputs, take_inputs
    from trainer.tasks.loading import calling
    from trainer.tasks.metrics import SplitMetrics
    from trainer.tasks.on_device import checked_loss
    from trainer.tasks.task import Mode

    files = {entry.name: folder.take(entry.name) for entry in folder.document.shipped_files()}
    with _running(folder):
        run, ran = open_runner(folder)
    task = _make_task(files, shards_uri, shards, config)
    columns = torch.tensor([shards.classes.index(name) for name in labels])
    excluded = torch.tensor([shards.classes.index(name) for name in left_out])
    metrics = SplitMetrics(task, torch.device("cpu"), partial(calling, config))
    metric: Metric = metrics.by_name.get(metrics.headline.metric) or MeanMetric(nan_strategy=float("inf"))
    metric.set_dtype(torch.float64)
    size = max(1, min(_BATCH, shards.splits[SPLIT].samples // GROUPS))
    groups: list[list[torch.Tensor]] = []
    samples, group_samples = 0, 0
    with torch.inference_mode():
        reader = ShardReader(shards_uri, shards, SPLIT, config.data, tuple(task.fields))
        loader = EvaluationLoader(reader, task, size, calling=partial(calling, config))
        for number, (batch, places, _) in enumerate(loader.batches(), start=1):
            count, inputs = len(places), take_inputs(batch, task.signature)
            with _running(folder):
                arrays = run({name: tensor.numpy() for name, tensor in zip(task.signature.inputs, inputs, strict=True)})
            outputs = restore_outputs(arrays, folder.document.container)
            if labels:
                # Classes unknown to the model get a score below its lowest one.
                lowest = outputs.min(dim=1, keepdim=True).values - 1
                outputs = lowest.repeat(1, len(shards.classes)).index_copy_(1, columns, outputs)
            if left_out and batch["label"].ndim > 1:
                batch = {"label": batch["label"].index_fill(1, excluded, 0)}
            elif left_out:
                rows = ~torch.isin(batch["label"], excluded)
                outputs, batch, count = outputs[rows], {"label": batch["label"][rows]}, int(rows.sum())
            if count and metrics.headline.metric == LOSS:
                with calling(config, "loss"):
                    total, weight = checked_loss(task.loss(outputs, batch, Mode(training=False)), config)
                metric.update(total.double() / max(float(weight), 1), float(weight))
            elif count:
                metrics.update(outputs, batch)
            group_samples += count
            # After the last batch of a group; groups without samples are skipped.
            if number * GROUPS // loader.rounds > (number - 1) * GROUPS // loader.rounds and group_samples:
                groups.append(take_states(metric))
                samples, group_samples = samples + group_samples, 0
    return _Evaluation(metrics.headline, metric, groups, samples, ran)


def take_states(metric: Metric) -> list[torch.Tensor]:
    """Return the states of a metric and of those inside it, and reset them."""
    from trainer.tasks.metrics import metric_parts

    states = [getattr(part, name) for part in metric_parts(metric) for name in part._reductions]
    for part in metric_parts(metric):
        part.reset()
    return states


def metric_of(model: _Evaluation, counts: Sequence[int]) -> float:
    """Return the metric over all groups of samples, each weighted by its count."""
    import torch
    from torchmetrics.utilities.data import dim_zero_max, dim_zero_sum

    from trainer.tasks.metrics import metric_parts, metric_value

    drawn = [place for place, count in enumerate(counts) if count]
    weights = torch.tensor([counts[place] for place in drawn], dtype=torch.float64)
    states = (torch.stack(values) for values in zip(*(model.groups[place] for place in drawn), strict=True))
    for part in metric_parts(model.metric):
        for name, reduction in part._reductions.items():
            stacked = next(states)
            extreme = stacked.amax(0) if reduction is dim_zero_max else stacked.amin(0)
            weighted = torch.tensordot(weights, stacked.double(), dims=1)
            setattr(part, name, weighted if reduction is dim_zero_sum else extreme)
        part._update_count, part._computed = 1, None
    return metric_value(model.metric)


@contextmanager
def _running(folder: CheckedFolder) -> Iterator[None]:
    try:
        yield
    except Exception as error:  # ONNX Runtime's errors have no class in common
        raise folder.damaged(f"its model does not run: {(str(error).splitlines() or [''])[0]}") from error


def _make_task(files: dict[str, Path], uri: str, shards: ShardManifest, config: RunConfig) -> Task:
    """Return the task that prepares a model's inputs, from the run's code or from the export's files."""
    from trainer.tasks.loading import load_task

    if config.task.is_own:
        return load_task(config, shards, uri)
    entries = json.loads(files[PREPROCESS_NAME].read_bytes())
    if shards.tokenizer is not None and TOKENIZER_NAME in files:
        path = files[TOKENIZER_NAME]
        file = {"name": path.name, "crc32c": storage.crc32c(path.read_bytes()), "padding": entries["padding"]}
        shards = shards.model_copy(update={"tokenizer": shards.tokenizer.model_copy(update=file)})
        uri = storage.normalise(path.parent)
    data = {key: entries[key] for key in ("image_size", "mean", "std") if key in entries}
    # No headline of these tasks depends on other arguments.
    arguments = {key: entries[key] for key in ("max_length",) if key in entries}
    task = config.task.model_copy(update={"arguments": arguments})
    update = {"data": config.data.model_copy(update=data), "task": task}
    return load_task(config.model_copy(update=update), shards, uri)


def _check_tasks(folders: Sequence[CheckedFolder], config: RunConfig | None) -> RunConfig:
    """Check that both exports are of one task; return its configuration."""
    new, old = (folder.document for folder in folders)
    is_own = ":" in new.task
    if new.task != old.task or (is_own and new.signature != old.signature):
        raise DataError(
            f"the candidate is of task {new.task}, production of {old.task}, or inputs and outputs differ",
            allowed="two exports of one task; of an own task with the same signature",
            todo=_NO_COMPARISON,
        )
    if config is None and not is_own:
        config = RunConfig.model_validate({"task": {"name": new.task}})
    if config is None or config.task.name != new.task:
        configured = "missing" if config is None else f"of {config.task.name}"
        raise ConfigError(
            f"the exports are of task {new.task}, --config-json is {configured}",
            allowed="the configuration of the candidate's run",
            todo="pass its keys code, data, model and task as --config-json",
        )
    return config


if __name__ == "__main__":
    run_process(main)
