"""How far an export is proven: what its manifest says, and what `shardline verify` found on GPUs since.

The manifest is written once. What ran later lies beside it, verified/TARGET.json (`Verification`) for an engine and
verified/served.json for the ONNX file that Triton loads. Whether what would be served is what was proven is told by its
hashes: `require_proven` compares them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from contracts import storage
from contracts.artifacts import MANIFEST_NAME, EngineEntry, ExportManifest, Verification
from contracts.errors import ConfigError, DataError
from contracts.output import MARK_NAME
from contracts.serving import REPOSITORY

VERIFIED_FOLDER = "verified"
SERVED = "served"
"""Gate of the ONNX file that Triton loads on a GPU's provider of ONNX Runtime, and what its verification is called."""


def verification_uri(uri: str, target: str) -> str:
    """Return where the verification of a target's engine, or of what is served, lies, in the export at `uri`."""
    return storage.join(uri, VERIFIED_FOLDER, f"{target}.json")


def find_unproven(uri: str, document: ExportManifest) -> list[str]:
    """Return what is not proven: targets of engines, what else no gate ran, or why nothing is proven."""
    wanted = [entry.target for entry in document.engines if not _ran_when_built(document, entry)]
    wanted += [SERVED] if document.served.lacks else []
    return find_unproven_targets(document, (found for target in wanted if (found := _read(uri, target)) is not None))


def find_unproven_targets(document: ExportManifest, verifications: Iterable[Verification]) -> list[str]:
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
    served = document.served
    return engines + ([] if _completes(document, found.get(SERVED), SERVED, served.sha256, SERVED) else served.lacks)


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
    known |= {f"{VERIFIED_FOLDER}/{target}.json" for target in (*(one.target for one in document.engines), SERVED)}
    for found in storage.list_objects(storage.join(uri, folder) if folder else uri):
        name = f"{folder}/{found.name}" if folder else found.name
        if name not in known:
            yield name


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
