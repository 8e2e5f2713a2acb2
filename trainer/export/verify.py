"""Looks at a finished export once more: every hash, every contradiction, the bundle, and on its GPU the engine.

    python -m trainer.export.verify FOLDER [--shards URI]

Prints a line for each gate; exit code 0, or 1 when one failed, which is named. On a GPU that an engine was built for, a
passed engine completes the proof: `verified/TARGET.json` is written beside the manifest. Nothing of the folder is
executed: what predict.py does is tried with this package's own copy.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from contracts import storage
from contracts.artifacts import ExportManifest, FileEntry, Gate, ShardManifest, Verification, find_damage
from contracts.config import DataSection
from contracts.errors import EXIT_CHECK_FAILED, EXIT_OK, DataError, ErrorDocument
from contracts.process import run_process, thread_environment, threads_per_rank
from trainer.export import bundle, engine_run, proof, triton
from trainer.export.making import FP32_NAME
from trainer.export.predict import LABELS_NAME, PREPROCESS_NAME, Preprocessing
from trainer.export.processes import run_step
from trainer.export.shipped import PREDICT_NAME
from trainer.export.targets import gpu_target
from trainer.export.workshop import hash_file

VERIFIED_FOLDER = "verified"


def main(arguments: Sequence[str] | None = None) -> int:
    """Verify the folder that the arguments name; return the exit code."""
    parser = argparse.ArgumentParser(prog="verify", allow_abbrev=False)
    parser.add_argument("folder")
    parser.add_argument("--shards", default=None)
    options = parser.parse_args(arguments)
    os.environ.update(thread_environment(threads_per_rank(1)))
    try:
        uri = storage.normalise(options.folder)
        gates = verify(uri, None if options.shards is None else storage.normalise(options.shards))
    except Exception as error:  # noqa: BLE001 - the entry of a process is where everything ends
        failure = ErrorDocument.of(error, traceback.format_exc())
        print(f"verify: error: {failure.message}", file=sys.stderr)
        return failure.exit_code
    for gate in gates:
        print(f"{gate.status:13} {gate.name:14} {gate.precision:5} {gate.reason or gate.ran}")
    failed = [gate.name for gate in gates if gate.status == "failed"]
    if failed:
        print(f"{storage.display(uri)} is not what was proven; failed: {', '.join(failed)}")
        return EXIT_CHECK_FAILED
    document = ExportManifest.load(uri)
    here = gpu_target()
    proven = any(gate.name == f"engine {here}" and gate.status == "passed" for gate in gates)
    print(
        "proven on this GPU" if proven else f"nothing is wrong; {document.verdict} as before: {_what_is_left(document)}"
    )
    return EXIT_OK


def verify(uri: str, shards_uri: str | None = None) -> list[Gate]:
    """Return the gates of a finished export: checksum, repository, bundle, and one for each engine.

    Args:
        uri: Its folder.
        shards_uri: The shards that it was made from; unset: those of its line, where they are there.

    Raises:
        DataError: There is no manifest, or the shards are others.
    """
    document = ExportManifest.load(uri)
    shards_uri, shards = _find_shards(uri, document, shards_uri)
    gates = [_judge_checksums(uri, document)]
    with tempfile.TemporaryDirectory(prefix="shardline-verify-") as name, _on_this_machine(uri, document) as folder:
        work = Path(name)
        gates.append(_judge_repository(folder, document))
        gates.append(_judge_bundle(folder, document, shards_uri, shards, work))
        for entry in document.engines:
            gates.append(_judge_engine(uri, folder, document, entry, shards_uri, shards, work))
    return gates


def _find_shards(uri: str, document: ExportManifest, given: str | None) -> tuple[str, ShardManifest | None]:
    # A line's stages lie side by side, their outputs named by fingerprint.
    line = uri.rpartition("/")[0].rpartition("/")[0]
    shards_uri = given or storage.join(line, "shard", document.shards_fingerprint)
    try:
        shards = ShardManifest.load(shards_uri)
    except DataError:
        if given is not None:
            raise
        return shards_uri, None
    if shards.fingerprint != document.shards_fingerprint:
        raise DataError(
            f"shards {shards.fingerprint}, but the export was made from shards {document.shards_fingerprint}",
            allowed="the shards that it was made from",
            todo="pass their URI as --shards",
        )
    return shards_uri, shards


def _judge_checksums(uri: str, document: ExportManifest) -> Gate:
    findings = []
    if not document.is_sealed:
        findings.append("the manifest was changed after it was written")
    for entry in document.owned_files():
        damage = find_damage(uri, [entry], read=True)
        if damage is None and (stated := getattr(entry, "sha256", None)) is not None:
            found = _hash(entry.uri(uri))
            damage = None if found == stated else f"{entry.name} has sha256 {found}, its manifest says {stated}"
        if damage is not None:
            findings.append(damage)
    for entry in document.engines:
        if entry.onnx_sha256 != document.graph().sha256:
            findings.append(f"{entry.name} was built from another graph than the one that ships")
    return _gate("checksum", document, findings, ran="sha256 and crc32c of every file")


def _judge_repository(folder: Path, document: ExportManifest) -> Gate:
    try:
        findings = triton.find_contradictions(folder, document)
        named = json.loads((folder / PREPROCESS_NAME).read_bytes()).get("model")
    except (OSError, ValueError, AttributeError) as error:
        return _gate("repository", document, [str(error)], ran="config.pbtxt, manifest and ONNX compared")
    if named != (ships := document.graph().name):
        findings.append(f"{PREPROCESS_NAME} names the model {named}, {ships} is what ships")
    return _gate("repository", document, findings, ran="config.pbtxt, manifest and ONNX compared")


def _judge_bundle(
    folder: Path, document: ExportManifest, shards_uri: str, shards: ShardManifest | None, work: Path
) -> Gate:
    if shards is None:
        return _not_run("bundle", document, f"no shards in {storage.display(shards_uri)}; pass --shards")
    recorded = next((gate for gate in document.gates if gate.name == "bundle"), None)
    figures = recorded.figures if recorded else {}
    tried = work / "bundle"
    tried.mkdir()
    for name in (FP32_NAME, LABELS_NAME, PREPROCESS_NAME, document.graph().name):
        if not (tried / name).exists():
            (tried / name).symlink_to(folder / name)
    (tried / PREDICT_NAME).write_bytes(Path(bundle.__file__).with_name(PREDICT_NAME).read_bytes())
    score = figures.get("mean_score")
    gate, _ = run_step(
        bundle.check_bundle,
        tried,
        shards_uri,
        shards,
        model_name=FP32_NAME,
        expected_right=None,
        transformed_right=round(document.accuracy["fp32"] * document.test_samples),
        expected_score=score if isinstance(score, float) else None,
        data=DataSection(),
        threads=threads_per_rank(1),
    )
    return gate


def _judge_engine(
    uri: str,
    folder: Path,
    document: ExportManifest,
    entry: Any,
    shards_uri: str,
    shards: ShardManifest | None,
    work: Path,
) -> Gate:
    """Run an engine where its GPU is. Not executed so far: no GPU."""
    name = f"engine {entry.target}"
    try:
        engine_run.require_gpu(entry)
    except engine_run.NoGpu as error:
        return _not_run(name, document, error.given)
    if shards is None:
        return _not_run(name, document, f"no shards in {storage.display(shards_uri)}; pass --shards")
    import torch

    images, _ = run_step(_write_test_images, shards_uri, shards, folder / PREPROCESS_NAME, work)
    logits = work / "fp32.npy"
    run_step(proof.write_graph_logits, folder / FP32_NAME, images, logits, batch_size=16, threads=threads_per_rank(1))
    gate, _ = engine_run.judge_engine(folder / entry.name, entry, images, np.load(logits), work=work, run=_run_named)
    if gate.status == "passed":
        found = Verification(
            fingerprint=document.fingerprint,
            export_sha256=document.sha256,
            engine_sha256=entry.sha256,
            target=entry.target,
            device=torch.cuda.get_device_name(),
            gates=[gate],
        )
        storage.replace(storage.join(uri, VERIFIED_FOLDER, f"{entry.target}.json"), found.to_json())
    return gate


def _run_named(name: str, function: Callable[..., Any], *given: Any, **named: Any) -> Any:
    return run_step(function, *given, **named)[0]


def _write_test_images(shards_uri: str, shards: ShardManifest, preprocess: Path, work: Path) -> proof.TestImages:
    from trainer.data.transforms import EvaluationTransform

    said = Preprocessing.read(preprocess)
    mean, std = said.mean, said.std
    transform = EvaluationTransform(said.image_size, (mean[0], mean[1], mean[2]), (std[0], std[1], std[2]))
    return proof.write_test_images(shards_uri, shards, transform, DataSection(), work)


def _gate(name: str, document: ExportManifest, findings: list[str], *, ran: str) -> Gate:
    return Gate(
        name=name,
        precision=document.precision,
        status="failed" if findings else "passed",
        ran=ran,
        reason="; ".join(findings),
    )


def _not_run(name: str, document: ExportManifest, reason: str) -> Gate:
    return Gate(name=name, precision=document.precision, status="not run", ran=f"not run: {reason}", reason=reason)


def _what_is_left(document: ExportManifest) -> str:
    if document.verdict == "proven":
        return "its engines ran"
    targets = ", ".join(entry.target for entry in document.engines)
    return f"the same command on a GPU of {targets} runs the engine"


def _hash(uri: str) -> str:
    if storage.is_local(uri):
        return hash_file(storage.local_path(uri))
    import hashlib

    digest = hashlib.sha256()
    with storage.open_read(uri) as stream:
        while piece := stream.read(1 << 22):
            digest.update(piece)
    return digest.hexdigest()


@contextmanager
def _on_this_machine(uri: str, document: ExportManifest) -> Iterator[Path]:
    """Give the export's folder; that of a bucket is copied first, and the copy deleted in the end."""
    if storage.is_local(uri):
        yield storage.local_path(uri)
        return
    with tempfile.TemporaryDirectory(prefix="shardline-export-") as name:
        for entry in document.owned_files():
            _copy(entry, uri, Path(name))
        yield Path(name)


def _copy(entry: FileEntry, uri: str, folder: Path) -> None:
    path = folder / entry.name
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        with storage.open_read(entry.uri(uri)) as stream, path.open("wb") as target:
            while piece := stream.read(1 << 22):
                target.write(piece)
    except FileNotFoundError:
        return  # the checksums say so


if __name__ == "__main__":
    run_process(main)
