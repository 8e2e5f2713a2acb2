"""Checks of task and network without shards: example batch, name patterns, weights."""

from __future__ import annotations

from contextlib import suppress
from functools import partial

import torch
from torch import nn

from contracts import storage
from contracts.artifacts import ShardManifest, Shards, SplitEntry
from contracts.artifacts.shards import FieldEntry, TokenizerEntry
from contracts.checked import Findings
from contracts.config import SPLITS, RunConfig
from contracts.config.sharding import CLASS_KINDS
from contracts.errors import ModelError, UserError
from contracts.previous import PREVIOUS
from records.tokenizer import TOKENIZER_NAME, count_tokens, find_padding, tokenizer_uri
from trainer.data.evaluation import EvaluationBatch
from trainer.data.reader import Origin
from trainer.model.build import build_model, check_sizes, example_inputs
from trainer.model.freeze import find_frozen, require_some_learns
from trainer.model.signature import largest_sizes
from trainer.optim import rate_factors
from trainer.predictions import OutcomeCollector
from trainer.tasks.loading import calling, is_own_network, load_task, network_name, task_error
from trainer.tasks.metrics import SplitMetrics
from trainer.tasks.on_device import checked_loss
from trainer.tasks.shard_checks import FIELDS
from trainer.tasks.task import Baseline, Mode, Task
from trainer.tasks.text import UNKNOWN_CRC32C
from trainer.weights.source import find_source
from trainer.weights.start import take_tensors
from trainer.weights.tensors import read_tensors

# Placeholder for the number of classes, unknown before sharding.
_PLANNED_CLASSES = 2


def plan_task(config: RunConfig, findings: Findings) -> Task | None:
    """Return the task for planned shards; None if it cannot be created.

    Built-in tasks are created without data.transform, which `check_own_code` has checked.
    """
    if not config.task.is_own:
        config = config.model_copy(update={"data": config.data.model_copy(update={"transform": ""})})
    with findings.refusals():
        return load_task(config, _planned_shards(config))
    return None


def _planned_shards(config: RunConfig) -> ShardManifest:
    classes = [f"class {number}" for number in range(_PLANNED_CLASSES)]
    sharding = config.sharding
    fields = {
        name: FieldEntry(kind=field.kind, place=place, classes=classes if field.kind in CLASS_KINDS else [])
        for place, (name, field) in enumerate(sharding.fields.items())
    }
    tokenizer = None
    if sharding.tokenizer is not None and sharding.text_field is not None:
        tokens, padding, crc32c = _read_tokenizer(config) or (sharding.tokenizer.vocabulary, 0, UNKNOWN_CRC32C)
        tokenizer = TokenizerEntry(
            name=TOKENIZER_NAME,
            bytes=0,
            crc32c=crc32c,
            field=sharding.text_field,
            tokens=tokens,
            padding=padding,
            trained=not sharding.tokenizer.file,
        )
    split = SplitEntry(first=0, samples=_PLANNED_CLASSES, source_bytes=0, samples_by_class=[1] * _PLANNED_CLASSES)
    return ShardManifest(
        fingerprint="planned",
        made_from={},
        format="webdataset",
        seed=0,
        classes=classes,
        multi_label=not sharding.fields and FIELDS.get(config.task.name, {}).get("label") == "classes",
        fields=fields,
        splits=dict.fromkeys(SPLITS, split),
        shards=Shards.of([]),
        rejected=[],
        mean=[0.5] * 3,
        std=[0.25] * 3,
        tokenizer=tokenizer,
    )


def _read_tokenizer(config: RunConfig) -> tuple[int, int, str] | None:
    """Return tokens, padding and crc32c of a local tokenizer file; None if there is none or it is unreadable.

    The shard stage reports unreadable files.
    """
    file = config.sharding.tokenizer.file if config.sharding.tokenizer else ""
    try:
        if not file or not storage.is_local(uri := tokenizer_uri(file)):
            return None
        from tokenizers import Tokenizer

        content = storage.read_bytes(uri)
        tokenizer = Tokenizer.from_str(content.decode())
    except Exception:  # noqa: BLE001 - the library raises Exception itself
        return None
    padding = find_padding(content, tokenizer) or 0
    return count_tokens(tokenizer, padding), padding, storage.crc32c(content)


def check_network(config: RunConfig, task: Task, findings: Findings) -> nn.Module | None:
    """Build the network and run it on the task's example; return it, or None if it fails.

    Built-in networks use the meta device. User networks, and those that fail there, use the CPU and also run on the
    longest sample of the signature.
    """
    if not is_own_network(config):
        with suppress(ModelError), torch.device("meta"):
            return build_model(task, config)
    name = network_name(config)
    try:
        model = build_model(task, config)
        if largest_sizes(task.signature):
            with findings.refusals():
                check_sizes(model, example_inputs(task, 2), task.signature, name=name, largest_only=True)
        return model
    except MemoryError:
        findings.leave_unchecked("the network and its arguments", "this machine has too little memory for it")
    except UserError as error:
        needs_classes = any(kind in CLASS_KINDS for kind in task.fields.values()) and is_own_network(config)
        if "cuda" in error.given.lower() and not torch.cuda.is_available():
            findings.leave_unchecked("the network and its arguments", "it asks for a GPU, and there is none here")
        elif needs_classes and error.allowed.startswith("outputs"):
            subject = f"the width of the last layer of {name}"
            findings.leave_unchecked(subject, "the number of classes is not known before sharding")
        else:
            with findings.refusals():
                raise
    return None


def check_task(task: Task, model: nn.Module, config: RunConfig) -> None:
    """Run the methods of a user task on its example batch; raise ConfigError if they are inconsistent."""
    batch = task.example(2)
    with torch.no_grad():
        with calling(config, "example"):
            outputs = model.eval()(*(batch[name] for name in task.signature.inputs))
        with calling(config, "loss"):
            checked_loss(task.loss(outputs, batch, Mode(training=True)), config)
        SplitMetrics(task, torch.device("cpu"), partial(calling, config)).update(outputs, batch)
        collector, origins = OutcomeCollector(task, config), (Origin("planned", "", None),) * 2
        collector.add(outputs, EvaluationBatch(batch, range(2), origins))
        with calling(config, "outcomes", allowed="values of JSON"):
            outcomes = collector.join()
            outcomes.to_parquet(task.classes)
        with calling(config, "baseline"):
            baseline = task.baseline(outcomes.columns)
    if not isinstance(baseline, Baseline | None):
        raise task_error(config, "baseline", f"returned {baseline!r}", allowed="a Baseline, or None")


def check_patterns(model: nn.Module, config: RunConfig) -> None:
    """Raise ConfigError for name patterns without a match, or if all parameters are frozen."""
    frozen = find_frozen(model, config.model.freeze)
    learns = [name for name, parameter in model.named_parameters() if parameter.requires_grad]
    require_some_learns([name for name in learns if name not in frozen.parameters], config.model.freeze)
    rate_factors(model, config.train)


def check_weights(
    model: nn.Module | None, config: RunConfig, task: Task | None, findings: Findings, *, online: bool
) -> None:
    """Check `model.weights`: compare tensor names and shapes with the network, which may be modified."""
    weights = config.model.weights
    if weights in ("", PREVIOUS):
        return
    with findings.refusals():
        uri = storage.normalise(weights)
        if not storage.is_local(uri) and not online:
            findings.leave_unchecked(f"model.weights {weights}", "no bucket is asked offline")
            return
        source = find_source(uri)
        reads_text = task is not None and "text" in task.fields.values()
        unchecked = f"whether model.weights {weights} fits"
        if model is None or task is None:
            findings.leave_unchecked(unchecked, "the network could not be built")
        elif not storage.is_local(uri):
            findings.leave_unchecked(unchecked, "files in a bucket are read when training starts")
        elif reads_text and config.sharding.tokenizer and _read_tokenizer(config) is None:
            findings.leave_unchecked(unchecked, "the tokenizer's size is not known before sharding")
        else:
            task.check_weights(source)
            take_tensors(model, read_tensors(source, model), task, source, sha256="")
