"""The proof of an export: its manifest, and the verification of its engine on a GPU since.

The manifest is written once; `shardline verify` writes verified/TARGET.json beside it. Hashes tell whether the served
file is the one that ran (`proven_on`).
"""

from __future__ import annotations

from collections.abc import Iterator

from contracts import storage
from contracts.artifacts import MANIFEST_NAME, EngineEntry, ExportManifest, Gate, Verification
from contracts.artifacts.export import PARITY
from contracts.errors import ConfigError, DataError
from contracts.output import MARK_NAME

VERIFIED_FOLDER = "verified"
UNPROVEN = "unproven: not run on a GPU"
NEVER_PROVEN = "export with export.runtime=tensorrt on the GPU that serves (an ONNX file is not what runs there)"


def verification_uri(uri: str, engine: EngineEntry) -> str:
    """Return the URI of the verification of an export's engine."""
    return storage.join(uri, _verification_name(engine))


def _verification_name(engine: EngineEntry) -> str:
    return f"{VERIFIED_FOLDER}/{engine.target}.json"


def read_verification(uri: str, document: ExportManifest) -> Verification | None:
    """Return the verification of an export's engine; None if it is missing or unreadable."""
    if document.engine is None:
        return None
    try:
        return Verification.load(verification_uri(uri, document.engine))
    except DataError:
        return None


def proven_on(document: ExportManifest, verification: Verification | None = None) -> str:
    """Return the GPU on which the served file ran and passed its gates; empty: none.

    Args:
        document: The export's manifest.
        verification: Of its engine.
    """
    if document.inconsistency():
        return ""
    engine = document.engine
    hashes = None if verification is None else (verification.export_sha256, verification.engine_sha256)
    if verification is not None and engine is not None and hashes == (document.sha256, engine.sha256):
        # The verification is newer than the manifest's gates, and replaces them even if it failed.
        return _passed_on(verification.gates, document.served)
    return _passed_on(document.gates, document.served)


def _passed_on(gates: list[Gate], file: str) -> str:
    on_gpu = [gate for gate in gates if gate.device and gate.file == file]
    passed = all(gate.status == "passed" for gate in on_gpu) and any(gate.name == PARITY for gate in on_gpu)
    return on_gpu[0].device if passed else ""


def verdict(document: ExportManifest, verification: Verification | None = None) -> str:
    """Return the verdict in words: `proven on NVIDIA L4 (sm89)`, or why it is unproven."""
    if inconsistency := document.inconsistency():
        return f"unproven: {inconsistency}"
    device = proven_on(document, verification)
    return f"proven on {device}" if device else UNPROVEN


def require_proven(uri: str, document: ExportManifest, *, allow_unproven: bool) -> None:
    """Refuse an export that is not proven, unless the configuration allows it (export.allow_unproven).

    Raises:
        ConfigError: It is not proven. A manifest or a file that was changed, or one more file, is refused whatever the
            configuration allows.
    """
    shown = storage.display(uri)
    if change := document.inconsistency() or _find_change(uri, document):
        raise ConfigError(
            f"the export in {shown} is damaged: {change}",
            allowed="an export as its stage left it",
            todo="copy the whole folder again, or run the export stage again with --fresh",
        )
    if allow_unproven or proven_on(document, read_verification(uri, document)):
        return
    engine = document.engine
    raise ConfigError(
        f"the export in {shown} is {UNPROVEN}",
        allowed="a served model that ran on its GPU and passed its gates, or export.allow_unproven: true",
        todo=f"{NEVER_PROVEN if engine is None else f'run `shardline verify` on a GPU of {engine.target}'}, "
        "or set export.allow_unproven",
    )


def unexpected_files(uri: str, document: ExportManifest) -> Iterator[str]:
    """Yield the names of files that the export did not write: Triton would serve a version that was added."""
    expected = {entry.name for entry in document.shipped_files()} | {MANIFEST_NAME, MARK_NAME}
    if document.engine is not None:
        expected.add(_verification_name(document.engine))
    yield from (entry.name for entry in storage.list_objects(uri) if entry.name not in expected)


def _find_change(uri: str, document: ExportManifest) -> str | None:
    if (name := next(unexpected_files(uri, document), None)) is not None:
        return f"{name} is not of this export"
    return next((damage for entry in document.shipped_files() if (damage := entry.damage(uri))), None)
