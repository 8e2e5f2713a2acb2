"""How far an export is proven: what its manifest says, and what `shardline verify` found on GPUs since.

The manifest is written once. What ran later lies beside it, verified/TARGET.json (`Verification`) for an engine and
verified/served.GPU.json for the ONNX file that Triton loads: it counts for that kind of GPU and for no other, where
another plan is built. Whether what would be served is what was proven is told by its hashes: `require_proven` compares
them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from contracts import storage
from contracts.artifacts import MANIFEST_NAME, EngineEntry, ExportManifest, Verification
from contracts.errors import ConfigError, DataError
from contracts.output import MARK_NAME
from contracts.serving import REPOSITORY

VERIFIED_FOLDER = "verified"
SERVED = "served"
"""Gate of the ONNX file that Triton loads on a GPU's provider of ONNX Runtime; with `.` and the GPU's compute
capability the name of its verification."""
ELSEWHERE = "what is served, on"
"""Begin of the words for what ran on other kinds of GPU alone."""
_SERVED_NAME = re.compile(rf"{VERIFIED_FOLDER}/({SERVED}\.sm[0-9]{{2,3}})\.json")


def verification_uri(uri: str, target: str) -> str:
    """Return where the verification of a target's engine, or of what is served, lies, in the export at `uri`."""
    return storage.join(uri, VERIFIED_FOLDER, f"{target}.json")


def list_verifications(uri: str, document: ExportManifest) -> list[str]:
    """Return the targets of an export's verifications: of its engines, and of what it serves on each kind of GPU."""
    known = {entry.target for entry in document.engines}
    names = (found.name for found in storage.list_objects(storage.join(uri, VERIFIED_FOLDER)))
    targets = [name.removesuffix(".json") for name in names if name.endswith(".json")]
    return [target for target in targets if target in known or _SERVED_NAME.fullmatch(_name_of(target))]


def read_verifications(uri: str, document: ExportManifest) -> list[Verification]:
    """Return an export's verifications, without those that are damaged."""
    found = (_read(uri, target) for target in list_verifications(uri, document))
    return [one for one in found if one is not None]


def find_unproven(uri: str, document: ExportManifest, *, gpu: str | None = None) -> list[str]:
    """Return what is not proven: targets of engines, what else no gate ran, or why nothing is proven.

    Args:
        uri: The export.
        document: Its manifest.
        gpu: Compute capability of the GPU that is to serve; None: what is served counts wherever it ran.
    """
    # What ran when it was made needs no look beside it.
    unproven = find_unproven_targets(document, (), gpu=gpu)
    return unproven and find_unproven_targets(document, read_verifications(uri, document), gpu=gpu)


def describe_proof(document: ExportManifest, verifications: Iterable[Verification]) -> str:
    """Return what a proven export is proven on: kinds of GPU, and the devices that ran it since it was made."""
    found = {one.target: one for one in verifications}
    kinds = list_proven(document, found.values())
    devices = {gpu: f" ({one.device})" for gpu in kinds if (one := found.get(f"{SERVED}.{gpu}")) is not None}
    return "proven" + (f" only on {', '.join(gpu + devices.get(gpu, '') for gpu in kinds)}" if kinds else "")


def find_unproven_targets(
    document: ExportManifest, verifications: Iterable[Verification], *, gpu: str | None = None
) -> list[str]:
    """Return the same as `find_unproven`, from verifications that were read already."""
    if contradiction := document.find_contradiction():
        return [contradiction]
    found = {verification.target: verification for verification in verifications}
    engines = [entry.target for entry in document.engines if not _is_proven(document, entry, found.get(entry.target))]
    # int8 that nothing has timed may be slower than fp16.
    engines += [
        f"{gate.name} of {gate.precision}"
        for gate in document.gates
        if gate.name == "speed" and gate.precision == document.precision and gate.status != "passed"
    ]
    proven = list_proven(document, found.values())
    if gpu in proven or (gpu is None and (proven or not document.served.lacks)):
        return engines
    return engines + (document.served.lacks if not proven else [f"{ELSEWHERE} {gpu} (it ran on {', '.join(proven)})"])


def list_proven(document: ExportManifest, verifications: Iterable[Verification]) -> list[str]:
    """Return the kinds of GPU on which what is served ran and passed, in the gates or since, by compute capability."""
    served = document.served
    found = {served.gpu} if served.gpu and not served.lacks else set()
    for one in verifications:
        name, _, gpu = one.target.partition(".")
        if name == SERVED and gpu and _completes(document, one, one.target, served.sha256, SERVED):
            found.add(gpu)
    return sorted(found)


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
    if not allow_unproven and (unproven := find_unproven(uri, document)):
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
    known |= {_name_of(entry.target) for entry in document.engines}
    for found in storage.list_objects(storage.join(uri, folder) if folder else uri):
        name = f"{folder}/{found.name}" if folder else found.name
        if name not in known and not _SERVED_NAME.fullmatch(name):
            yield name


def _name_of(target: str) -> str:
    return f"{VERIFIED_FOLDER}/{target}.json"


def _find_change(uri: str, document: ExportManifest) -> str | None:
    """Return what the Triton repository holds that the manifest does not: all of it is read."""
    if (stranger := next(find_strangers(uri, document, REPOSITORY), None)) is not None:
        return f"{stranger} is not of this export"
    served = (entry for entry in document.shipped_files() if entry.name.startswith(f"{REPOSITORY}/"))
    return next((damage for entry in served if (damage := entry.damage(uri))), None)


def _ran_when_built(document: ExportManifest, entry: EngineEntry) -> bool:
    # Engines of tries that failed have gates of the same name.
    wanted = (f"engine {entry.target}", entry.precision, "passed")
    return any((gate.name, gate.precision, gate.status) == wanted for gate in document.gates)


def _read(uri: str, target: str) -> Verification | None:
    try:
        return Verification.load(verification_uri(uri, target))
    except DataError:
        return None  # none, or a damaged one


def _is_proven(document: ExportManifest, entry: EngineEntry, found: Verification | None) -> bool:
    gate = f"engine {entry.target}"
    return _ran_when_built(document, entry) or _completes(document, found, entry.target, entry.sha256, gate)


def _completes(document: ExportManifest, found: Verification | None, target: str, sha256: str, gate: str) -> bool:
    """Whether a verification is of this file of this export, and has its gate, passed."""
    if found is None:
        return False
    same = (found.target, found.engine_sha256, found.export_sha256) == (target, sha256, document.sha256)
    return same and any(one.name == gate for one in found.gates) and all(g.status == "passed" for g in found.gates)
