"""Looks at a finished export once more: every hash, the program, and on a GPU the engine and what Triton loads.

    python -m trainer.export.verify FOLDER [--shards URI] [--json]

Prints a line per gate, or all as JSON; exit code 0 when all is proven, 3 when nothing is wrong and part of it still
has to run on its GPU, 1 when a gate failed, which is named. Where checksums are wrong nothing else is looked at. On a
GPU that an engine was built for, a passed engine completes its proof: `verified/TARGET.json` is written beside the
manifest; an ONNX file that Triton loads is run by the provider that its configuration names, and completes it with
`verified/served.GPU.json`, for that kind of GPU alone. The export's predict.py is not executed. An engine is, since it
is machine code: only on its GPU, after all gates before it held, and from a copy with the manifest's sha256.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
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
from contracts.errors import (
    EXIT_CHECK_FAILED,
    EXIT_OK,
    EXIT_UNPROVEN,
    CheckFailed,
    ConfigError,
    DataError,
    ErrorDocument,
)
from contracts.process import end_with_parent, imports_done, run_process, thread_environment, threads_per_rank
from contracts.proof import (
    ELSEWHERE,
    SERVED,
    describe_proof,
    find_strangers,
    find_unproven,
    read_verifications,
    verification_uri,
)
from contracts.serving import TENSORRT
from trainer.export.engines import engine_gate, engine_open, engine_run, onnx_run
from trainer.export.gates import proof
from trainer.export.gates.arrays import StoredArrays
from trainer.export.processes import run_step
from trainer.export.targets import gpu_target
from trainer.predict.bundle import ExportedFiles, kind_of, shards_uri_of, write_inputs
from trainer.predict.program_gate import GATE_NAME, judge_program_again


def main(arguments: Sequence[str] | None = None) -> int:
    """Verify the folder that the arguments name; return the exit code."""
    end_with_parent()
    parser = argparse.ArgumentParser(prog="verify", allow_abbrev=False)
    parser.add_argument("folder")
    parser.add_argument("--shards", default=None)
    parser.add_argument("--json", action="store_true", help="print the gates as JSON")
    options = parser.parse_args(arguments)
    os.environ.update(thread_environment(threads_per_rank(1)))
    imports_done()
    try:
        uri = storage.normalise(options.folder)
        document = ExportManifest.load(uri)
        gates = verify(uri, document, None if options.shards is None else storage.normalise(options.shards))
        # On a GPU the question is whether this one may serve it.
        verifications = read_verifications(uri, document)
        unproven = find_unproven(document, verifications, gpu=gpu_target())
        proven = "" if unproven else describe_proof(document, verifications)
        words = _conclude(uri, document, gates, unproven, proven)
    except Exception as error:  # noqa: BLE001 - the entry of a process is where everything ends
        failure = ErrorDocument.of(error, traceback.format_exc())
        print(f"verify: error: {failure.message}", file=sys.stderr)
        return failure.exit_code
    if options.json:
        found = {"verdict": words, "unproven": unproven, "gates": [gate.model_dump(mode="json") for gate in gates]}
        print(json.dumps(found, indent=1))
    else:
        for gate in gates:
            print(f"{gate.status:13} {gate.name:14} {gate.precision:5} {gate.reason or gate.ran}")
        print(words)
    return EXIT_CHECK_FAILED if _failed(gates) else EXIT_UNPROVEN if unproven else EXIT_OK


def _conclude(uri: str, document: ExportManifest, gates: list[Gate], unproven: list[str], proven: str) -> str:
    """Return the last line: what all of it means."""
    if failed := _failed(gates):
        return f"{storage.display(uri)} is not what was proven; failed: {', '.join(failed)}"
    served = f"; serves {document.served.in_words()}" if document.served else ""
    if not unproven:
        return f"nothing is wrong; {proven}{served}"
    targets = [entry.target for entry in document.engines if entry.target in unproven]
    on_gpu = f"; the same command on a GPU of {', '.join(targets)} runs the engine" if targets else ""
    lacks = (*document.served.lacks, ELSEWHERE)
    if document.served.runtime != TENSORRT and any(one.startswith(lacks) for one in unproven):
        on_gpu += f"; on the GPU that serves, with onnxruntime-gpu, it runs {document.served.model}"
    return f"nothing is wrong; unproven as before: {', '.join(unproven)}{on_gpu}{served}"


def _failed(gates: list[Gate]) -> list[str]:
    return [gate.name for gate in gates if gate.status == "failed"]


def verify(uri: str, document: ExportManifest, shards_uri: str | None = None) -> list[Gate]:
    """Return the gates of a finished export: checksum, program, one for each engine, and one for what is served.

    Args:
        uri: Its folder.
        document: Its manifest.
        shards_uri: The shards that it was made from; unset: those of its line, where they are there.

    Raises:
        DataError: The shards are others.
    """
    on_gpu = [f"engine {entry.target}" for entry in document.engines]
    # A plan's engine says it; an ONNX file is another plan on each kind of GPU.
    served = document.served
    if served.runtime != TENSORRT and (served.lacks or gpu_target() not in (None, served.gpu)):
        on_gpu.append(SERVED)
    later = [*([] if kind_of(document.task) == "own" else [GATE_NAME]), *on_gpu]
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
        shipped = None if shards is None else ExportedFiles.of(folder, document, shards_uri, shards)
        if kind_of(document.task) != "own":
            gates.append(_judge_program(shipped, document, shards_uri, work))
        if wrong := ", ".join(_failed(gates)):
            return gates + [_not_run(name, document, f"{wrong} failed") for name in on_gpu]
        run = _OnGpu(uri, shipped, document, shards_uri, work)
        gates += map(run.judge_engine, document.engines)
        if SERVED in on_gpu and not _failed(gates):
            gates.append(run.judge_served())
    return gates


def _find_shards(uri: str, document: ExportManifest, given: str | None) -> tuple[str, ShardManifest | None]:
    shards_uri = given or shards_uri_of(uri, document)
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


def _judge_program(shipped: ExportedFiles | None, document: ExportManifest, shards_uri: str, work: Path) -> Gate:
    if shipped is None:
        return _not_run(GATE_NAME, document, _no_shards(shards_uri))
    return run_step(judge_program_again, shipped, document, work)[0]


def _no_shards(shards_uri: str) -> str:
    return f"no shards in {storage.display(shards_uri)}; pass --shards"


@dataclass(frozen=True)
class _OnGpu:
    """What of a finished export runs where its GPU is. Not executed on one so far.

    Args:
        uri: Its folder.
        shipped: The same on this machine; None: its shards are not there.
        document: Its manifest.
        shards_uri: Where the shards are looked for.
        work: A folder for files in between.
    """

    uri: str
    shipped: ExportedFiles | None
    document: ExportManifest
    shards_uri: str
    work: Path

    @cached_property
    def proof(self) -> tuple[StoredArrays, StoredArrays, proof.Ends | None]:
        """Inputs, the fp32 graph's outputs of them, and both at the ends of each dimension that varies."""
        shipped, document = self.shipped, self.document
        assert shipped is not None
        inputs, _ = run_step(write_inputs, shipped, document, self.work)
        graph = shipped.folder / shipped.graph
        reference = _write_outputs(graph, inputs, self.work / "fp32-outputs", batch_size=16)
        return inputs, reference, _find_ends(graph, document.signature, inputs, self.work)

    def judge_engine(self, entry: EngineEntry) -> Gate:
        """Run an engine."""
        name, document = f"engine {entry.target}", self.document
        try:
            engine_open.require_gpu(entry)
        except engine_open.NoGpu as error:
            return _not_run(name, document, error.given)
        if self.shipped is None:
            return _not_run(name, document, _no_shards(self.shards_uri))
        # A copy: between its checksum and its run the folder's own may become another.
        engine = self.work / f"{entry.target}.engine"
        if damage := entry.damage(storage.normalise(self.shipped.folder), copy=engine):
            return _gate(name, document, [f"{damage}: it was changed meanwhile"], ran="sha256")
        inputs, reference, ends = self.proof
        signature = document.signature
        try:
            gate, _ = engine_run.judge_engine(
                engine, entry, signature, inputs, reference, ends=ends, work=self.work, run=_run_named
            )
        except ConfigError as error:  # the builder is not here, or of another version
            return _not_run(name, document, error.given)
        except CheckFailed as error:
            return _gate(name, document, [str(error)], ran=entry.builder)
        self._record(gate, entry.target, entry.sha256)
        return gate

    def judge_served(self) -> Gate:
        """Run the ONNX file that Triton loads on this GPU, by its own configuration."""
        document, served, here = self.document, self.document.served, gpu_target()
        assert served is not None
        if here is None:
            return _not_run(SERVED, document, "this machine has no GPU")
        if self.shipped is None:
            return _not_run(SERVED, document, _no_shards(self.shards_uri))
        graph = self.work / "served.onnx"
        copies = {served.model: graph, served.config: onnx_run.config_of(graph)}
        for entry in document.shipped_files():
            damage = entry.name in copies and entry.damage(
                storage.normalise(self.shipped.folder), copy=copies[entry.name]
            )
            if damage:
                return _gate(SERVED, document, [f"{damage}: it was changed meanwhile"], ran="sha256")
        config = onnx_run.read_config(copies[served.config])
        # No other: what a provider that stands in shows is not what Triton does.
        wanted = onnx_run.list_providers(config)[:1]
        if (provider := _run_named("", onnx_run.find_provider, wanted)) is None:
            return _not_run(SERVED, document, f"onnxruntime here has no {', '.join(wanted)}")
        runner = onnx_run.OnnxRunner(None, provider, here, _run_named)
        batches = (1, config.dynamic_batching.preferred_batch_size[0], config.max_batch_size)
        (self.work / SERVED).mkdir()
        trials = replace(engine_gate.make_trials(*self.proof, batches, self.work / SERVED), refuse={})
        try:
            gate, _ = engine_gate.judge_engine(
                runner,
                graph,
                trials,
                document.signature,
                precision=document.precision,
                folder=self.work,
                name=SERVED,
                limits=runner.limits_of(document.precision),
            )
        except CheckFailed as error:
            return _gate(SERVED, document, [str(error)], ran=runner.name)
        self._record(gate, f"{SERVED}.{here}", served.sha256)
        return gate

    def _record(self, gate: Gate, target: str, sha256: str) -> None:
        """Write the verification of what has passed."""
        if gate.status == "passed":
            found = Verification(
                fingerprint=self.document.fingerprint,
                export_sha256=self.document.sha256,
                engine_sha256=sha256,
                target=target,
                device=_device_name(),
                gates=[gate],
            )
            storage.replace(verification_uri(self.uri, target), found.to_json())


def _write_outputs(graph: Path, inputs: StoredArrays, folder: Path, *, batch_size: int) -> StoredArrays:
    threads = threads_per_rank(1)
    return run_step(proof.write_graph_outputs, graph, inputs, folder, batch_size=batch_size, threads=threads)[0]


def _find_ends(graph: Path, signature: Signature, inputs: StoredArrays, work: Path) -> proof.Ends | None:
    if not signature.dimensions:
        return None
    (given, beyond), _ = run_step(proof.write_end_inputs, signature, inputs, work)
    outputs = _write_outputs(graph, given, work / "ends-outputs", batch_size=proof.END_SAMPLES)
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
