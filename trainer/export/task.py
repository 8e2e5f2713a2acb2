"""The export stage: best checkpoint -> ONNX -> precision that passes its gates -> engine -> proof -> manifest.

    python -m trainer.export.task --config-json TEXT --root URI --checkpoint URI --shards URI

`--checkpoint` is a finished training folder or one checkpoint's folder; `--shards` are the shards it was trained on:
the proof uses their test split, calibration their training split. Files are made in a local folder (making.py), and
published when the gates have passed, the manifest last.
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
from contracts.process import run_process, thread_environment, threads_per_rank
from contracts.proof import verdict
from contracts.stage import Output, Stage, run_stage
from trainer.export.inputs import PACKAGES, Inputs, check_inputs, name_tools
from trainer.export.processes import start_server
from trainer.export.runtime import check_precision, choose_runtime, version_of
from trainer.export.samples import SPLIT
from trainer.weights.source import MODEL_TYPE, with_saved_arguments

if TYPE_CHECKING:
    from trainer.export.making import Export, Reference

CARD_NAME = "MODEL_CARD.md"
_NO_SPACE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def export(stage: Stage) -> str:
    """Run the stage or reuse its output; return the URI of the finished folder."""
    checkpoint_uri, shards_uri = stage.require("checkpoint"), stage.require("shards")
    checkpoint, shards = CheckpointManifest.load(checkpoint_uri), ShardManifest.load(shards_uri)
    if MODEL_TYPE in (arguments := checkpoint.model.get("arguments", {})):
        # Training read them from its initial weights, which may have been deleted.
        stage.config = with_saved_arguments(stage.config, arguments)
    check_inputs(stage.config, checkpoint, shards)
    builder = choose_runtime(stage.config.export)
    for warning in builder.warnings:
        stage.log(f"warning: {warning}")
    if builder.module == "onnx" and stage.config.export.runtime == "auto" and not builder.warnings:
        stage.log("runtime onnx: no GPU here; export.runtime=tensorrt_rtx builds an engine")
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
    from trainer.export.card import render_card
    from trainer.export.making import Export, make

    threads = threads_per_rank(1)
    os.environ.update(thread_environment(threads))  # of the steps' processes
    start_server()
    stage.ready()
    work = Export(inputs, folder, threads, lambda done, parts, message: stage.progress(done, parts, "steps", message))
    document = _describe(output, work, make(work))
    (work.shipment / CARD_NAME).write_text(render_card(document, inputs.checkpoint), encoding="utf-8")
    # Files of a killed attempt may be of another precision.
    stage.discard(output.uri)
    document = _publish(output, document, work.shipment)
    fell_back = (
        "" if document.precision == document.asked_precision else f" (fell back from {document.asked_precision})"
    )
    stage.commit(output, document, f"{document.precision}{fell_back}, {document.served}; {verdict(document)}")


def _describe(output: Output, work: Export, reference: Reference) -> ExportManifest:
    from trainer.export.onnx_graph import OPSET

    inputs, proof = work.inputs, reference.proof
    steps = {
        name: {"seconds": round(cost.seconds, 3), "peak_bytes": cost.peak_bytes} for name, cost in work.costs.items()
    }
    return ExportManifest(
        fingerprint=output.fingerprint,
        made_from=output.made_from,
        precision=work.graphs[-1].precision,
        asked_precision=inputs.config.export.precision,
        tried=work.tried,
        opset=OPSET,
        task=inputs.config.task.name,
        signature=reference.signature,
        container=reference.container,
        task_calibration=inputs.checkpoint.calibration,
        runtime=inputs.builder.module,
        served=work.served,
        graphs=work.graphs,
        engine=work.engine,
        gates=work.gates,
        metrics=work.metrics,
        headline=reference.headline,
        test_samples=inputs.shards.splits[SPLIT].samples,
        proof_samples=len(proof.places),
        proof_seed=inputs.config.run.seed,
        latency=work.latency,
        checkpoint_sha256=inputs.checkpoint.parameters_sha256,
        shards_fingerprint=inputs.shards.fingerprint,
        made_with={name: version_of(name) for name in PACKAGES},
        steps=steps,
        files=[],
    ).sealed()


def _publish(output: Output, document: ExportManifest, shipment: Path) -> ExportManifest:
    """Copy all files to the output folder; return the manifest with their list."""
    listed = {entry.name for entry in document.owned_files()}
    unlisted = []
    for path in sorted(path for path in shipment.rglob("*") if path.is_file()):
        name = path.relative_to(shipment).as_posix()
        # Replaced, not created: a write of a killed attempt may still be in progress.
        storage.replace(storage.join(output.uri, *name.split("/")), path.read_bytes())
        if name not in listed:
            unlisted.append(ShippedFile.of(storage.normalise(shipment), name))
    return document.model_copy(update={"files": unlisted}).sealed()


if __name__ == "__main__":
    run_process(lambda: run_stage("export", export))
