"""The training of one rank, top to bottom: set up, restore, step by step, evaluate, save, finish."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass, replace

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from contracts import storage
from contracts.artifacts import MANIFEST_NAME, CheckpointManifest, FileEntry, ProfileReport, SampleOrder, ShardManifest
from contracts.config import RunConfig
from contracts.errors import ConfigError, DataError
from contracts.events import EventLog
from contracts.process import imports_done
from trainer.checkpoint.manager import MODEL_FILE, CheckpointManager, load_model_state, load_optimizer_state
from trainer.cursor import SlotRequest, describe_sharing, slot_requests, step_of, steps_per_epoch, stream_readers
from trainer.cut import Cut, choose_cut, has_single_sample_slot
from trainer.data.cache_folder import CacheFolder
from trainer.data.loader import SlotBatch, SlotDataset, evaluation_batches, make_loader, read_slots
from trainer.data.plan import check_working_set
from trainer.data.prefetch import Prefetcher
from trainer.data.prepare import check_device, prepare
from trainer.data.reader import ShardReader
from trainer.data.report import DataReport
from trainer.data.transforms import EvaluationTransform, make_transforms
from trainer.distributed import Rank, share_buffers, sum_over_ranks
from trainer.launch import Assignment
from trainer.metrics import EVALUATION_BATCH, Evaluation, Scalars, evaluate
from trainer.model import build_model, find_single_sample_fault, find_unused, parameters_sha256
from trainer.optim import learning_rate, load_named_state, make_optimizer, named_state, set_learning_rate
from trainer.order import Order, make_order, resolve_order
from trainer.parallel import distribute, settle_buckets
from trainer.permutation import mix

# Optimizer steps between two looks at the loss: each costs a reduction and waits for the device.
LOG_EVERY_STEPS = 20


@dataclass(frozen=True)
class Progress:
    """How far training is, and its best so far: with the tensors, everything that a resume needs."""

    position: int = 0
    metrics: dict[str, float] | None = None
    best_step: int = 0
    best: Evaluation | None = None

    def with_evaluation(self, found: Evaluation, step: int) -> Progress:
        """Take in an evaluation: higher accuracy is better, at equal accuracy the lower loss."""
        metrics = {"validation_accuracy": found.accuracy, "validation_loss": found.loss}
        if self.best is None or (found.accuracy, -found.loss) > (self.best.accuracy, -self.best.loss):
            return replace(self, metrics=metrics, best=found, best_step=step)
        return replace(self, metrics=metrics)


class Training:
    """One rank's training: its model, optimizer, data and checkpoints."""

    def __init__(self, assignment: Assignment, rank: Rank, events: EventLog) -> None:
        self.assignment, self.rank, self.events = assignment, rank, events
        self.config = RunConfig.model_validate(assignment.config)
        self.manifest = ShardManifest.load(assignment.shards)
        _fix_numerics(assignment.threads, rank.device)
        train_transform, self.transform = make_transforms(self.config.data, self.manifest)
        check_device(train_transform, rank.device)
        self.cache = None if storage.is_local(assignment.shards) else CacheFolder(self.config.data, assignment.attempt)
        self.dataset = SlotDataset(
            ShardReader(assignment.shards, self.manifest, "train", self.config.data, self.cache),
            train_transform,
            self.config.run.seed,
            replace_bad=self.config.data.on_bad_sample == "replace",
        )
        if train_transform.augmentation.on_gpu and not train_transform.augmentation.is_on:
            self.log("warning: data.augment_device=gpu has no effect: neither RandAugment nor colour jitter is on")
        batch = self.config.train.global_batch_size
        if batch > (samples := len(self.dataset.reader)):
            self.log(
                f"warning: train.global_batch_size {batch} is more than the training split's {samples} samples: each "
                f"step takes {samples}"
            )
        self.total_steps = self.config.train.epochs * steps_per_epoch(len(self.dataset.reader), batch)
        self.checkpoints = CheckpointManager(
            assignment.folder, attempt=assignment.attempt, keep_last=self.config.checkpoint.keep_last
        )
        # Every rank builds the same weights; DDP broadcasts the first rank's all the same.
        torch.manual_seed(self.config.run.seed)
        size = self.config.data.image_size
        model = build_model(self.config.model, num_classes=len(self.manifest.classes), image_size=size).to(rank.device)
        self._freeze_unused(model)
        self.model = distribute(model, rank)
        self.optimizer = make_optimizer(self.model.module, self.config.train)
        resume_from = self._agree_on_checkpoint()
        self.cut = self._decide_cut(resume_from)
        self._check_slots_of_one()
        self.order_record, self.order = self._decide_order(resume_from)
        settle_buckets(self.model, torch.zeros(self.cut.slot_size, 3, size, size, device=rank.device))
        self.progress = Progress() if resume_from is None else self._restore(*resume_from)
        self.scalars = Scalars(
            storage.local_path(assignment.folder) / "tensorboard" if rank.is_first else None, first_step=self.step
        )
        self._loss_sum = torch.zeros((), device=rank.device)
        self._loss_samples = 0
        self.data_report = DataReport(rank.device, events, replace_bad=self.dataset.replace_bad)

    @property
    def step(self) -> int:
        """Optimizer steps taken."""
        return step_of(
            self.progress.position,
            num_samples=len(self.dataset.reader),
            global_batch_size=self.config.train.global_batch_size,
        )

    @property
    def epoch(self) -> int:
        """Epochs completed."""
        return self.progress.position // len(self.dataset.reader)

    def log(self, message: str) -> None:
        """Say something once, not once per rank."""
        if self.rank.is_first:
            self.events.emit("log", message=message)

    def _say(self, message: str) -> None:
        if self.rank.is_first:
            self.events.emit("progress", done=self.step, total=self.total_steps, unit="steps", message=message)

    # --- set-up and restore -------------------------------------------------------------------------------------------

    def _freeze_unused(self, model: nn.Module) -> None:
        """Freeze the parameters that the logits do not depend on: DDP would wait for their gradients."""
        size = self.config.data.image_size
        unused = find_unused(model, torch.zeros(2, 3, size, size, device=self.rank.device))
        for name in unused:
            model.get_parameter(name).requires_grad_(False)
        if unused:
            self.log(f"frozen, since the logits do not depend on them: {', '.join(unused)}")

    def _agree_on_checkpoint(self) -> tuple[str, CheckpointManifest] | None:
        """Let the first rank find the newest valid checkpoint, and tell the others."""
        answer: list[str | None] = [None]
        if self.rank.is_first:
            found = self.checkpoints.newest_valid()
            if found is not None:
                for skipped in found[2]:
                    self.log(f"skipped checkpoint {skipped}")
                answer[0] = found[0]
        dist.broadcast_object_list(answer, src=0)
        return None if answer[0] is None else (answer[0], CheckpointManifest.load(answer[0]))

    def _decide_cut(self, resume_from: tuple[str, CheckpointManifest] | None) -> Cut:
        profile = ProfileReport.load(self.assignment.profile) if self.assignment.profile else None
        recorded = resume_from[1].slot_size if resume_from else None
        cut = choose_cut(self.config, ranks=self.rank.ranks, profile=profile, recorded=recorded)
        self.log(f"{cut.reason}; {self.rank.ranks} ranks, {self.assignment.threads} threads each")
        return cut

    def _decide_order(self, resume_from: tuple[str, CheckpointManifest] | None) -> tuple[SampleOrder, Order]:
        shards, batch = self.assignment.shards, self.config.train.global_batch_size
        choice = resolve_order(self.config.data, shards, self.manifest, resume_from[1] if resume_from else None)
        check_working_set(self.config.data, shards, self.manifest, choice.order)
        order = make_order(choice.order, shards, self.manifest, seed=self.config.run.seed)
        self.log(choice.reason)
        ranks = self.rank.ranks
        readers = stream_readers(order, global_batch_size=batch, slot_size=self.cut.slot_size, ranks=ranks)
        if readers is not None and not storage.is_local(shards) and (sharing := describe_sharing(readers)):
            self.log(sharing)
        self.dataset.reader.follow(
            order,
            global_batch_size=batch,
            streams=None if readers is None else readers[self.rank.rank],
            readers=ranks * max(1, self.cut.num_workers),
        )
        return choice.order, order

    def _check_slots_of_one(self) -> None:
        """Refuse slots of one sample where the model cannot train on them; say so where they are only noisy."""
        batch, size = self.config.train.global_batch_size, self.config.data.image_size
        samples, slot_size = len(self.dataset.reader), self.cut.slot_size
        if not has_single_sample_slot(samples, global_batch_size=batch, slot_size=slot_size):
            return
        given = (
            f"{samples} training samples in batches of {batch} (train.global_batch_size) and slots of {slot_size} "
            "(parallel.slot_size) leave a slot of one sample"
        )
        todo = "choose train.global_batch_size and parallel.slot_size so that no slot has a single sample"
        fault = find_single_sample_fault(self.model.module, torch.zeros(1, 3, size, size, device=self.rank.device))
        if fault is not None:
            raise ConfigError(
                f"{given}, on which {self.config.model.architecture} cannot train: {fault}",
                allowed="slots of two samples or more for this model",
                todo=todo,
            )
        if any(isinstance(module, _BatchNorm) for module in self.model.module.modules()):
            self.log(f"warning: {given}, and BatchNorm's statistics of one sample are noisy: {todo}")

    def _restore(self, uri: str, manifest: CheckpointManifest) -> Progress:
        self.model.module.load_state_dict(load_model_state(uri, manifest))
        load_named_state(self.model.module, self.optimizer, load_optimizer_state(uri, manifest))
        self.log(f"continues from {storage.display(uri)} at step {manifest.step}")
        different = [
            f"{name} {manifest.environment.get(name)} -> {value}"
            for name, value in self._environment().items()
            if manifest.environment.get(name) != value and name != "num_workers"
        ]
        if different:
            self.log("not bit-identical to an undisturbed run, the environment differs: " + ", ".join(different))
        accuracy, loss = manifest.best_validation_accuracy, manifest.best_validation_loss
        best = None if accuracy is None or loss is None else Evaluation(0, accuracy, loss)
        return Progress(manifest.position, manifest.metrics, manifest.best_step, best)

    def _environment(self) -> dict[str, str]:
        return {
            "ranks": str(self.rank.ranks),
            "threads_per_rank": str(torch.get_num_threads()),
            "num_workers": str(self.cut.num_workers),
            "device": self.rank.device.type,
            "cpu_capability": torch.backends.cpu.get_cpu_capability(),
            "torch": str(torch.__version__),
        }

    # --- the loop -----------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Take all steps that remain."""
        ahead = self.dataset.reader.prefetcher(
            self.progress.position,
            epochs=self.config.train.epochs,
            ranks=self.rank.ranks,
            requests=self._requests(),
        )
        try:
            self._take_steps(ahead)
        finally:
            ahead.stop()
        self.scalars.close()

    def _take_steps(self, ahead: Prefetcher) -> None:
        loader = make_loader(
            self.dataset,
            ahead.following(self._requests()),
            num_workers=self.cut.num_workers,
            prefetch_factor=self.config.data.prefetch_factor,
            pin_memory=self.rank.device.type == "cuda",
        )
        self.model.train()  # type: ignore[no-untyped-call]
        for slot in self.data_report.clock.slots(read_slots(loader)):
            self.data_report.count(slot)
            self._loss_sum += self._compute(slot)
            if not slot.request.last_of_step:
                continue
            rate = learning_rate(self.step, total_steps=self.total_steps, train=self.config.train)
            set_learning_rate(self.optimizer, rate)
            self.optimizer.step()
            self.optimizer.zero_grad(set_to_none=True)
            self.progress = replace(self.progress, position=self.progress.position + slot.request.batch_samples)
            ahead.advance(self.progress.position)
            self._loss_samples += slot.request.batch_samples
            if self.step % LOG_EVERY_STEPS == 0 or self._epoch_is_over():
                self._report(rate)
            if self._epoch_is_over():
                self._evaluate_epoch()
                self._save()
            elif self.config.checkpoint.every_steps and self.step % self.config.checkpoint.every_steps == 0:
                self._save()
            self.data_report.clock.restart()

    def _requests(self) -> Iterator[SlotRequest]:
        return slot_requests(
            self.progress.position,
            order=self.order,
            epochs=self.config.train.epochs,
            global_batch_size=self.config.train.global_batch_size,
            slot_size=self.cut.slot_size,
            rank=self.rank.rank,
            ranks=self.rank.ranks,
        )

    def _compute(self, slot: SlotBatch) -> torch.Tensor:
        """Run one slot forward and backward; return its part of the loss, summed over samples."""
        request = slot.request
        given = prepare(slot, self.dataset.transform, self.rank.device, self.data_report.clock)
        # Dropout draws from torch's global generator: its stream is that of the slot, whoever computes it.
        torch.manual_seed(mix(self.config.run.seed, request.step, request.slot))
        weight = 1.0 if request.counts else 0.0
        with nullcontext() if request.last_of_step else self.model.no_sync():
            loss = given.loss_sum(self.model(given.images)) * weight
            # DDP divides by the number of ranks; the true mean divides by the samples of the global batch.
            (loss * (self.rank.ranks / request.batch_samples)).backward()  # type: ignore[no-untyped-call]
        return loss.detach()

    def _epoch_is_over(self) -> bool:
        return self.progress.position % len(self.dataset.reader) == 0

    def _report(self, rate: float) -> None:
        """Show the mean loss since the last report, over all ranks."""
        loss = float(sum_over_ranks(self._loss_sum)) / self._loss_samples
        self._require_finite("loss", loss)
        self._loss_sum.zero_()
        self._loss_samples = 0
        values, said = self.data_report.take()
        self.scalars.add(self.step, {"train/loss": loss, "train/learning_rate": rate, **values})
        self._say(f"loss {loss:.4f}, {said}")

    def _require_finite(self, name: str, value: float) -> None:
        """Refuse a loss from which nothing can be learnt; it is the same on all ranks, so all end here."""
        if not math.isfinite(value):
            raise ConfigError(
                f"{name} became {value} at step {self.step} (train.learning_rate = {self.config.train.learning_rate})",
                allowed="a finite loss",
                todo="lower train.learning_rate, or look at the data",
            )

    def _evaluate_epoch(self) -> None:
        share_buffers(self.model.module)
        found = self._evaluate("validation")
        if found is None:
            # Without a validation split the newest is the best.
            self.progress = replace(self.progress, metrics={}, best_step=self.step)
            return
        self._require_finite("validation loss", found.loss)
        self.progress = self.progress.with_evaluation(found, self.step)
        self.scalars.add(self.step, {"validation/accuracy": found.accuracy, "validation/loss": found.loss})
        self._say(f"epoch {self.epoch} of {self.config.train.epochs} done, validation accuracy {found.accuracy:.4f}")

    def _evaluate(self, split: str) -> Evaluation | None:
        batches = evaluation_batches(
            self.assignment.shards,
            self.manifest,
            split,
            self.transform,
            EVALUATION_BATCH,
            rank=self.rank.rank,
            ranks=self.rank.ranks,
            data=self.config.data,
            folder=self.cache,
        )
        return evaluate(self.model.module, batches, self.rank.device)

    # --- checkpoints --------------------------------------------------------------------------------------------------

    def _save(self) -> None:
        """Save parameters, buffers, optimizer and position; the first rank writes, nobody waits for it."""
        share_buffers(self.model.module)
        if self.rank.is_first:
            state = self.model.module.state_dict()
            self.checkpoints.save(self._describe(state), state, named_state(self.model.module, self.optimizer))

    def _describe(self, state: dict[str, torch.Tensor]) -> CheckpointManifest:
        best = self.progress.best
        return CheckpointManifest(
            fingerprint=self.assignment.fingerprint,
            made_from=self.assignment.made_from,
            step=self.step,
            position=self.progress.position,
            epoch=self.epoch,
            slot_size=self.cut.slot_size,
            order=self.order_record,
            model=self.config.model.model_dump(mode="json"),
            classes=self.manifest.classes,
            data=_transform_document(self.transform),
            shards_fingerprint=self.manifest.fingerprint,
            metrics=self.progress.metrics or {},
            best_step=self.progress.best_step,
            best_validation_accuracy=best.accuracy if best else None,
            best_validation_loss=best.loss if best else None,
            parameters_sha256=parameters_sha256(state),
            environment=self._environment(),
            files=[],
        )

    def finish(self) -> None:
        """Measure the best checkpoint on the test split and publish the document that ends training."""
        dist.barrier()
        found = self.checkpoints.find(self.progress.best_step)
        if found is None:
            raise DataError(
                f"the best checkpoint (step {self.progress.best_step}) is gone or damaged",
                allowed="the checkpoints as training left them",
                todo="train again with --fresh",
            )
        uri, best = found
        self.model.module.load_state_dict(load_model_state(uri, best))
        test = self._evaluate("test")
        if not self.rank.is_first:
            return
        metrics = dict(best.metrics)
        if test is not None:
            self._require_finite("test loss", test.loss)
            metrics |= {"test_accuracy": test.accuracy, "test_loss": test.loss, "test_samples": float(test.samples)}
        folder = uri.removeprefix(self.assignment.folder + "/")
        weights = next(entry for entry in best.files if entry.name == MODEL_FILE)
        document = best.model_copy(
            update={
                "finished": True,
                "metrics": metrics,
                "files": [FileEntry(name=f"{folder}/{weights.name}", bytes=weights.bytes, crc32c=weights.crc32c)],
            }
        )
        storage.publish(storage.join(self.assignment.folder, MANIFEST_NAME), document.to_json())


def train(assignment: Assignment, rank: Rank, events: EventLog) -> None:
    """Train as one rank, from the newest valid checkpoint to the end."""
    training = Training(assignment, rank, events)
    if rank.is_first:
        imports_done()
        events.emit("ready")
    training.run()
    training.finish()


def _fix_numerics(threads: int, device: torch.device) -> None:
    """Set what decides the bits of a step besides the data."""
    torch.set_num_threads(threads)
    if device.type == "cpu":
        torch.use_deterministic_algorithms(True)


def _transform_document(transform: EvaluationTransform) -> dict[str, object]:
    return {"image_size": transform.image_size, "mean": list(transform.mean), "std": list(transform.std)}
