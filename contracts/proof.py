"""How far an export is proven: what its manifest says, and what `shardline verify` found on GPUs since.

The manifest is written once. What ran later lies beside it, verified/TARGET.json (`Verification`).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from contracts import storage
from contracts.artifacts import EngineEntry, ExportManifest, Verification
from contracts.errors import ConfigError, DataError

VERIFIED_FOLDER = "verified"


def verification_uri(uri: str, target: str) -> str:
    """Return where the verification of a target's engine lies, in the export at `uri`."""
    return storage.join(uri, VERIFIED_FOLDER, f"{target}.json")


def verdict_of(uri: str, document: ExportManifest) -> Literal["proven", "unproven"]:
    """Return whether every engine of an export ran on its GPU and passed.

    Args:
        uri: The export's folder; its files are not looked at.
        document: Its manifest.
    """
    return "unproven" if find_unproven(uri, document) else "proven"


def find_unproven(uri: str, document: ExportManifest) -> list[str]:
    """Return what is not proven: the targets of engines that nothing proves, or why nothing is."""
    wanted = (entry.target for entry in document.engines if not _ran_when_built(document, entry))
    return find_unproven_targets(document, (found for target in wanted if (found := _read(uri, target)) is not None))


def find_unproven_targets(document: ExportManifest, verifications: Iterable[Verification]) -> list[str]:
    """Return the same as `find_unproven`, from verifications that were read already."""
    if contradiction := document.find_contradiction():
        return [contradiction]
    if not document.engines:
        return ["no engine"]
    found = {verification.target: verification for verification in verifications}
    return [entry.target for entry in document.engines if not _is_proven(document, entry, found.get(entry.target))]


def require_proven(uri: str, document: ExportManifest, *, allow_unproven: bool) -> None:
    """Refuse an export that is not proven, unless the configuration allows it (export.allow_unproven).

    Raises:
        ConfigError: It is not proven. A manifest that was changed is refused whatever the configuration allows.
    """
    where = storage.display(uri)
    if contradiction := document.find_contradiction():
        raise ConfigError(
            f"the export in {where} is damaged: {contradiction}",
            allowed="an export as its stage left it",
            todo="copy the whole folder again, or run the export stage again with --fresh",
        )
    if not allow_unproven and (unproven := find_unproven(uri, document)):
        raise ConfigError(
            f"the export in {where} is unproven: {', '.join(unproven)}",
            allowed="engines that ran on their GPU and passed, or export.allow_unproven: true",
            todo=f"run `shardline verify {where}` on a GPU of each target, or set export.allow_unproven",
        )


def _ran_when_built(document: ExportManifest, entry: EngineEntry) -> bool:
    name = f"engine {entry.target}"
    return any(gate.name == name and gate.status == "passed" for gate in document.gates)


def _read(uri: str, target: str) -> Verification | None:
    try:
        return Verification.load(verification_uri(uri, target))
    except DataError:
        return None  # none, or a damaged one


def _is_proven(document: ExportManifest, entry: EngineEntry, found: Verification | None) -> bool:
    if _ran_when_built(document, entry):
        return True
    if found is None:
        return False
    same = (found.target, found.engine_sha256) == (entry.target, entry.sha256)
    ran = any(gate.name == f"engine {entry.target}" for gate in found.gates)
    return same and found.export_sha256 == document.sha256 and ran and all(g.status == "passed" for g in found.gates)
