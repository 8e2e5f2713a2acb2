"""What one rank trains on and evaluates: from shards to slots, in the order that training began with."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

from contracts.artifacts import CheckpointManifest, SampleOrder, ShardManifest
from contracts.config import RunConfig
from contracts.errors import ConfigError, ModelError
from trainer.data.evaluation import EvaluationLoader
from trainer.data.loader import SlotBatch, SlotDataset, make_loader, read_slots
from trainer.data.order.cursor import SlotRequest, slot_requests, step_of, steps_per_epoch
from trainer.data.order.resolve import Order, make_order, resolve_order
from trainer.data.prefetch import Prefetcher
from trainer.data.reader import ShardReader
from trainer.evaluate import EVALUATION_BATCH, SplitPart
from trainer.launch import Assignment
from trainer.launch.auto import BatchLayout
from trainer.model.precision import Numerics
from trainer.parallel import runs_in_lockstep
from trainer.parallel.process_group import Rank
from trainer.tasks.load import calling, load_task
from trainer.tasks.optional import check_device, warnings_of
from trainer.tasks.protocol import Sample


class TrainingData:
    """The samples of a rank.

    Attributes:
        manifest: The shards' manifest.
        task: The task, made for them.
        warnings: What the task says that it cannot learn from.
    """

    def __init__(self, assignment: Assignment, config: RunConfig, rank: Rank, log: Callable[[str], None]) -> None:
        self.manifest = ShardManifest.load(assignment.shards)
        self._shards, self._config, self._rank, self._log = assignment.shards, config, rank, log
        self.task = load_task(config, self.manifest, assignment.shards)
        with calling(config, "check_device"):
            check_device(self.task, rank.device)
        self.dataset = SlotDataset(
            ShardReader(assignment.shards, self.manifest, "train", config.data, tuple(self.task.fields)),
            self.task,
            config.run.seed,
            replace_bad=config.data.on_bad_sample == "replace",
        )
        self.dataset.reader.shows_rows = self._shows_rows = config.inspect.samples == "show"
        self._order: Order | None = None
        self._layout: BatchLayout | None = None
        self._evaluations: dict[str, EvaluationLoader] = {}
        with calling(config, "warnings"):
            self.warnings = [str(warning) for warning in warnings_of(self.task)]
        for warning in self.warnings:
            log(f"warning: {warning}")

    @property
    def samples(self) -> int:
        """Samples of an epoch."""
        return len(self.dataset.reader)

    @property
    def total_steps(self) -> int:
        """Optimizer steps of the whole training."""
        steps = self._config.train.epochs * self.steps_per_epoch
        return steps if self._config.train.max_steps is None else min(steps, self._config.train.max_steps)

    @property
    def steps_per_epoch(self) -> int:
        """Optimizer steps of an epoch."""
        return steps_per_epoch(self.samples, self._config.train.global_batch_size)

    def step_of(self, position: int) -> int:
        """Return the optimizer steps taken at a global sample position."""
        return step_of(position, num_samples=self.samples, global_batch_size=self._config.train.global_batch_size)

    def choose_order(self, layout: BatchLayout, checkpoint: CheckpointManifest | None) -> SampleOrder:
        """Decide the order of samples, and let the reader know what this rank will need; return what to record.

        Args:
            layout: How the global batch is cut.
            checkpoint: What training resumes from.
        """
        choice = resolve_order(self._config.data, self._shards, checkpoint)
        self._log(choice.reason)
        order = make_order(choice.order, self.manifest, seed=self._config.run.seed)
        if warning := self.dataset.reader.set_order(order):
            self._log(f"warning: {warning}")
        self._order, self._layout = order, layout
        return choice.order

    def prefetcher(self, position: int) -> Prefetcher:
        """Return what reads ahead of training from a position on; to be stopped by the caller."""
        assert self._order is not None
        return self.dataset.reader.prefetcher(self._order, position, epochs=self._config.train.epochs)

    def slots(self, position: int, ahead: Prefetcher) -> Iterator[SlotBatch]:
        """Yield this rank's slots from a global sample position to the end of training."""
        assert self._layout is not None
        loader = make_loader(
            self.dataset,
            ahead.start_with(self._requests(position)),
            num_workers=self._layout.num_workers,
            prefetch_factor=self._layout.prefetch_factor,
            pin_memory=self._rank.device.type == "cuda",
        )
        return read_slots(loader)

    def _requests(self, position: int) -> Iterator[SlotRequest]:
        assert self._order is not None and self._layout is not None
        return slot_requests(
            position,
            order=self._order,
            epochs=self._config.train.epochs,
            global_batch_size=self._config.train.global_batch_size,
            slot_size=self._layout.slot_size,
            rank=self._rank.rank,
            ranks=self._rank.ranks,
            lockstep=runs_in_lockstep(self._config.parallel),
        )

    def evaluation(self, split: str, numerics: Numerics) -> SplitPart:
        """Return this rank's part of a split, each sample once over all ranks."""
        rank, ranks, batch_size = self._rank.rank, self._rank.ranks, self._evaluation_batch(numerics)
        if split not in self._evaluations:
            fields = tuple(self.task.fields)
            reader = ShardReader(self._shards, self.manifest, split, self._config.data, fields)
            reader.shows_rows = self._shows_rows
            self._evaluations[split] = EvaluationLoader(
                reader,
                self.task,
                batch_size,
                rank=rank,
                ranks=ranks,
                num_workers=0 if self._layout is None else self._layout.num_workers,
                device=self._rank.device,
                memory_format=numerics.memory_format,
                keeps_processes=True,
                calling=partial(calling, self._config),
            )
        batches = self._evaluations[split].batches()
        return SplitPart(batches, self.manifest.splits[split].samples, rank, ranks, batch_size)

    def _evaluation_batch(self, numerics: Numerics) -> int:
        """Return the samples that a rank evaluates at once; the same at any number of ranks.

        On a GPU twice a slot: activations that training keeps for its backward pass are let go, so it fits where a slot
        does. Where training keeps few of them, or is compiled, one slot. On a CPU a larger batch gains nothing.
        """
        if self._rank.device.type != "cuda" or self._layout is None:
            return EVALUATION_BATCH
        keeps_few = numerics.compile or numerics.activation_checkpointing != "none"
        return self._layout.slot_size * (1 if keeps_few else 2)

    @contextmanager
    def naming_samples(self, request: SlotRequest) -> Iterator[None]:
        """Name the samples of a slot in an error about own code that is run on it inside.

        Raises:
            ConfigError, ModelError: It failed.
        """
        try:
            yield
        except (ConfigError, ModelError) as error:
            samples = self.dataset.reader.describe_some(request.samples)
            raise type(error)(f"{error.given}; samples: {samples}", allowed=error.allowed, todo=error.todo) from error

    def samples_at(self, split: str, places: list[int]) -> list[Sample]:
        """Return the fields of samples by their places in a split."""
        fields = tuple(self.task.fields)
        reader = ShardReader(self._shards, self.manifest, split, self._config.data, fields, scattered=True)
        reader.prepare(places)
        return [reader.sample(place) for place in places]

    def origins(self, split: str, places: list[int]) -> list[tuple[str, str]]:
        """Return shard (its path, seen from the shards' folder) and key of samples by their places in a split."""
        reader = ShardReader(self._shards, self.manifest, split, self._config.data)
        origins = (reader.origin_of(place) for place in places)
        return [(self.manifest.shards[shard].relative_path, key) for shard, key in origins]
