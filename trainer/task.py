"""The training stage: `python -m trainer.task --root URI --shards URI [--profile URI] --config URI ...`.

This process decides about reuse, starts torchrun and waits; it never imports torch. The ranks are trainer/worker.py,
what they do is trainer/loop.py.
"""

from __future__ import annotations

from contracts import storage
from contracts.artifacts import CheckpointManifest, ProfileReport
from contracts.errors import DataError
from contracts.fingerprint import train_inputs
from contracts.process import imports_done, run_process, threads_per_rank
from contracts.stage import Stage, run_stage
from trainer.checkpoint import CHECKPOINTS_FOLDER
from trainer.cut import choose_cut
from trainer.launch import Assignment, num_ranks, run_ranks
from trainer.shards import check_room, load_shards


def execute(stage: Stage) -> str:
    """Train to the end, from the newest valid checkpoint if there is one."""
    shards_uri = stage.require("shards")
    ranks = num_ranks(stage.config)
    shards = load_shards(shards_uri, stage.config.data, ranks=ranks)
    profile = ProfileReport.load(stage.profile) if stage.profile else None
    output = stage.claim(CheckpointManifest, train_inputs(stage.config, shards=shards.fingerprint))
    if output.reused:
        return output.uri
    # For their errors; the ranks decide again, knowing what the checkpoint has recorded.
    begun = bool(storage.list_names(storage.join(output.uri, CHECKPOINTS_FOLDER)))
    if ignored := check_room(shards_uri, stage.config.data, shards, begun=begun):
        stage.log(f"warning: {ignored}")
    choose_cut(stage.config, ranks=ranks, profile=profile, recorded=None)
    if stage.events.folder is None:
        raise DataError(
            f"training cannot write to {storage.display(output.uri)}",
            allowed="a local folder",
            todo="set run.root, or --output, to a local folder",
        )
    imports_done()
    run_ranks(
        Assignment(
            config=stage.config.model_dump(mode="json"),
            shards=shards_uri,
            profile=stage.profile,
            folder=output.uri,
            fingerprint=output.fingerprint,
            made_from=output.made_from,
            attempt=stage.attempt,
            attempt_folder=str(stage.events.folder),
            ranks=ranks,
            threads=threads_per_rank(ranks),
        )
    )
    result = CheckpointManifest.load(output.uri)
    stage.finished(output, _describe(result))
    return output.uri


def _describe(result: CheckpointManifest) -> str:
    parts = [f"best checkpoint at step {result.step}"]
    if "test_accuracy" in result.metrics:
        parts.append(f"test accuracy {result.metrics['test_accuracy']:.4f}")
    return ", ".join(parts)


if __name__ == "__main__":
    run_process(lambda: run_stage("train", execute))
