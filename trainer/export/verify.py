"""Verifies a finished export again: every hash, the program, and on the engine's GPU the engine.

    python -m trainer.export.verify FOLDER [--shards URI] [--json]

Prints a line per gate, or JSON, and the verdict. Exit code 0: nothing is wrong, and the served file is proven; 3:
nothing is wrong, and it never ran on a GPU; 1: a gate failed. An engine that passes on its GPU completes the proof by
`verified/TARGET.json`. Files are copied first, and the copies are hashed and run. The export's own
predict.py is never executed; an engine is machine code, and runs after all other gates.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path

import numpy as np

from contracts import storage
from contracts.artifacts import MANIFEST_NAME, EngineEntry, ExportManifest, Gate, ShardManifest, Verification
from contracts.artifacts.export import CHECKSUM, PARITY, PROGRAM, Status
from contracts.artifacts.signature import BATCH, Signature
from contracts.errors import (
    EXIT_CHECK_FAILED,
    EXIT_OK,
    EXIT_UNPROVEN,
    ConfigError,
    DataError,
    ErrorDocument,
    ShardlineError,
    TryAgain,
)
from contracts.process import end_with_parent, imports_done, run_process, thread_environment, threads_per_rank
from contracts.proof import NEVER_PROVEN, proven_on, read_verification, unexpected_files, verdict, verification_uri
from trainer.export.arrays import Arrays
from trainer.export.compare import ModelFile, judge_parity, make_trials
from trainer.export.engine import builder_of, device_name, open_engine, open_graph
from trainer.export.processes import run_step
from trainer.export.runtime import describe_target, gpu_target
from trainer.export.samples import end_inputs
from trainer.predict.bundle import PROGRAM_NAME, ExportedFiles, kind_of, read_inputs, shards_uri_of
from trainer.predict.program_gate import judge_program_again

_NO_SHARDS = "its shards are not beside it; pass --shards"
# Random batches for an engine of an own task, whose real inputs need the task's code.
_NOISE_BATCHES = 8


def main(arguments: Sequence[str] | None = None) -> int:
    """Verify the folder that the arguments name; return the exit code."""
    end_with_parent()
    parser = argparse.ArgumentParser(prog="verify", allow_abbrev=False)
    parser.add_argument("folder")
    parser.add_argument("--shards")
    parser.add_argument("--json", action="store_true", help="print the gates as JSON")
    options = parser.parse_args(arguments)
    os.environ.update(thread_environment(threads_per_rank(1)))
    imports_done()
    try:
        uri = storage.normalise(options.folder)
        document = ExportManifest.load(uri)
        gates = verify(uri, document, None if options.shards is None else storage.normalise(options.shards))
    except Exception as error:  # noqa: BLE001 - the entry of a process is where everything ends
        failure = ErrorDocument.of(error)
        print(f"verify: error: {failure.message}", file=sys.stderr)
        return failure.exit_code
    verification = read_verification(uri, document)
    is_proven = bool(proven_on(document, verification))
    failed = ", ".join(gate.name for gate in gates if gate.status == "failed")
    message = f"nothing is wrong; {verdict(document, verification)}"
    if failed == CHECKSUM:
        message = f"{storage.display(uri)} differs from the export that was published"
    elif failed:
        message = f"{storage.display(uri)} failed: {failed}"
    elif not is_proven:
        engine = document.engine
        gpu = "" if engine is None else describe_target(engine.target)
        message += f"; {NEVER_PROVEN}" if engine is None else f"; the same command on a GPU of {gpu} runs {engine.name}"
    if options.json:
        print(json.dumps({"verdict": message, "gates": [gate.model_dump(mode="json") for gate in gates]}, indent=1))
    else:
        for gate in gates:
            print(f"{gate.status:8} {gate.name:8} {gate.file:30} {gate.reason or gate.ran} {gate.device}".rstrip())
        print(message)
    return EXIT_CHECK_FAILED if failed else EXIT_OK if is_proven else EXIT_UNPROVEN


def verify(uri: str, document: ExportManifest, shards_uri: str | None = None) -> list[Gate]:
    """Return the gates of a finished export, up to the first failure: checksum, program, and parity of its engine.

    Args:
        uri: Its folder.
        document: Its manifest.
        shards_uri: The shards that it was made from; None: those of its line, if they exist.

    Raises:
        DataError: The shards have another fingerprint.
    """
    with tempfile.TemporaryDirectory(prefix="shardline-verify-") as work:
        copy = Path(work, "export")
        gates = [_judge_checksums(uri, document, copy)]
        if gates[0].status == "failed":
            return gates
        is_own = kind_of(document.task) == "own"
        files = None if is_own else _find_files(uri, document, shards_uri, copy)
        if not is_own:
            if files is None:
                gates.append(_gate(PROGRAM, document, PROGRAM_NAME, "not run", _NO_SHARDS))
            else:
                gates.append(run_step(judge_program_again, files, document, Path(work))[0])
        if (engine := document.engine) is not None and gates[-1].status != "failed":
            gates.append(_judge_engine(document, engine, copy, files))
            if gates[-1].status != "not run":
                verification = Verification(
                    fingerprint=document.fingerprint,
                    export_sha256=document.sha256,
                    engine_sha256=engine.sha256,
                    target=engine.target,
                    gates=[gates[-1]],
                )
                storage.replace(verification_uri(uri, engine), verification.to_json())
    return gates


def _judge_checksums(uri: str, document: ExportManifest, copy: Path) -> Gate:
    """Return the gate `checksum`: seal, size and hash of each file, and no extra file; copy the files."""
    if inconsistency := document.inconsistency():
        return _gate(CHECKSUM, document, MANIFEST_NAME, "failed", inconsistency)
    findings = [f"{name} is not of this export" for name in unexpected_files(uri, document)]
    for entry in document.shipped_files():
        target = copy / entry.name
        target.parent.mkdir(parents=True, exist_ok=True)
        if damage := entry.damage(uri, copy=target):
            findings.append(damage)
    return _gate(CHECKSUM, document, MANIFEST_NAME, "failed" if findings else "passed", "; ".join(findings))


def _find_files(uri: str, document: ExportManifest, shards_uri: str | None, copy: Path) -> ExportedFiles | None:
    """Return the export's files with the shards that it was made from; None: its line has no such shards."""
    place = shards_uri or shards_uri_of(uri, document)
    try:
        shards = ShardManifest.load(place)
    except DataError:
        if shards_uri is not None:
            raise
        return None
    if shards.fingerprint != document.shards_fingerprint:
        raise DataError(
            f"shards {shards.fingerprint}, but the export was made from shards {document.shards_fingerprint}",
            allowed="the shards that it was made from",
            todo="pass their URI as --shards",
        )
    return ExportedFiles.of(copy, document, place, shards)


def _judge_engine(document: ExportManifest, engine: EngineEntry, copy: Path, files: ExportedFiles | None) -> Gate:
    """Return the gate `parity` of the engine, in its own process, since a fault in machine code may crash it."""
    if (gpu := gpu_target()) != engine.target:
        actual = "no GPU" if gpu is None else f"a GPU of {describe_target(gpu)}"
        reason = f"this machine has {actual}, the engine is for {describe_target(engine.target)}"
    elif files is None and kind_of(document.task) != "own":
        reason = _NO_SHARDS
    else:
        try:
            return run_step(judge_engine, copy, document, files)[0]
        except ConfigError as error:  # the builder is missing or has another version
            reason = error.given
        except TryAgain:
            raise
        except DataError as error:
            if files is not None:
                raise
            # Own tasks run on random inputs, which may give outputs that are not finite.
            reason = error.given
        except ShardlineError as error:  # it does not load, does not run, or its process crashed
            return _gate(PARITY, document, engine.name, "failed", str(error))
    return _gate(PARITY, document, engine.name, "not run", reason)


def judge_engine(folder: Path, document: ExportManifest, files: ExportedFiles | None) -> Gate:
    """Compare the engine in `folder` with the fp32 graph in ONNX Runtime, on the samples of the export's gates.

    Raises:
        ConfigError: The engine cannot be opened on this machine.
    """
    engine, signature = document.engine, document.signature
    assert engine is not None
    run = open_engine(folder / engine.name, builder_of(engine), signature)
    reference = open_graph(folder / document.graph("fp32").name, threads=threads_per_rank(1))
    batches: Iterator[Arrays]
    if files is None:
        batches = (make_noise(signature, engine.opt_batch, seed) for seed in range(_NOISE_BATCHES))
    else:
        batches = read_inputs(files, range(files.samples), engine.opt_batch)
    first = next(batches)
    proof = ((batch, reference(batch)) for batch in chain([first], batches))
    ends = ((name, batch, reference(batch)) for name, batch in end_inputs(signature, first))
    model_file = ModelFile(document.precision, engine.name, engine.builder, device_name())
    return judge_parity(run, make_trials(proof, ends, (engine.opt_batch, engine.max_batch)), signature, model_file)


def make_noise(signature: Signature, samples: int, seed: int) -> Arrays:
    """Return inputs of the signature's types; whole numbers are 1, which every vocabulary and mask has."""
    random = np.random.default_rng(seed)
    sizes = {BATCH: samples, **{name: dimension.opt for name, dimension in signature.dimensions.items()}}
    arrays: Arrays = {}
    for name, spec in signature.inputs.items():
        shape = [sizes[size] if isinstance(size, str) else size for size in spec.shape]
        noise = random.standard_normal(shape) if spec.dtype == "float32" else np.ones(shape)
        arrays[name] = noise.astype(spec.dtype)
    return arrays


def _gate(name: str, document: ExportManifest, file: str, status: Status, reason: str) -> Gate:
    return Gate(name=name, precision=document.precision, file=file, status=status, ran="", reason=reason)


if __name__ == "__main__":
    run_process(main)
