"""Every hash on the way from the source's listing to the engine: who wants to trust an engine follows it back."""

from __future__ import annotations

from collections.abc import Mapping

from contracts.artifacts import CheckpointManifest, Contract, ExportManifest, ProfileReport, ShardManifest
from inspection.run.view import LineageView

# What each stage's document is called, in the order of the line.
_NAMES = {"shard": "shards", "profile": "profile", "train": "checkpoint", "export": "export"}


def find_lineage(
    documents: Mapping[str, Contract], uris: Mapping[str, str], sha256: Mapping[str, str]
) -> list[LineageView]:
    """Return the documents of a run with their hashes, from the source's listing on.

    Args:
        documents: What was read, by stage.
        uris: Folder of each, by stage.
        sha256: Hash of each manifest as it is now, by stage; what is not in it is not known.
    """
    found: list[LineageView] = []
    shards = documents.get("shard")
    if isinstance(shards, ShardManifest):
        listing = shards.made_from.get("listing", "")
        found.append(
            LineageView(name="listing", stage="shard", uri=None, fingerprint=listing, sha256=listing, made_from={})
        )
    for stage, name in _NAMES.items():
        if (document := documents.get(stage)) is None:
            continue
        found.append(
            LineageView(
                name=name,
                stage=stage,
                uri=uris.get(stage),
                fingerprint=document.fingerprint,
                sha256=sha256.get(stage, ""),
                made_from={**document.made_from, **_contents(document)},
            )
        )
    exported = documents.get("export")
    if isinstance(exported, ExportManifest) and exported.engine is not None:
        folder = uris.get("export", "")
        found.append(
            LineageView(
                name="engine",
                stage="export",
                uri=exported.engine.uri(folder) if folder else None,
                fingerprint=exported.fingerprint,
                sha256=exported.engine.sha256,
                made_from={"graph": exported.engine.onnx_sha256},
            )
        )
    return found


def _contents(document: Contract) -> dict[str, str]:
    """Return the hashes that a document holds besides those that its name is made of."""
    if isinstance(document, CheckpointManifest):
        return {"parameters (its own)": document.parameters_sha256}
    if isinstance(document, ExportManifest):
        graphs = {f"graph {graph.precision} (its own)": graph.sha256 for graph in document.graphs}
        return {"checkpoint parameters": document.checkpoint_sha256, **graphs}
    if isinstance(document, ProfileReport):
        return {"shards measured on": document.shards_fingerprint}
    return {}
