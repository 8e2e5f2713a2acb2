"""The training stage: `python -m trainer.task --root URI --shards URI [--profile URI] --config URI ...`.

This process decides about reuse, starts the ranks (trainer/worker.py) and waits. The same command runs on each machine
(docs/launch.md). On a single machine it imports no torch.
"""

from __future__ import annotations

import os
import signal
import time

from contracts import storage
from contracts.artifacts import CheckpointManifest, EvaluationReport, ProfileReport
from contracts.errors import ErrorDocument, Preempted, UserError
from contracts.fingerprint import train_inputs
from contracts.process import imports_done, run_process
from contracts.stage import Stage, run_stage
from trainer.checkpoint import has_checkpoint
from trainer.data.shard_cache import check_room
from trainer.export.inputs import check_export_of_run
from trainer.launch import Assignment, hardware, num_ranks
from trainer.launch.attempts import JobRecord
from trainer.launch.choices import choose_batch_layout, choose_threads, find_differences
from trainer.launch.launcher import Launcher, run_ranks
from trainer.launch.nodes import Nodes, find_nodes
from trainer.supervise.notice import metadata_host
from trainer.tasks.shard_checks import load_shards
from trainer.weights.previous import find_initial_weights, with_arguments_of_weights

# Log folder of Vertex AI's TensorBoard, set if the job has one:
# https://docs.cloud.google.com/vertex-ai/docs/experiments/tensorboard-training
TENSORBOARD_VARIABLE = "AIP_TENSORBOARD_LOG_DIR"


def execute(stage: Stage) -> str:
    """Train to the end, resuming from the newest valid checkpoint."""
    began_at = time.monotonic()
    nodes = find_nodes(os.environ, stage.config.resources)
    record = JobRecord(stage.place, nodes.job_id)
    record.require_open()
    try:
        return _train(stage, nodes, record, began_at)
    except UserError as error:
        # Recorded, so that the platform's restarts fail at once.
        if not stage.locate:
            record.end(ErrorDocument.of(error))
        raise


def _train(stage: Stage, nodes: Nodes, record: JobRecord, began_at: float) -> str:
    shards_uri = stage.require("shards")
    ranks = num_ranks(stage.config)
    world_size = ranks * nodes.nodes
    shards = load_shards(shards_uri, stage.config, ranks=world_size)
    check_export_of_run(stage, shards)
    stage.config = with_arguments_of_weights(stage)
    profile = ProfileReport.load(stage.profile) if stage.profile else None
    config, made_from = find_initial_weights(stage, train_inputs(stage.config, shards=shards.fingerprint))
    output = stage.claim(CheckpointManifest, made_from, joins=not nodes.is_primary)
    if output.reused:
        return output.uri
    if ignored := check_room(shards_uri, stage.config.data, shards):
        stage.log(f"warning: {ignored}")
    threads, warning = choose_threads(stage.config, ranks=ranks)
    warnings = [warning] if warning else []
    if profile is not None:
        warnings += find_differences(profile, hardware(), stage.config.train.global_batch_size)
    for warning in warnings:
        stage.log(f"warning: {warning}")
    # Called for its errors only; the ranks decide with the recorded slot size.
    if not has_checkpoint(output.uri):
        choose_batch_layout(stage.config, ranks=world_size, profile=profile, recorded=None)
    imports_done()
    assignment = Assignment(
        config=config.model_dump(mode="json"),
        shards=shards_uri,
        profile=stage.profile,
        folder=output.uri,
        fingerprint=output.fingerprint,
        made_from=output.made_from,
        attempt=stage.attempt,
        attempt_folder=str(stage.require_events_folder()),
        ranks=ranks,
        threads=threads,
        nodes=nodes.nodes,
        node_rank=nodes.node_rank,
        began_at=began_at,
    )
    for folder in (assignment.tensorboard_folder, assignment.scalars_folder):
        stage.keep(folder, storage.join(output.uri, folder.name))
    if uri := os.environ.get(TENSORBOARD_VARIABLE):
        stage.keep(assignment.tensorboard_folder, storage.normalise(uri.rstrip("/")))
    # On other machines a stop is a user's interrupt, not a preemption (contracts/goodput.py).
    preemptible = nodes.platform != "local" or metadata_host() is not None
    stage.events.emit("machine", node_rank=nodes.node_rank, nodes=nodes.nodes, preemptible=preemptible)
    if nodes.platform != "local":
        stage.log(f"machine {nodes.node_rank} of {nodes.nodes} ({nodes.platform}), {ranks} ranks")
    launcher = Launcher(assignment, nodes, stage.config.resources, record, stage.log)
    try:
        run_ranks(launcher)
    except Preempted:
        if launcher.stop.number == signal.SIGINT:
            # No platform sends SIGINT: a user interrupted (contracts/goodput.py).
            stage.events.emit("interrupted", signal=signal.SIGINT.name)
        raise
    result = CheckpointManifest.load(output.uri)
    stage.finished(output, _describe(result, output.uri))
    return output.uri


def _describe(result: CheckpointManifest, uri: str) -> str:
    parts = [f"best checkpoint at step {result.step}"]
    headline = result.headline
    if headline is not None and (value := headline.value(result.metrics, "test")) is not None:
        parts.append(f"test {headline.metric.replace('_', ' ')} {value:.4f}{_describe_baseline(result, uri)}")
    return ", ".join(parts)


def _describe_baseline(result: CheckpointManifest, uri: str) -> str:
    if result.evaluation is None or (baseline := EvaluationReport.load(result.evaluation.uri(uri)).baseline) is None:
        return ""
    return f" (baseline {baseline.value:.4f}: {baseline.description})"


if __name__ == "__main__":
    run_process(lambda: run_stage("train", execute, keep_attempt=True))
