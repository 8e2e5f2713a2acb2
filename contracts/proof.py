"""The proof of an export: its manifest, and what `shardline verify` found on GPUs since.

The manifest is written once. What ran later lies beside it, verified/TARGET.json (`Verification`) for an engine and
verified/served.GPU.json for the ONNX file that Triton loads: it counts for that kind of GPU and for no other, where
another plan is built. Whether what would be served is what was proven is told by its hashes: `require_proven` compares
them.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable, Iterator

from contracts import storage
from contracts.artifacts import MANIFEST_NAME, ExportManifest, Verification
from contracts.errors import ConfigError, DataError
from contracts.output import MARK_NAME
from contracts.serving import REPOSITORY

VERIFIED_FOLDER = "verified"
SERVED = "served"
"""Gate of the ONNX file that Triton loads on a GPU's provider of ONNX Runtime; with `.` and the GPU's compute
capability the name of its verification."""
ELSEWHERE = "what is served, on"
"""First words for what ran on other kinds of GPU alone."""
_SERVED_NAME = re.compile(rf"{VERIFIED_FOLDER}/({SERVED}\.sm[0-9]{{2,3}})\.json")


def verification_uri(uri: str, target: str) -> str:
    """Return where the verification of a target's engine, or of what is served, lies, in the export at `uri`."""
    return storage.join(uri, VERIFIED_FOLDER, f"{target}.json")


def list_verifications(uri: str, document: ExportManifest) -> list[str]:
    """Return the targets of an export's verifications: of its engines, and of what it serves on each kind of GPU."""
    known = {entry.target for entry in document.engines}
    names = (f"{VERIFIED_FOLDER}/{found.name}" for found in storage.list_objects(storage.join(uri, VERIFIED_FOLDER)))
    targets = {name: name.removeprefix(f"{VERIFIED_FOLDER}/").removesuffix(".json") for name in names}
    return [target for name, target in targets.items() if target in known or _SERVED_NAME.fullmatch(name)]


def read_verifications(uri: str, document: ExportManifest) -> list[Verification]:
    """Return an export's verifications, without those that are damaged."""
    found: list[Verification] = []
    for target in list_verifications(uri, document):
        with contextlib.suppress(DataError):
            found.append(Verification.load(verification_uri(uri, target)))
    return found


def find_unproven(
    document: ExportManifest, verifications: Iterable[Verification], *, gpu: str | None = None
) -> list[str]:
    """Return what is not proven: targets of engines, what else no gate ran, or why nothing is proven.

    Args:
        document: The export's manifest.
        verifications: What ran since.
        gpu: Compute capability of the GPU that is to serve; None: what is served counts wherever it ran.
    """
    if contradiction := document.find_contradiction():
        return [contradiction]
    found = {one.target: one for one in verifications}
    # Engines of tries that failed have gates of the same name.
    passed = {(gate.name, gate.precision) for gate in document.gates if gate.status == "passed"}
    unproven: list[str] = []
    for entry in document.engines:
        name, one = f"engine {entry.target}", found.get(entry.target)
        if (name, entry.precision) not in passed and not (one and _completes(document, one, entry.sha256, name)):
            unproven.append(entry.target)
    # int8 that nothing has timed may be slower than fp16.
    speed = {(gate.name, gate.precision) for gate in document.gates if gate.name == "speed"}
    unproven += [f"speed of {precision}" for _, precision in speed - passed if precision == document.precision]
    proven = _find_proven_gpus(document, found.values())
    if not proven:
        return unproven + document.served.lacks
    if gpu not in (None, *proven):
        unproven.append(f"{ELSEWHERE} {gpu} (it ran on {', '.join(proven)})")
    return unproven


def describe_proof(document: ExportManifest, verifications: Iterable[Verification]) -> str:
    """Return what a proven export is proven on: kinds of GPU, and the devices that ran it since it was made."""
    found = {one.target: one for one in verifications}
    kinds = [
        gpu + (f" ({one.device})" if (one := found.get(f"{SERVED}.{gpu}")) is not None else "")
        for gpu in _find_proven_gpus(document, found.values())
    ]
    return f"proven only on {', '.join(kinds)}" if kinds else "proven"


def require_proven(uri: str, document: ExportManifest, *, allow_unproven: bool) -> None:
    """Refuse an export that is not proven, unless the configuration allows it (export.allow_unproven).

    Raises:
        ConfigError: It is not proven. A manifest that was changed is refused whatever the configuration allows, and so
            is a Triton repository with any other file than those of the manifest.
    """
    where = storage.display(uri)
    if contradiction := document.find_contradiction() or _find_change(uri, document):
        raise ConfigError(
            f"the export in {where} is damaged: {contradiction}",
            allowed="an export as its stage left it",
            todo="copy the whole folder again, or run the export stage again with --fresh",
        )
    # What ran when it was made needs no look beside it.
    if allow_unproven or not find_unproven(document, ()):
        return
    if unproven := find_unproven(document, read_verifications(uri, document)):
        raise ConfigError(
            f"the export in {where} is unproven: {', '.join(unproven)}",
            allowed="a served model and engines that ran on their GPU and passed, or export.allow_unproven: true",
            todo=f"run `shardline verify {where}` on a GPU of each target, export with export.runtime=tensorrt on the "
            "GPU that serves, or set export.allow_unproven",
        )


def find_strangers(uri: str, document: ExportManifest, folder: str = "") -> Iterator[str]:
    """Yield the names of files that the export did not write: Triton would serve a version that was added.

    Args:
        uri: The export.
        document: Its manifest.
        folder: Part of the export that is listed; empty: all of it.
    """
    known = {entry.name for entry in document.shipped_files()} | {MANIFEST_NAME, MARK_NAME}
    known |= {f"{VERIFIED_FOLDER}/{entry.target}.json" for entry in document.engines}
    for found in storage.list_objects(storage.join(uri, folder) if folder else uri):
        name = f"{folder}/{found.name}" if folder else found.name
        if name not in known and not _SERVED_NAME.fullmatch(name):
            yield name


def _find_change(uri: str, document: ExportManifest) -> str | None:
    """Return what the Triton repository holds that the manifest does not: all of it is read."""
    if (stranger := next(find_strangers(uri, document, REPOSITORY), None)) is not None:
        return f"{stranger} is not of this export"
    served = (entry for entry in document.shipped_files() if entry.name.startswith(f"{REPOSITORY}/"))
    return next((damage for entry in served if (damage := entry.damage(uri))), None)


def _find_proven_gpus(document: ExportManifest, verifications: Iterable[Verification]) -> list[str]:
    """Return the kinds of GPU on which what is served ran and passed, in the gates or since."""
    served = document.served
    found = {served.gpu} if served.gpu and not served.lacks else set()
    for one in verifications:
        name, _, gpu = one.target.partition(".")
        if name == SERVED and gpu and _completes(document, one, served.sha256, SERVED):
            found.add(gpu)
    return sorted(found)


def _completes(document: ExportManifest, found: Verification, sha256: str, gate: str) -> bool:
    """Whether a verification is of this file of this export, and has its gate, passed."""
    same = (found.engine_sha256, found.export_sha256) == (sha256, document.sha256)
    return same and any(one.name == gate for one in found.gates) and all(g.status == "passed" for g in found.gates)
