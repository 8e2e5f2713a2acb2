"""The task and its network, without weights: tried on the meta device, where tensors have shapes and no memory."""

from __future__ import annotations

import io
import resource
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

import torch
from PIL import Image
from torch import nn

from contracts import storage
from contracts.artifacts import ShardManifest, Shards, SplitEntry
from contracts.artifacts.shards import FieldEntry, TokenizerEntry
from contracts.checked import Findings
from contracts.config import SPLITS, RunConfig, TaskSection
from contracts.config.sharding import CLASS_KINDS, TokenizerSection
from contracts.errors import ConfigError, ModelError, UserError
from contracts.previous import PREVIOUS
from records.tokenizer import TOKENIZER_NAME, count_tokens, find_padding, tokenizer_uri
from trainer.check.own_code import has_module
from trainer.data.evaluation import checked_batch
from trainer.data.loader import collate
from trainer.model.build import build_model, example_inputs
from trainer.model.freeze import find_frozen, require_some_learns
from trainer.model.sizes import check_sizes, largest_sizes, resize_inputs
from trainer.optim import rate_factors
from trainer.tasks.classes.losses import without_class_names
from trainer.tasks.load import calling, is_own_network, load_task, network_name, task_error
from trainer.tasks.loss import checked_loss
from trainer.tasks.metrics import SplitMetrics
from trainer.tasks.needs import FIELDS
from trainer.tasks.on_device import find_misfit, misfit_error
from trainer.tasks.optional import count_units, largest_example, unit_of
from trainer.tasks.protocol import Mode, Sample, Task
from trainer.tasks.text_classification.inputs import NO_CRC32C
from trainer.weights.fit import check_fit
from trainer.weights.source import find_source, wants_saved_arguments, with_saved_arguments
from trainer.weights.start import MIN_MATCHED_FRACTION, check_inputs, find_head

# What a network may take that cannot be built on the meta device: one that takes more is left to the stages.
MEMORY_BYTES = 4 << 30
# Parameters times numbers of an input: half a minute on two cores.
MOST_WORK = 250e9
# Stands for the number of classes, which is not known before sharding.
_SOME_CLASSES = 2


def fill_arguments(config: RunConfig, *, online: bool = False) -> RunConfig:
    """Return a configuration with the arguments in config.json of model.weights, where it gives none.

    Args:
        config: The configuration.
        online: Whether the bucket of model.weights may be asked.
    """
    if not wants_saved_arguments(config):
        return config
    # What is wrong with the weights is told by `check_weights`.
    with suppress(UserError):
        uri = storage.normalise(config.model.weights)
        return with_saved_arguments(config, find_source(uri).config if storage.is_local(uri) or online else None)
    return config


def plan_task(config: RunConfig, findings: Findings, *, online: bool = False) -> Task | None:
    """Make the task for shards as the configuration would make them; return it, None where it cannot be had.

    One of the tool is made without data.transform, which has been looked at already (own_code.py) and may lack what
    other machines have; and where its arguments are wrong without these: its network is looked at all the same, so that
    all mistakes are told at once.

    Args:
        config: The configuration.
        findings: Gets what is wrong.
        online: Whether the bucket of a tokenizer may be asked.
    """
    section = config.sharding.tokenizer
    tokenizer = _planned_tokenizer(section, config.sharding.text_field, online=online)
    shards = _planned_shards(config, tokenizer)
    if not config.task.is_own:
        config = config.model_copy(update={"data": config.data.model_copy(update={"transform": ""})})
    with findings.refusals():
        return load_task(without_class_names(config), shards)
    if not config.task.is_own:
        with suppress(UserError):
            return load_task(config.model_copy(update={"task": TaskSection(name=config.task.name)}), shards)
    return None


def _planned_shards(config: RunConfig, tokenizer: TokenizerEntry | None) -> ShardManifest:
    classes = [f"class {number}" for number in range(_SOME_CLASSES)]
    given = config.sharding.fields.items()
    fields = {
        name: FieldEntry(
            kind=field.kind,
            place=place,
            classes=classes if field.kind in CLASS_KINDS else [],
        )
        for place, (name, field) in enumerate(given)
    }
    split = SplitEntry(first=0, samples=_SOME_CLASSES, source_bytes=0, samples_by_class=[1] * _SOME_CLASSES)
    return ShardManifest(
        fingerprint="planned",
        made_from={},
        format="webdataset",
        seed=0,
        classes=classes,
        multi_label=not given and FIELDS.get(config.task.name, {}).get("label") == "classes",
        fields=fields,
        splits=dict.fromkeys(SPLITS, split),
        shards=Shards.of([]),
        rejected=[],
        mean=[0.5] * 3,
        std=[0.25] * 3,
        tokenizer=tokenizer,
    )


def _planned_tokenizer(section: TokenizerSection | None, field: str | None, *, online: bool) -> TokenizerEntry | None:
    """Return what stands for a tokenizer that is not with the shards yet: of as many tokens as are asked for or given.

    A file that cannot be read is the shard stage's check to tell.
    """
    if section is None or field is None:
        return None
    given = _read_tokenizer(section, online=online)
    return TokenizerEntry(
        name=TOKENIZER_NAME,
        bytes=0,
        crc32c=NO_CRC32C if given is None else given[2],
        field=field,
        tokens=section.vocabulary if given is None else given[0],
        padding=0 if given is None else given[1],
        trained=not section.file,
    )


def _read_tokenizer(section: TokenizerSection, *, online: bool) -> tuple[int, int, str] | None:
    """Return tokens, padding and crc32c of a given tokenizer; None: there is none, or it cannot be had here."""
    try:
        uri = tokenizer_uri(section.file) if section.file else ""
        if not uri or not (storage.is_local(uri) or online) or not has_module("tokenizers"):
            return None
        from tokenizers import Tokenizer

        content = storage.read_bytes(uri)
        tokenizer = Tokenizer.from_str(content.decode())
    except Exception:  # noqa: BLE001 - the library raises Exception itself, and a bucket what it likes
        return None
    padding = find_padding(content, tokenizer) or 0
    return count_tokens(tokenizer, padding), padding, storage.crc32c(content)


def check_network(config: RunConfig, task: Task, *, findings: Findings) -> nn.Module | None:
    """Build the network and run it on the task's example; return it, None where it cannot be had.

    Args:
        config: The configuration.
        task: Its task.
        findings: Gets what is wrong.
    """
    if ":" not in config.model.architecture and not config.task.is_own:
        try:
            with torch.device("meta"):
                model = build_model(task, config)
        except ModelError:
            pass
        else:
            # What is looked up by position fails on the CPU alone.
            if not task.signature.dimensions or _is_too_much_work(model, task):
                _check_largest(model, task, config, findings)
                return model
    # There is a mistake: the CPU tells which. Own code may keep tensors in a cache, which the meta device would spoil.
    try:
        with _memory_limited():
            model = build_model(task, config)
            _check_largest(model, task, config, findings)
            return model
    except MemoryError:
        _leave_large_network(findings)
    except ModelError as error:
        if isinstance(error.__cause__, MemoryError) or "allocate memory" in error.given:
            _leave_large_network(findings)
        elif "cuda" in error.given.lower() and not torch.cuda.is_available():
            findings.leave_unchecked("the network and its arguments", "it asks for a GPU, and there is none here")
        elif (
            is_own_network(config)
            and any(kind in CLASS_KINDS for kind in task.fields.values())
            and error.allowed.startswith("outputs")
        ):
            findings.leave_unchecked(
                f"the width of the last layer of {network_name(config)}",
                "the number of classes is not known before sharding",
            )
        else:
            with findings.refusals():
                raise
    except ConfigError:
        # Of its example.
        with findings.refusals():
            raise
    return None


def _is_too_much_work(model: nn.Module, task: Task) -> bool:
    inputs = resize_inputs(example_inputs(task, 1), task.signature, largest_sizes(task.signature))
    return sum(one.numel() for one in model.parameters()) * max(one.numel() for one in inputs) > MOST_WORK


def _check_largest(model: nn.Module, task: Task, config: RunConfig, findings: Findings) -> None:
    """Run the network on one sample with every dimension of the signature at its max."""
    if not (sizes := largest_sizes(task.signature)):
        return
    name, on_meta = network_name(config), any(one.is_meta for one in model.parameters())
    is_tried = not _is_too_much_work(model, task)
    if is_tried or on_meta:
        try:
            check_sizes(model, example_inputs(task, 2), task.signature, name=name, largest_only=True)
        except ModelError as error:
            if "allocate memory" not in error.given:
                with findings.refusals():
                    raise
                return
            is_tried = False
    if not is_tried:
        what = ", ".join(f"{one} {size}" for one, size in sizes.items())
        findings.leave_unchecked(
            f"whether {name} has a value for each position of {what}", "its work or memory is too much to be tried here"
        )


def check_task(task: Task, model: nn.Module, config: RunConfig) -> None:
    """Refuse an own task whose members do not fit each other, on its example batch and on made-up samples.

    Args:
        task: The task.
        model: Its network, not on the meta device.
        config: The configuration.

    Raises:
        ConfigError: A member returned something else than the interface says.
    """
    unit_of(task)
    batch = task.example(2)
    with torch.no_grad():
        with calling(config, "example"):
            outputs = model.eval()(*(batch[name] for name in task.signature.inputs))
        with calling(config, "loss"):
            checked_loss(task.loss(outputs, batch, Mode(training=True)), config)
            if task.signature.dimensions:
                _check_largest_example(task, model, config)
        SplitMetrics(task, torch.device("cpu"), partial(calling, config)).update(outputs, batch)
    for training in (True, False):
        _check_batch(task, config, training=training)


def _check_largest_example(task: Task, model: nn.Module, config: RunConfig) -> None:
    """Have the task compute the loss of what the profiling run tries memory with."""
    if _is_too_much_work(model, task):
        return
    with calling(config, "largest_example"):
        batch = largest_example(task, 2)
        inputs = [batch[name] for name in task.signature.inputs]
    wanted = resize_inputs(example_inputs(task, 2), task.signature, largest_sizes(task.signature))
    for name, found, like in zip(task.signature.inputs, inputs, wanted, strict=True):
        if found.shape != like.shape:
            raise task_error(
                config,
                "largest_example",
                f"returned {name} {list(found.shape)}",
                allowed=f"{list(like.shape)}: every dimension of the signature at max",
            )
    try:
        outputs = model(*inputs)
    except Exception:  # noqa: BLE001 - whatever it is: check_network has told it
        return
    allowed = "a batch whose loss can be computed: all of it as long as the inputs"
    with calling(config, "largest_example", allowed=allowed):
        checked_loss(task.loss(outputs, batch, Mode(training=True)), config)


def _check_batch(task: Task, config: RunConfig, *, training: bool) -> None:
    """Have the task make a batch of made-up samples."""
    keys = [(0, 0), (0, 1), (0,)] if training else [()] * 3
    *of_samples, of_slot = [Mode(training=training, key=key) for key in keys]
    try:
        prepared = [task.prepare(_made_up(task), mode) for mode in of_samples]
    except Exception:  # noqa: BLE001 - the user's code may rightly take no such sample
        return
    collated = collate(task, prepared, of_slot)
    count_units(task, collated)
    with calling(config, "to_model"):
        found = task.to_model(collated, Mode(training=training))
    if not training:
        checked_batch(found)
    # A made-up image may have another size than those of the shards.
    if misfit := find_misfit(found, task, shapes=False):
        raise misfit_error(config, misfit)


def _made_up(task: Task) -> Sample:
    """Return a sample of the task's fields: a small grey image, and zeros."""
    picture = io.BytesIO()
    Image.new("RGB", (64, 64)).save(picture, "PNG")
    values: dict[str, object] = {"image": picture.getvalue(), "text": "text", "class": 0, "classes": (0,)}
    values |= {"number": 0.0, "bytes": b"", "json": {}}
    return {name: values[kind] for name, kind in task.fields.items()}


def _leave_large_network(findings: Findings) -> None:
    findings.leave_unchecked(
        "the network and its arguments",
        f"it cannot be built on the meta device, and takes more than {MEMORY_BYTES >> 30} GiB",
    )


@contextmanager
def _memory_limited() -> Iterator[None]:
    """Let this process allocate at most `MEMORY_BYTES` more than it has (on Linux; elsewhere any amount)."""
    status = Path("/proc/self/status")
    if not status.exists():
        yield
        return
    used = next(int(line.split()[1]) << 10 for line in status.read_text().splitlines() if line.startswith("VmData:"))
    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    limit = used + MEMORY_BYTES
    resource.setrlimit(resource.RLIMIT_DATA, (limit if hard == resource.RLIM_INFINITY else min(limit, hard), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))


def check_patterns(model: nn.Module, config: RunConfig) -> None:
    """Refuse patterns of names that match nothing, and what cannot learn in parts.

    Raises:
        ConfigError: Of model.freeze or train.learning_rates.
    """
    frozen = find_frozen(model, config.model.freeze)
    # On a copy of what asks for a gradient: the network is looked at further.
    learns = [name for name, parameter in model.named_parameters() if parameter.requires_grad]
    require_some_learns([name for name in learns if name not in frozen.parameters], config.model.freeze)
    rate_factors(model, config.train)


def check_weights(
    model: nn.Module | None, config: RunConfig, task: Task | None, findings: Findings, *, online: bool
) -> None:
    """Look at `model.weights` without reading tensors.

    Args:
        model: The network, on any device; None: it could not be built.
        config: The configuration.
        task: Its task; None: it could not be made.
        findings: Gets what is wrong.
        online: Whether a bucket may be asked.
    """
    weights = config.model.weights
    if weights in ("", PREVIOUS):
        return
    with findings.refusals():
        uri = storage.normalise(weights)
        if not storage.is_local(uri) and not online:
            findings.leave_unchecked(f"model.weights {weights}", "no bucket is asked offline")
            return
        # Refuses what is no weights.
        find_source(uri)
        if model is None or task is None:
            findings.leave_unchecked(f"whether model.weights {weights} fits", "the network could not be built")
            return
        section = config.sharding.tokenizer
        if section is not None and "text" in task.fields.values() and _read_tokenizer(section, online=online) is None:
            findings.leave_unchecked(
                f"whether model.weights {weights} fits", "the tokenizer's size is not known before sharding"
            )
            return
        with _memory_limited():
            unread = check_fit(uri, model, find_head(task), MIN_MATCHED_FRACTION, partial(check_inputs, task))
        if unread:
            findings.leave_unchecked(unread, "that takes as long as the file is large")
