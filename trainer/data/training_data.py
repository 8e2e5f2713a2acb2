"""Training and evaluation data of one rank, from shards to slots."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

from contracts.artifacts import CheckpointManifest, SampleOrder, ShardManifest
from contracts.config import RunConfig
from contracts.errors import ConfigError, ModelError
from trainer.data.cursor import SlotRequest, slot_requests, step_of, steps_per_epoch
from trainer.data.evaluation import EvaluationLoader
from trainer.data.loader import SlotBatch, SlotDataset, make_loader, read_slots
from trainer.data.order import Order, make_order, resolve_order
from trainer.data.reader import ShardReader
from trainer.data.shard_cache import Prefetcher
from trainer.evaluate import EVALUATION_BATCH
from trainer.launch import Assignment
from trainer.launch.choices import BatchLayout
from trainer.model.numerics import Numerics
from trainer.parallel.process_group import Rank
from trainer.parallel.spread import runs_in_lockstep
from trainer.tasks.loading import calling, load_task


class TrainingData:
    """Data and task of one rank; `samples` are per epoch, `total_steps` for the whole training."""

    def __init__(self, assignment: Assignment, config: RunConfig, rank: Rank, log: Callable[[str], None]) -> None:
        self.manifest = ShardManifest.load(assignment.shards)
        self._shards, self._config, self._rank, self._log = assignment.shards, config, rank, log
        self.task = load_task(config, self.manifest, assignment.shards)
        replace_bad = config.data.on_bad_sample == "replace"
        self.dataset = SlotDataset(self._reader("train"), self.task, config.run.seed, replace_bad=replace_bad)
        train, self.samples = config.train, len(self.dataset.reader)
        self.steps_per_epoch = steps_per_epoch(self.samples, train.global_batch_size)
        steps = train.epochs * self.steps_per_epoch
        self.total_steps = steps if train.max_steps is None else min(steps, train.max_steps)
        self._order: Order | None = None
        self._layout: BatchLayout | None = None
        self._evaluations: dict[str, EvaluationLoader] = {}

    def _reader(self, split: str) -> ShardReader:
        reader = ShardReader(self._shards, self.manifest, split, self._config.data, tuple(self.task.fields))
        reader.shows_rows = self._config.inspect.samples == "show"
        return reader

    def step_of(self, position: int) -> int:
        """Return the optimizer step at a global sample position."""
        return step_of(position, num_samples=self.samples, global_batch_size=self._config.train.global_batch_size)

    def choose_order(self, layout: BatchLayout, checkpoint: CheckpointManifest | None) -> SampleOrder:
        """Choose the sample order, and return its checkpoint record."""
        choice = resolve_order(self._config.data, self._shards, checkpoint)
        self._log(choice.reason)
        self._order, self._layout = make_order(choice.order, self.manifest, seed=self._config.run.seed), layout
        if warning := self.dataset.reader.set_order(self._order):
            self._log(f"warning: {warning}")
        return choice.order

    def prefetcher(self, position: int) -> Prefetcher:
        """Return the shard prefetcher from a position on; the caller closes it."""
        assert self._order is not None
        return self.dataset.reader.prefetcher(self._order, position, epochs=self._config.train.epochs)

    def slots(self, position: int, ahead: Prefetcher) -> Iterator[SlotBatch]:
        """Return this rank's slots from a global sample position to the end of training."""
        assert self._order is not None and self._layout is not None
        requests = slot_requests(
            position,
            order=self._order,
            epochs=self._config.train.epochs,
            global_batch_size=self._config.train.global_batch_size,
            slot_size=self._layout.slot_size,
            rank=self._rank.rank,
            ranks=self._rank.ranks,
            lockstep=runs_in_lockstep(self._config.parallel),
        )
        loader = make_loader(
            self.dataset,
            ahead.start_with(requests),
            num_workers=self._layout.num_workers,
            prefetch_factor=self._layout.prefetch_factor,
            pin_memory=self._rank.device.type == "cuda",
        )
        return read_slots(loader)

    def evaluation(self, split: str, numerics: Numerics) -> EvaluationLoader:
        """Return the loader of this rank's part of a split."""
        if split not in self._evaluations:
            self._evaluations[split] = EvaluationLoader(
                self._reader(split),
                self.task,
                self._evaluation_batch(numerics),
                rank=self._rank.rank,
                ranks=self._rank.ranks,
                num_workers=0 if self._layout is None else self._layout.num_workers,
                device=self._rank.device,
                memory_format=numerics.memory_format,
                calling=partial(calling, self._config),
                # Outcomes of test samples are written to a file.
                origins=split == "test",
            )
        return self._evaluations[split]

    def _evaluation_batch(self, numerics: Numerics) -> int:
        """Return the evaluation batch size, independent of the number of ranks.

        On a GPU it is two slots, since no activations are kept. It is one slot with compilation or activation
        checkpointing.
        """
        if self._rank.device.type != "cuda" or self._layout is None:
            return EVALUATION_BATCH
        few_activations = numerics.compile or numerics.activation_checkpointing != "none"
        return self._layout.slot_size * (1 if few_activations else 2)

    @contextmanager
    def naming_samples(self, request: SlotRequest) -> Iterator[None]:
        """Add the samples of a slot to errors of user code in the block."""
        try:
            yield
        except (ConfigError, ModelError) as error:
            samples = self.dataset.reader.describe_some(request.samples)
            raise type(error)(f"{error.given}; samples: {samples}", allowed=error.allowed, todo=error.todo) from error
