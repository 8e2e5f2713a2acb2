"""The export stage: best checkpoint -> ONNX -> the precision that holds -> engines -> proof -> manifest.

    python -m trainer.export.task --config-json TEXT --root URI --checkpoint URI --shards URI

`--checkpoint` is a finished training folder or one checkpoint's folder; `--shards` are the shards it was trained on: of
the test split is the proof, of the training split the calibration. The work (making.py) is done in a folder of this
machine and published only when the gates have passed, the manifest last.
"""

from __future__ import annotations

import errno
import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from contracts import storage
from contracts.artifacts import CheckpointManifest, ExportManifest, ShardManifest, ShippedFile
from contracts.errors import TryAgain
from contracts.fingerprint import export_inputs
from contracts.own_code import code_hash
from contracts.process import run_process, thread_environment, threads_per_rank
from contracts.stage import Output, Stage, run_stage
from trainer.export.inputs import Inputs, check_inputs, hash_code, name_tools
from trainer.export.targets import check_precision, choose_runtime, version_of
from trainer.weights.source import MODEL_TYPE, with_saved_arguments

if TYPE_CHECKING:
    from trainer.export.workshop import Workshop

CARD_NAME = "MODEL_CARD.md"
# What decides the files besides the inputs.
PACKAGES = ("torch", "transformers", "onnx", "onnxscript", "onnxruntime", "numpy", "Pillow")
_NO_SPACE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def export(stage: Stage) -> str:
    """Do the stage's work, or find it done; return the URI of the finished folder."""
    checkpoint_uri, shards_uri = stage.require("checkpoint"), stage.require("shards")
    checkpoint, shards = CheckpointManifest.load(checkpoint_uri), ShardManifest.load(shards_uri)
    if MODEL_TYPE in (arguments := checkpoint.model.get("arguments", {})):
        # Training took them from the weights that it started from, which may be gone.
        stage.config = with_saved_arguments(stage.config, arguments)
    for warning in check_inputs(stage.config, checkpoint, shards):
        stage.log(f"warning: {warning}")
    trained_with = checkpoint.made_from.get("code", "")
    if trained_with and trained_with != code_hash(stage.config.code):
        stage.log(f"warning: the checkpoint was trained with own code {trained_with[:16]}, and this is other code")
    builder = choose_runtime(stage.config.export)
    for warning in builder.warnings:
        stage.log(f"warning: {warning}")
    check_precision(builder, stage.config.export.precision)
    made_from = export_inputs(
        stage.config, checkpoint=checkpoint.parameters_sha256, builder=builder.identity, tools=name_tools()
    )
    output = stage.claim(ExportManifest, made_from)
    if output.reused:
        return output.uri
    inputs = Inputs(checkpoint_uri, checkpoint, shards_uri, shards, builder, stage.config)
    try:
        with tempfile.TemporaryDirectory(prefix="shardline-export-") as folder:
            _make(stage, output, inputs, Path(folder))
    except OSError as error:
        if error.errno not in _NO_SPACE:
            raise
        raise TryAgain(
            f"no room is left on the disk ({error.strerror}: {error.filename or tempfile.gettempdir()}); "
            "free some, or point TMPDIR at a larger one, and run the same command again"
        ) from error
    return output.uri


def _make(stage: Stage, output: Output, inputs: Inputs, folder: Path) -> None:
    from trainer.export.bundle.card import render_card
    from trainer.export.making import make
    from trainer.export.workshop import Workshop

    threads = threads_per_rank(1)
    os.environ.update(thread_environment(threads))  # of the steps' processes
    stage.ready()
    settings = stage.config.export
    steps = _Steps(stage, total=4 + (settings.precision != "fp32") + settings.bench)
    work = Workshop(inputs, settings, seed=stage.config.run.seed, folder=folder, threads=threads, tell=steps.done)
    make(work)
    document = _describe(output, stage, work)
    (work.shipment / CARD_NAME).write_text(render_card(document, inputs.checkpoint), encoding="utf-8")
    # What a killed attempt has left may be of another precision.
    stage.discard(output.uri)
    document = _publish(output, document, work.shipment)
    stage.commit(output, document, _in_words(document))


def _describe(output: Output, stage: Stage, work: Workshop) -> ExportManifest:
    from trainer.export.graph.onnx_graph import OPSET

    inputs = work.inputs
    return ExportManifest(
        fingerprint=output.fingerprint,
        made_from=output.made_from,
        precision=work.precision,
        asked_precision=stage.config.export.precision,
        tried=work.tried,
        verdict=work.verdict,
        opset=OPSET,
        task=stage.config.task.name,
        signature=work.signature,
        container=work.kind,
        task_calibration=inputs.checkpoint.calibration,
        inputs=work.graph_inputs,
        outputs=work.graph_outputs,
        graphs=work.graphs,
        engines=work.engines,
        gates=work.gates,
        parity=work.parity,
        metrics={name: dict(found.values) for name, found in work.scores.items()},
        headline=work.scores["fp32"].headline,
        test_samples=work.test_samples,
        proof_samples=None if work.split.places is None else work.split.samples,
        proof_seed=None if work.split.places is None else work.seed,
        calibration=work.calibration,
        latency=work.latency,
        latency_left_out=work.latency_left_out,
        checkpoint_sha256=inputs.checkpoint.parameters_sha256,
        shards_fingerprint=inputs.shards.fingerprint,
        served=work.served,
        steps=_steps_of(work),
        made_with={name: version_of(name) for name in PACKAGES} | {"shardline code": hash_code()},
        files=[],
    )


def _steps_of(work: Workshop) -> dict[str, dict[str, float]]:
    return {
        name: {
            "seconds": round(cost.seconds, 3),
            "peak_bytes": cost.peak_bytes,
            "processor_s": round(cost.processor_s, 3),
        }
        for name, cost in work.costs.items()
    }


def _publish(output: Output, document: ExportManifest, shipment: Path) -> ExportManifest:
    """Copy everything to its place; return the document that speaks for it."""
    known = {entry.name for entry in document.owned_files()}
    others = []
    for path in sorted(path for path in shipment.rglob("*") if path.is_file()):
        name = path.relative_to(shipment).as_posix()
        # Replaced, not created: of a killed attempt a write may still be under way.
        storage.replace(storage.join(output.uri, *name.split("/")), path.read_bytes())
        if name not in known:
            others.append(ShippedFile.of(storage.normalise(shipment), name))
    return document.model_copy(update={"files": others}).sealed()


class _Steps:
    """Counts the steps of the stage for its progress."""

    def __init__(self, stage: Stage, total: int) -> None:
        self._stage = stage
        self._total = total
        self._done = 0

    def done(self, message: str) -> None:
        # A precision that is fallen back to is one more.
        self._done += 1
        self._total = max(self._total, self._done)
        self._stage.progress(self._done, self._total, "steps", message)


def _in_words(document: ExportManifest) -> str:
    found = document.parity["onnx"][document.precision]
    fell = "" if document.precision == document.asked_precision else f" (fell back from {document.asked_precision})"
    engines = ", ".join(f"{entry.target} {entry.bytes / 1e6:.1f} MB" for entry in document.engines)
    built = f" engines by {document.engines[0].builder}: {engines}" if engines else ""
    served = f"; serves {document.served.in_words()}" if document.served else ""
    return f"{document.precision}{fell}{built}; onnx parity {found.relative_error:.1e}{served}; {document.verdict}"


if __name__ == "__main__":
    run_process(lambda: run_stage("export", export))
