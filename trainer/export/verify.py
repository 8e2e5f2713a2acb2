"""Looks at a finished export once more: every hash, the bundle, and on its GPU the engine.

    python -m trainer.export.verify FOLDER [--shards URI]

Prints a line for each gate; exit code 0, or 1 when one failed, which is named. Where checksums are wrong nothing else
is looked at. On a GPU that an engine was built for, a passed engine completes its proof: `verified/TARGET.json` is
written beside the manifest. The export's predict.py is not executed. An engine is, since it is machine code: only on
its GPU, after all gates before it held, and from a copy with the manifest's sha256.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from contracts import storage
from contracts.artifacts import (
    EngineEntry,
    ExportManifest,
    Gate,
    ShardManifest,
    Verification,
)
from contracts.artifacts.signature import Signature
from contracts.errors import EXIT_CHECK_FAILED, EXIT_OK, CheckFailed, ConfigError, DataError, ErrorDocument
from contracts.process import end_with_parent, imports_done, run_process, thread_environment, threads_per_rank
from contracts.proof import find_strangers, find_unproven, verification_uri
from trainer.export.bundle.bundles import bundle_of
from trainer.export.bundle.shipped import Shipped
from trainer.export.engines import engine_open, engine_run
from trainer.export.gates import proof
from trainer.export.gates.arrays import StoredArrays
from trainer.export.processes import run_step


def main(arguments: Sequence[str] | None = None) -> int:
    """Verify the folder that the arguments name; return the exit code."""
    end_with_parent()
    parser = argparse.ArgumentParser(prog="verify", allow_abbrev=False)
    parser.add_argument("folder")
    parser.add_argument("--shards", default=None)
    options = parser.parse_args(arguments)
    os.environ.update(thread_environment(threads_per_rank(1)))
    imports_done()
    try:
        uri = storage.normalise(options.folder)
        document = ExportManifest.load(uri)
        gates = verify(uri, document, None if options.shards is None else storage.normalise(options.shards))
        words = _conclude(uri, document, gates)
    except Exception as error:  # noqa: BLE001 - the entry of a process is where everything ends
        failure = ErrorDocument.of(error, traceback.format_exc())
        print(f"verify: error: {failure.message}", file=sys.stderr)
        return failure.exit_code
    for gate in gates:
        print(f"{gate.status:13} {gate.name:14} {gate.precision:5} {gate.reason or gate.ran}")
    print(words)
    return EXIT_CHECK_FAILED if _failed(gates) else EXIT_OK


def _conclude(uri: str, document: ExportManifest, gates: list[Gate]) -> str:
    """Return the last line: what all of it means."""
    if failed := _failed(gates):
        return f"{storage.display(uri)} is not what was proven; failed: {', '.join(failed)}"
    served = f"; serves {document.served.in_words()}" if document.served else ""
    unproven = find_unproven(uri, document)
    if not unproven:
        return f"nothing is wrong; proven{served}"
    targets = [entry.target for entry in document.engines if entry.target in unproven]
    on_gpu = f"; the same command on a GPU of {', '.join(targets)} runs the engine" if targets else ""
    return f"nothing is wrong; unproven as before: {', '.join(unproven)}{on_gpu}{served}"


def _failed(gates: list[Gate]) -> list[str]:
    return [gate.name for gate in gates if gate.status == "failed"]


def verify(uri: str, document: ExportManifest, shards_uri: str | None = None) -> list[Gate]:
    """Return the gates of a finished export: checksum, bundle, and one for each engine.

    Args:
        uri: Its folder.
        document: Its manifest.
        shards_uri: The shards that it was made from; unset: those of its line, where they are there.

    Raises:
        DataError: The shards are others.
    """
    later = ["bundle", *(f"engine {entry.target}" for entry in document.engines)]
    with tempfile.TemporaryDirectory(prefix="shardline-verify-") as name:
        work = Path(name)
        # Of an export in a bucket what was compared is what runs.
        copies = None if storage.is_local(uri) else work / "export"
        gates = [_judge_checksums(uri, document, copies)]
        if _failed(gates):
            # Neither files nor manifest are what was made: nothing to load, and no place to look for shards.
            return gates + [_not_run(name, document, "checksum failed") for name in later]
        folder = copies or storage.local_path(uri)
        shards_uri, shards = _find_shards(uri, document, shards_uri)
        fp32 = document.graph("fp32").name
        shipped = None if shards is None else Shipped(folder, fp32, shards_uri, shards, threads_per_rank(1))
        gates.append(_judge_bundle(shipped, document, shards_uri, work))
        wrong = ", ".join(_failed(gates))
        for entry in document.engines:
            if wrong:
                gates.append(_not_run(f"engine {entry.target}", document, f"{wrong} failed"))
            else:
                gates.append(_judge_engine(uri, shipped, document, entry, shards_uri, work))
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


def _judge_checksums(uri: str, document: ExportManifest, copies: Path | None) -> Gate:
    """Read every file once, and write what was read below `copies`."""
    ran = "the manifest's seal; size, crc32c and sha256 of every file, and that there is no other"
    if contradiction := document.find_contradiction():
        return _gate("checksum", document, [contradiction], ran=ran)
    try:
        findings = [f"{name} is not of this export" for name in find_strangers(uri, document)]
    except OSError as error:
        findings = [f"{error.filename} cannot be looked at: {error.strerror}"]
    for entry in document.shipped_files():
        copy = None if copies is None else copies / entry.name
        if copy is not None:
            copy.parent.mkdir(parents=True, exist_ok=True)
        if damage := entry.damage(uri, copy=copy):
            findings.append(damage)
    for engine in document.engines:
        if engine.onnx_sha256 != document.graph().sha256:
            findings.append(f"{engine.name} was built from another graph than the one that ships")
    return _gate("checksum", document, findings, ran=ran)


def _judge_bundle(shipped: Shipped | None, document: ExportManifest, shards_uri: str, work: Path) -> Gate:
    if shipped is None:
        return _not_run("bundle", document, _no_shards(shards_uri))
    gate, _ = run_step(bundle_of(document.task).check_again, shipped, document, work)
    return gate


def _no_shards(shards_uri: str) -> str:
    return f"no shards in {storage.display(shards_uri)}; pass --shards"


def _judge_engine(
    uri: str, shipped: Shipped | None, document: ExportManifest, entry: EngineEntry, shards_uri: str, work: Path
) -> Gate:
    """Run an engine where its GPU is. Not executed so far: no GPU."""
    name = f"engine {entry.target}"
    try:
        engine_open.require_gpu(entry)
    except engine_open.NoGpu as error:
        return _not_run(name, document, error.given)
    if shipped is None:
        return _not_run(name, document, _no_shards(shards_uri))
    # A copy: between its checksum and its run the folder's own may become another.
    engine = work / f"{entry.target}.engine"
    if damage := entry.damage(storage.normalise(shipped.folder), copy=engine):
        return _gate(name, document, [f"{damage}: it was changed meanwhile"], ran="sha256")
    read = bundle_of(document.task).read_inputs
    inputs, _ = run_step(read, shipped, document, work)
    reference, _ = run_step(
        proof.write_graph_outputs,
        shipped.folder / shipped.model_name,
        inputs,
        work / "fp32-outputs",
        batch_size=16,
        threads=shipped.threads,
    )
    signature = document.model_signature
    ends = _find_ends(shipped.folder / shipped.model_name, signature, inputs, work)
    try:
        gate, _ = engine_run.judge_engine(
            engine, entry, signature, inputs, reference, ends=ends, work=work, run=_run_named
        )
    except ConfigError as error:  # the builder is not here, or of another version
        return _not_run(name, document, error.given)
    except CheckFailed as error:
        return _gate(name, document, [str(error)], ran=entry.builder)
    if gate.status == "passed":
        found = Verification(
            fingerprint=document.fingerprint,
            export_sha256=document.sha256,
            engine_sha256=entry.sha256,
            target=entry.target,
            device=_device_name(),
            gates=[gate],
        )
        storage.replace(verification_uri(uri, entry.target), found.to_json())
    return gate


def _find_ends(graph: Path, signature: Signature, inputs: StoredArrays, work: Path) -> proof.Ends | None:
    if not signature.dimensions:
        return None
    (given, beyond), _ = run_step(proof.write_end_inputs, signature, inputs, work)
    outputs, _ = run_step(
        proof.write_graph_outputs,
        graph,
        given,
        work / "ends-outputs",
        batch_size=proof.END_SAMPLES,
        threads=threads_per_rank(1),
    )
    return proof.Ends(given, outputs, beyond)


def _device_name() -> str:
    import torch

    return torch.cuda.get_device_name()


def _run_named(name: str, function: Callable[..., Any], *given: Any, **named: Any) -> Any:
    return run_step(function, *given, **named)[0]


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


if __name__ == "__main__":
    run_process(main)
