"""The export stage: best checkpoint -> ONNX -> fp16 -> engine -> proof of parity and accuracy -> manifest.

    python -m trainer.export.task --config-json TEXT --root URI --checkpoint URI --shards URI

`--checkpoint` is a finished training folder or one checkpoint's folder; `--shards` are the shards it was trained on, of
which the test split is used. The work is done in a temporary folder and published only when every gate has passed, the
manifest last. This stage claims nothing about latency.
"""

from __future__ import annotations

import hashlib
import json
import tempfile
from pathlib import Path
from typing import Any

from contracts import storage
from contracts.artifacts import CheckpointManifest, EngineEntry, ExportManifest, FileEntry, ShardManifest
from contracts.config import ModelSection
from contracts.errors import DataError
from contracts.fingerprint import export_inputs
from contracts.process import run_process, threads_per_rank
from contracts.stage import Output, Stage, run_stage
from trainer.export.engine import MIN_BATCH, check_profile
from trainer.export.inputs import Inputs, check_inputs
from trainer.export.targets import Builder, choose_builder

LABELS_NAME = "labels.json"
PREPROCESS_NAME = "preprocess.json"


def export(stage: Stage) -> str:
    """Do the stage's work, or find it done; return the URI of the finished folder."""
    checkpoint_uri, shards_uri = stage.require("checkpoint"), stage.require("shards")
    checkpoint, shards = CheckpointManifest.load(checkpoint_uri), ShardManifest.load(shards_uri)
    check_inputs(stage.config, checkpoint, shards)
    check_profile(MIN_BATCH, stage.config.export.opt_batch, stage.config.export.max_batch)
    builder = choose_builder()
    made_from = export_inputs(stage.config, checkpoint=checkpoint.parameters_sha256, builder=builder.identity)
    output = stage.claim(ExportManifest, made_from)
    if output.reused:
        return output.uri
    # Imported here: numpy is not needed to find what is finished.
    from trainer.shards import check_index

    check_index(shards_uri, shards)
    inputs = Inputs(checkpoint_uri, checkpoint, shards_uri, shards, builder, stage.config.data)
    with tempfile.TemporaryDirectory(prefix="shardline-export-") as work:
        _make(stage, output, inputs, Path(work))
    return output.uri


def _make(stage: Stage, output: Output, inputs: Inputs, work: Path) -> None:
    # The exporter and the proof import these; here they count as start, as torch does.
    import onnxruntime  # type: ignore[import-untyped]  # noqa: F401
    import onnxscript  # noqa: F401
    import torch

    from trainer.export import engine, onnx_graph, precision, proof
    from trainer.model import build_model

    threads = threads_per_rank(1)
    torch.set_num_threads(threads)
    section = ModelSection.model_validate(inputs.checkpoint.model)
    model = build_model(section, num_classes=len(inputs.checkpoint.classes), image_size=inputs.image_size)
    stage.ready()
    settings = stage.config.export
    steps = _Steps(stage, 4 + (settings.precision == "fp16"))

    _load_weights(model, inputs)
    graphs = {"fp32": work / "model.fp32.onnx"}
    onnx_graph.export_graph(model, graphs["fp32"], image_size=inputs.image_size, opset=settings.opset)
    graph_inputs, graph_outputs = onnx_graph.describe(graphs["fp32"])
    steps.done("fp32 graph")
    if settings.precision == "fp16":
        graphs["fp16"] = work / "model.fp16.onnx"
        precision.convert_to_fp16(graphs["fp32"], graphs["fp16"])
        steps.done("fp16 graph")
    engine_path = work / f"model.{settings.precision}.engine"
    engine.build_engine(
        graphs[settings.precision],
        engine_path,
        builder=inputs.builder,
        image_shape=(onnx_graph.CHANNELS, inputs.image_size, inputs.image_size),
        opt_batch=settings.opt_batch,
        max_batch=settings.max_batch,
    )
    steps.done(f"engine by {inputs.builder.name}")
    logits, labels = proof.run_test_split(
        inputs, model, graphs, engine_path, batch_size=settings.max_batch, threads=threads
    )
    parity = proof.prove_parity(logits, builder=inputs.builder, precision=settings.precision)
    steps.done("parity with torch")
    accuracy = proof.measure_accuracy(logits, labels)
    steps.done(f"accuracy on {len(labels)} test samples")

    (work / LABELS_NAME).write_bytes(_as_json(inputs.checkpoint.classes))
    (work / PREPROCESS_NAME).write_bytes(_as_json(_preprocessing(inputs.checkpoint)))
    names = [path.name for path in (*graphs.values(), work / LABELS_NAME, work / PREPROCESS_NAME)]
    for name in (*names, engine_path.name):
        # Replaced, not created: a killed attempt may have left a file, and a second engine may be other bytes.
        storage.replace(storage.join(output.uri, name), (work / name).read_bytes())
    document = ExportManifest(
        fingerprint=output.fingerprint,
        made_from=output.made_from,
        precision=settings.precision,
        opset=settings.opset,
        inputs=graph_inputs,
        outputs=graph_outputs,
        engine=EngineEntry(
            **FileEntry.of(output.uri, engine_path.name).model_dump(),
            sha256=hashlib.sha256(engine_path.read_bytes()).hexdigest(),
            builder=inputs.builder.name,
            precision=settings.precision,
            targets=list(inputs.builder.targets),
            min_batch=MIN_BATCH,
            opt_batch=settings.opt_batch,
            max_batch=settings.max_batch,
        ),
        parity=parity,
        accuracy=accuracy,
        test_samples=len(labels),
        checkpoint_sha256=inputs.checkpoint.parameters_sha256,
        files=[FileEntry.of(output.uri, name) for name in names],
    )
    stage.commit(output, document, _in_words(document, inputs.builder))


class _Steps:
    """Counts the steps of the stage for its progress."""

    def __init__(self, stage: Stage, total: int) -> None:
        self._stage = stage
        self._total = total
        self._done = 0

    def done(self, message: str) -> None:
        self._done += 1
        self._stage.progress(self._done, self._total, "steps", message)


def _load_weights(model: Any, inputs: Inputs) -> None:
    from trainer.checkpoint.loading import load_model_state

    try:
        model.load_state_dict(load_model_state(inputs.checkpoint_uri, inputs.checkpoint))
    except RuntimeError as error:
        raise DataError(
            f"the tensors in {storage.display(inputs.checkpoint_uri)} are not those of its model: {error}",
            allowed="a checkpoint written by the train stage",
            todo="train again with --fresh",
        ) from error


def _preprocessing(checkpoint: CheckpointManifest) -> dict[str, Any]:
    """Say as data what EvaluationTransform does; resizing in the graph would give other pixels."""
    size = checkpoint.data["image_size"]
    return {
        "color": "RGB",
        "image_size": size,
        "steps": [
            {"op": "center_crop", "side": "the image's shorter side"},
            {"op": "resize", "size": [size, size], "filter": "bilinear with antialiasing, as Pillow's BILINEAR"},
            {"op": "scale", "divide_by": 255},
            {"op": "normalise", "mean": checkpoint.data["mean"], "std": checkpoint.data["std"]},
        ],
        "layout": "NCHW",
        "dtype": "float32",
    }


def _as_json(value: Any) -> bytes:
    return (json.dumps(value, indent=1, ensure_ascii=False) + "\n").encode()


def _in_words(document: ExportManifest, builder: Builder) -> str:
    found = document.parity["onnx"][document.precision]
    return (
        f"{document.engine.name} {document.engine.bytes / 1e6:.1f} MB ({builder.identity}), "
        f"onnx parity {document.precision} {found.relative_error:.1e}, "
        f"engine parity {document.parity['engine'][document.precision].ran}"
    )


if __name__ == "__main__":
    run_process(lambda: run_stage("export", export))
