"""The training of one rank, top to bottom: set up, restore, step by step, evaluate, save, finish."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
import torch.distributed as dist

from contracts import storage
from contracts.artifacts import MANIFEST_NAME, CheckpointManifest, FileEntry, ProfileReport
from contracts.config import RunConfig
from contracts.errors import ConfigError, DataError
from contracts.events import EventLog
from contracts.process import imports_done
from trainer.checkpoint.manager import MODEL_FILE, CheckpointManager, load_model_state, load_optimizer_state
from trainer.cut import Cut, choose_cut
from trainer.data.prefetch import Prefetcher
from trainer.data.report import DataReport
from trainer.data.transforms import EvaluationTransform
from trainer.distributed import Rank, limit_collectives, share_buffers, sum_over_ranks
from trainer.feed import Feed
from trainer.launch import Assignment
from trainer.metrics import Evaluation, Scalars, evaluate
from trainer.model import parameters_sha256
from trainer.phases import reached
from trainer.step import Stepper
from trainer.trace import Trace

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
    """One rank's training: its data, its network and its checkpoints."""

    def __init__(self, assignment: Assignment, rank: Rank, events: EventLog) -> None:
        self.assignment, self.rank, self.events = assignment, rank, events
        self.config = RunConfig.model_validate(assignment.config)
        _fix_numerics(assignment.threads, rank.device)
        self.feed = Feed(assignment, self.config, rank, self.log)
        self.total_steps = self.feed.total_steps
        self.checkpoints = CheckpointManager(
            assignment.folder, attempt=assignment.attempt, keep_last=self.config.checkpoint.keep_last
        )
        self.stepper = Stepper(self.config, len(self.feed.manifest.classes), rank, self.log)
        uri, checkpoint = self._agree_on_checkpoint()
        self.cut = self._decide_cut(checkpoint)
        self.stepper.check_slots_of_one(self.feed.samples, self.cut.slot_size)
        self.order = self.feed.follow(self.cut, checkpoint)
        self.stepper.settle(self.cut.slot_size)
        self.progress = Progress() if checkpoint is None else self._restore(uri, checkpoint)
        self.scalars = Scalars(assignment.tensorboard_folder if rank.is_first else None, first_step=self.step)
        self.trace = Trace(rank.rank, assignment.attempt)
        self._loss_sum = torch.zeros((), device=rank.device)
        self._loss_samples = 0
        self.data_report = DataReport(rank.device, events, replace_bad=self.feed.dataset.replace_bad)

    @property
    def step(self) -> int:
        """Optimizer steps taken."""
        return self.feed.step_of(self.progress.position)

    @property
    def epoch(self) -> int:
        """Epochs completed."""
        return self.progress.position // self.feed.samples

    def log(self, message: str) -> None:
        """Say something once, not once per rank."""
        if self.rank.is_first:
            self.events.emit("log", message=message)

    def _say(self, message: str) -> None:
        if self.rank.is_first:
            self.events.emit("progress", done=self.step, total=self.total_steps, unit="steps", message=message)

    # --- set-up and restore -------------------------------------------------------------------------------------------

    def _agree_on_checkpoint(self) -> tuple[str, CheckpointManifest | None]:
        """Let the first rank find the newest valid checkpoint, and tell the others."""
        answer = [""]
        if self.rank.is_first:
            found = self.checkpoints.newest_valid()
            if found is not None:
                for skipped in found[2]:
                    self.log(f"skipped checkpoint {skipped}")
                answer[0] = found[0]
        dist.broadcast_object_list(answer, src=0)
        return answer[0], CheckpointManifest.load(answer[0]) if answer[0] else None

    def _decide_cut(self, checkpoint: CheckpointManifest | None) -> Cut:
        profile = ProfileReport.load(self.assignment.profile) if self.assignment.profile else None
        recorded = checkpoint.slot_size if checkpoint else None
        cut = choose_cut(self.config, ranks=self.rank.ranks, profile=profile, recorded=recorded)
        self.log(f"{cut.reason}; {self.rank.ranks} ranks, {self.assignment.threads} threads each")
        return cut

    def _restore(self, uri: str, manifest: CheckpointManifest) -> Progress:
        reached("restore")
        self.stepper.load(load_model_state(uri, manifest), load_optimizer_state(uri, manifest))
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
        ahead = self.feed.prefetcher(self.progress.position)
        try:
            self._take_steps(ahead)
        finally:
            ahead.stop()
        self.scalars.close()

    def _take_steps(self, ahead: Prefetcher) -> None:
        slots = self.feed.slots(self.progress.position, ahead)
        clock = self.data_report.clock
        self.stepper.model.train()
        for slot in clock.slots(slots):
            reached("data")
            self.data_report.count(slot)
            loss = self.stepper.compute(slot, self.feed.dataset.transform, clock)
            self._loss_sum += loss
            if not slot.request.last_of_step:
                self.trace.add(slot.request, loss)
                continue
            rate = self.stepper.update(self.step, total_steps=self.total_steps)
            self.trace.add(slot.request, loss)
            self.progress = replace(self.progress, position=self.progress.position + slot.request.batch_samples)
            ahead.advance(self.progress.position)
            self._loss_samples += slot.request.batch_samples
            if self.step % LOG_EVERY_STEPS == 0 or self._epoch_is_over():
                self._report(rate)
            if self._epoch_is_over():
                reached("epoch-boundary")
                self._evaluate_epoch()
                self._save()
            elif self.config.checkpoint.every_steps and self.step % self.config.checkpoint.every_steps == 0:
                self._save()
            clock.restart()

    def _epoch_is_over(self) -> bool:
        return self.progress.position % self.feed.samples == 0

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
        share_buffers(self.stepper.model)
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
        reached("evaluation")
        return evaluate(self.stepper.model, self.feed.evaluation(split), self.rank.device)

    # --- checkpoints --------------------------------------------------------------------------------------------------

    def _save(self) -> None:
        """Save parameters, buffers, optimizer and position; the first rank writes, nobody waits for it."""
        share_buffers(self.stepper.model)
        if self.rank.is_first:
            state = self.stepper.model.state_dict()
            self.checkpoints.save(self._describe(state), state, self.stepper.optimizer_state())

    def _describe(self, state: dict[str, torch.Tensor]) -> CheckpointManifest:
        best = self.progress.best
        return CheckpointManifest(
            fingerprint=self.assignment.fingerprint,
            made_from=self.assignment.made_from,
            step=self.step,
            position=self.progress.position,
            epoch=self.epoch,
            slot_size=self.cut.slot_size,
            order=self.order,
            model=self.config.model.model_dump(mode="json"),
            classes=self.feed.manifest.classes,
            data=_transform_document(self.feed.transform),
            shards_fingerprint=self.feed.manifest.fingerprint,
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
        self.stepper.model.load_state_dict(load_model_state(uri, best))
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
    reached("start-up")
    training = Training(assignment, rank, events)
    if rank.is_first:
        imports_done()
        events.emit("ready")
    limit_collectives(training.config.resources.step_timeout_s)
    training.run()
    training.finish()


def _fix_numerics(threads: int, device: torch.device) -> None:
    """Set what decides the bits of a step besides the data."""
    torch.set_num_threads(threads)
    if device.type == "cpu":
        torch.use_deterministic_algorithms(True)


def _transform_document(transform: EvaluationTransform) -> dict[str, object]:
    return {"image_size": transform.image_size, "mean": list(transform.mean), "std": list(transform.std)}
