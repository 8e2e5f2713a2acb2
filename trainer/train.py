"""The training of one rank, top to bottom: set up, restore, step by step, evaluate, save, finish."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Literal, NoReturn

import torch

from contracts import storage
from contracts.artifacts import CheckpointManifest, ProfileReport
from contracts.config import RunConfig
from contracts.errors import PeerPreempted, Preempted, UserError
from contracts.events import EventLog
from contracts.process import imports_done
from trainer.checkpoint import has_checkpoint
from trainer.checkpoint.discovery import require_same_inputs
from trainer.checkpoint.loading import open_groups
from trainer.checkpoint.manager import CheckpointManager, Schedule
from trainer.checkpoint.manifest import describe_environment, find_differences, make_manifest, with_evaluation
from trainer.data.device import to_device
from trainer.data.evaluation import EvaluationBatch
from trainer.data.shard_cache import Prefetcher
from trainer.data.training_data import TrainingData
from trainer.evaluate import Evaluation, evaluate
from trainer.finish import finish
from trainer.launch import Assignment
from trainer.launch.choices import BatchLayout, choose_batch_layout, find_spare_cores
from trainer.log import Reporting
from trainer.model.numerics import decide_numerics, fix_numerics
from trainer.optim import learning_rate
from trainer.parallel.process_group import Rank
from trainer.predictions import OutcomeCollector
from trainer.report.gauges import is_allocation_error, out_of_memory_explained
from trainer.report.progress import RankLog, describe_start
from trainer.step import Stepper
from trainer.supervise.account import Account
from trainer.supervise.limits import Budget, Reason, describe_stop, is_over, require_validation
from trainer.supervise.stop import StopRequest, end_loader_processes
from trainer.supervise.supervisor import RankSupervisor, longest_wait_s
from trainer.supervise.vote import StopAgreement, Vote
from trainer.tasks.metrics import check_metrics
from trainer.weights.start import StartWeights

# Optimizer steps between loss readings; each costs a reduction and a device sync.
LOG_EVERY_STEPS = 20
EndedBy = Reason | Literal["epochs", "max_steps", "early_stopping"]


class Training:
    """One rank's training: its data, its network and its checkpoints."""

    def __init__(
        self, assignment: Assignment, rank: Rank, events: EventLog, ledger: Account, stop: StopRequest
    ) -> None:
        self.assignment, self.rank, self.events, self.ledger = assignment, rank, events, ledger
        self._stop, self._rank_log = stop, RankLog(events, is_first=rank.is_first)
        self.log = self._rank_log.log
        self.config = RunConfig.model_validate(assignment.config)
        fix_numerics(assignment.threads, rank.device)
        self.data = TrainingData(assignment, self.config, rank, self.log)
        require_validation(self.config.train.early_stopping, self.data.manifest.splits["validation"].samples)
        check_metrics(self.config, self.data.task)
        self.total_steps = self.data.total_steps
        self.checkpoints = CheckpointManager(
            assignment.folder,
            attempt=assignment.attempt,
            rules=self.config.checkpoint,
            rank=rank,
            sharded=self.config.parallel.strategy == "fsdp",
            log=self.log,
            alive=ledger.sections.alive,
            committed=ledger.committed,
        )
        self.schedule = Schedule(self.config.checkpoint, is_first=rank.is_first)
        with ledger.sections.inside("restore"):
            resumed = self.checkpoints.resume()
        checkpoint = resumed.manifest
        profile = ProfileReport.load(assignment.profile) if assignment.profile else None
        self.profile_fingerprint = profile.fingerprint if profile else ""
        if checkpoint is not None:
            require_same_inputs(resumed.uri, checkpoint, assignment.made_from)
        recorded = checkpoint.numerics if checkpoint else {}
        self.numerics = decide_numerics(self.config.train, recorded, self.log)
        self.layout = self._decide_layout(profile, checkpoint)
        self.order = self.data.choose_order(self.layout, checkpoint)
        self.position = checkpoint.position if checkpoint else 0
        """Samples since the start of training."""
        start = None if checkpoint else StartWeights.of(self.config, assignment.made_from, ledger.sections.alive)
        self.stepper = Stepper(self.config, self.data.task, rank, self.numerics, self.log, start)
        self.stepper.check_slots_of_one(self.data.samples, self.layout.slot_size)
        self.stepper.warm_up(self.layout.slot_size, self.data.samples)
        self.initial = checkpoint.initial if checkpoint else self.stepper.initial
        if checkpoint is not None:
            self._restore(resumed.uri, checkpoint)
        budget = Budget.of_attempt(
            self.config.resources,
            Path(assignment.attempt_folder),
            recorded_s=checkpoint.spent_s if checkpoint else 0.0,
            began_at=assignment.began_at,
            is_first=rank.is_first,
        )
        self.manifest = make_manifest(self, checkpoint)
        """Of the next checkpoint."""
        self._evaluated_step = 0
        self.reporting = Reporting(self, checkpoint, budget)
        samples = {name: split.samples for name, split in self.data.manifest.splits.items()}
        total, per_epoch = self.total_steps, self.data.steps_per_epoch
        self.log(describe_start(self.config, self.stepper.model, samples, total_steps=total, steps_per_epoch=per_epoch))
        self.ended_by: EndedBy = ""
        self.vote = Vote(stop, rank, timeout_s=longest_wait_s(self.config.resources), schedule=self.schedule)

    @property
    def step(self) -> int:
        """Optimizer steps taken."""
        return self.data.step_of(self.position)

    @property
    def epoch(self) -> int:
        """Epochs completed."""
        return self.position // self.data.samples

    def learning_rate(self, step: int) -> float:
        """Return the learning rate of optimizer step `step`, from 0."""
        return learning_rate(step, total_steps=self.total_steps, train=self.config.train, task=self.data.task)

    def show_progress(self, message: str, step: int) -> None:
        """Report the progress of the last reading or evaluation, which is of `step`."""
        self._rank_log.progress(step, self.total_steps, message)

    def environment(self) -> dict[str, str]:
        """Return the environment that affects the exact numbers, besides the configuration."""
        return describe_environment(self.config, self.rank, self.layout, self.numerics)

    # --- set-up and restore -------------------------------------------------------------------------------------------

    def _decide_layout(self, profile: ProfileReport | None, checkpoint: CheckpointManifest | None) -> BatchLayout:
        recorded = checkpoint.slot_size if checkpoint else None
        layout = choose_batch_layout(
            self.config,
            ranks=self.rank.ranks,
            profile=profile,
            recorded=recorded,
            spare_cores=find_spare_cores(self.assignment.ranks),
        )
        self.log(f"{layout.reason}; {self.rank.ranks} ranks, {self.assignment.threads} threads each")
        if idle := layout.idle_ranks(self.config.train.global_batch_size, self.rank.ranks):
            self.log(
                f"warning: {idle} of {self.rank.ranks} ranks are idle: train.global_batch_size "
                f"{self.config.train.global_batch_size} in slots of {layout.slot_size}, as the checkpoint has them, "
                f"makes {self.rank.ranks - idle} slots; fewer machines are as fast (resources.ranks, resources.nodes)"
            )
        return layout

    def _restore(self, uri: str, manifest: CheckpointManifest) -> None:
        sections = self.ledger.sections
        with sections.inside("restore"), open_groups(uri, manifest, on_piece=sections.alive) as groups:
            self.stepper.load(groups, where=uri)
        self.log(f"continues from {storage.display(uri)} at step {manifest.step}")
        if different := find_differences(manifest, self.environment()):
            self.log("not bit-identical to an undisturbed run, the environment differs: " + ", ".join(different))

    # --- the loop -----------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Take all remaining steps.

        Raises:
            Preempted: All ranks agreed to stop early, and saved.
        """
        number, ranks, nodes = self.checkpoints.attempt_number, self.rank.ranks, self.assignment.nodes
        self.ledger.resume(self.step, number=number, ranks=ranks, nodes=nodes)
        if self.manifest.evaluation_due:
            self._complete_epoch("", None)
        ahead = self.data.prefetcher(self.position)
        try:
            self._take_steps(ahead)
        except Exception as error:
            if not isinstance(error, UserError) and not is_allocation_error(error):
                raise
            # Finish writing the last checkpoint, so that training can resume from it; errors here are secondary.
            with self.ledger.sections.inside("checkpoint"), suppress(Exception):
                self.checkpoints.wait()
            raise
        finally:
            ahead.close()
        # The last checkpoint must be durable before evaluation.
        with self.ledger.sections.inside("checkpoint"):
            self.checkpoints.wait(together=True)
        self.reporting.close()
        if self.ended_by == "early_stopping" and self.manifest.early_stopping and self.config.train.early_stopping:
            self.log(describe_stop(self.manifest.early_stopping, self.config.train.early_stopping))

    def _take_steps(self, ahead: Prefetcher) -> None:
        if ended_by := self._is_over():
            self.ended_by = ended_by
            return
        sections, clock = self.ledger.sections, self.reporting.clock
        # The clock excludes to_device, where the host may wait for the GPU.
        loaded = sections.steps_of(clock.slots(self.data.slots(self.position, ahead)))
        self.stepper.model.train()
        for slot in to_device(loaded, self.rank.device, clock):
            self.reporting.count(slot)
            with self.data.naming_samples(slot.request):
                loss = self.stepper.compute(slot, clock)
            self.reporting.add(loss)
            if not slot.request.last_of_step:
                continue
            rate = self.learning_rate(self.step)
            self.reporting.end_step(self.stepper.update(self.step, rate), slot.request.batch_samples)
            self.position += slot.request.batch_samples
            ahead.advance(self.position)
            sections.stepped(self.step)
            clock.step_done()
            agreed = self.vote.step_done()
            # Reads an earlier step: the current one would need a device sync.
            stop = self.reporting.read()
            ends = bool(stop) or self.step >= self.total_steps
            if self.step % LOG_EVERY_STEPS == 0 or self._epoch_is_over() or ends:
                self.reporting.send(self.step, rate)
            if self._epoch_is_over() or ends:
                stop = self.reporting.read() or stop
                self._complete_epoch(stop, agreed)
            elif agreed is not None:
                self.leave(agreed)
            elif self.schedule.is_due(self.step):
                self._save()
            self.ledger.emit_if_due()
            # Reasons recorded in the checkpoint take precedence over a budget.
            self.ended_by = self._is_over() or stop
            if self.ended_by:
                return
            clock.restart()

    def _is_over(self) -> EndedBy:
        """Return why training ends at this step, apart from budgets; empty if it continues."""
        if self.step >= self.total_steps:
            return "epochs" if self.epoch == self.config.train.epochs else "max_steps"
        return "early_stopping" if is_over(self.manifest.early_stopping, self.config.train.early_stopping) else ""

    def _epoch_is_over(self) -> bool:
        return self.position % self.data.samples == 0

    def _complete_epoch(self, stop: Reason, agreed: StopAgreement | None) -> None:
        """Evaluate and save. If a stop was agreed, only save; the next attempt evaluates."""
        self.manifest = self.manifest.model_copy(update={"evaluation_due": True})
        if agreed is None:
            self._evaluate_epoch(stop)
        if self.vote.agreed is not None:
            self.leave(self.vote.agreed)
        # It may be the best checkpoint.
        self._save(required=True)

    def _evaluate_epoch(self, stop: Reason) -> None:
        self.stepper.share_buffers()
        evaluation = self.evaluate_split("validation")
        if self.vote.agreed is not None:
            return
        self.manifest = with_evaluation(self.manifest, evaluation, self.config.train.early_stopping)
        self._evaluated_step = self.step
        self.reporting.evaluated(self.step, evaluation, stop, epoch_is_over=self._epoch_is_over())

    def evaluate_split(self, split: str, outcomes: OutcomeCollector | None = None) -> Evaluation | None:
        """Evaluate on a split; the result is partial if a stop is agreed meanwhile."""
        sections, loader = self.ledger.sections, self.data.evaluation(split, self.numerics)

        def until_stopped(batches: Iterator[EvaluationBatch], rounds: int) -> Iterator[EvaluationBatch]:
            return sections.with_progress(self.vote.rounds_of(batches, rounds))

        with sections.inside("evaluation"), self.stepper.evaluation_weights() as model:
            return evaluate(
                model,
                self.data.task,
                loader.batches(),
                loader.rounds,
                self.rank.device,
                config=self.config,
                numerics=self.numerics,
                outcomes=outcomes,
                rounds=until_stopped,
            )

    # --- stopping -----------------------------------------------------------------------------------------------------

    def leave(self, agreed: StopAgreement, *, save: bool = True) -> NoReturn:
        """Save and raise; all ranks call this at the same step.

        Raises:
            Preempted: Always.
        """
        self.ledger.sections.enter("stop")
        self.assignment.mark_stopping()
        if save:
            self._save(required=True)
            self.checkpoints.wait()
        self.ledger.stopped(agreed.description)
        # Only rank 0 waits for the write.
        saved = "which is saved" if self.rank.is_first else "which the first rank saves"
        # If another machine was preempted, this one restarts its ranks when that machine is back.
        node = agreed.rank // self.assignment.ranks
        was_requested = bool(self._stop.cause) or node == self.assignment.node_rank
        kind = Preempted if was_requested else PeerPreempted
        raise kind(f"stopped by {agreed.description} at step {self.step}, {saved}; the same command continues")

    # --- checkpoints --------------------------------------------------------------------------------------------------

    def _save(self, *, required: bool = False) -> None:
        """Save a checkpoint; `required`: wait for a running save instead of skipping this one."""
        sections = self.ledger.sections
        with sections.inside("stop" if sections.now.section == "stop" else "checkpoint"):
            self._write_checkpoint(required=required)
        self.ledger.emit_time()

    def _write_checkpoint(self, *, required: bool) -> None:
        # Before the checkpoint: a resume from it does not report these steps again.
        self.reporting.flush()
        # Raises if gradients must end training: such a step must not be saved.
        gradients = self.stepper.guard.read(self.stepper.guard.tensors().tolist())
        self.stepper.share_buffers()
        moment = {
            "step": self.step,
            "position": self.position,
            "epoch": self.epoch,
            "evaluated": self.stepper.evaluated_weights if self._evaluated_step == self.step else None,
            "skipped_steps": gradients.skipped,
            "spent_s": self.reporting.budget.spent_s(),
        }
        self.checkpoints.save(self.manifest.model_copy(update=moment), self.stepper.state(), required=required)
        # Also after a skipped save, which only rank 0 knows about.
        self.schedule.saved()


def train(assignment: Assignment, rank: Rank, events: EventLog, supervisor: RankSupervisor) -> None:
    """Train as one rank, from the newest valid checkpoint to the end.

    Raises:
        Preempted: All ranks agreed to stop early, and saved.
        OutOfMemory: A step needs more memory than there is.
    """
    config = RunConfig.model_validate(assignment.config)
    with out_of_memory_explained(config, rank, supervisor.account.sections, lambda: has_checkpoint(assignment.folder)):
        training = Training(assignment, rank, events, supervisor.account, supervisor.stop)
        if rank.is_first:
            imports_done()
            events.emit("ready")
        if rank.device.type == "cuda":
            # Exclude set-up, which uses more memory than a step.
            torch.cuda.reset_peak_memory_stats(rank.device)
        try:
            training.run()
            finish(training)
        finally:
            # Closing a loader would wait for busy processes. Garbage collection finalizes queues of idle ones before
            # it ends them, and so waits for each until a time-out (torch 2.13).
            end_loader_processes()
        supervisor.finished()
